/* options: see options.h. */
#include "app/options.h"

#include <stdio.h>
#include <string.h>

static const char *name_of(const struct option *options, int number)
{
    while (options->name != NULL && options->val != number)
        options++;
    return options->name;
}

/* optopt is the number of an option that was known, else the letter of a short one, else 0. */
static void complain(const char *command, char **argv, const struct option *options, int key)
{
    const char *known = optopt != 0 ? name_of(options, optopt) : NULL;
    const char *word = argv[optind - 1];

    fprintf(stderr, "awa-proxy %s: ", command);
    if (known != NULL)
        fprintf(stderr, "option '--%s' %s\n", known,
                key == ':' ? "needs a value" : "takes no value");
    else if (optopt != 0)
        fprintf(stderr, "unrecognized option '-%c'\n", optopt);
    else
        fprintf(stderr, "unrecognized option '%.*s'\n", (int)strcspn(word, "="), word);
}

int options_next(const char *command, int argc, char **argv, const struct option *options)
{
    opterr = 0;
    int key = getopt_long(argc, argv, ":h", options, NULL);
    if (key != ':' && key != '?')
        return key;
    complain(command, argv, options, key);
    return OPTION_REFUSED;
}
