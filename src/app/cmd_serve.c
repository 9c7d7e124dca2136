/* cmd_serve: `awa-proxy serve`: reads the command line and the settings; the daemon is server.h. */
#include <stdio.h>
#include <string.h>

#include "app/cmd.h"
#include "app/server.h"
#include "app/settings.h"
#include "base/mem.h"

/* Takes an option that is no setting out of the arguments; whether it was there. */
static bool take_option(int *argc, char **argv, const char *option)
{
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], option) != 0)
            continue;
        memmove(&argv[i], &argv[i + 1], (size_t)(*argc - i) * sizeof argv[0]); /* the NULL too */
        (*argc)--;
        return true;
    }
    return false;
}

static void print_help(void)
{
    puts("usage: awa-proxy serve [options]\n\n"
         "Makes Postgres a job queue for clients on Unix and TCP sockets.\n\n"
         "  --check-config    judge the settings, print them with their origin, and exit\n"
         "  --help            this text\n"
         "  --help-markdown   the same as docs/configuration.md\n\n"
         "Settings: a flag is stronger than the environment, that than the file, that than the "
         "default.\n");
    conf_print_help(stdout);
}

int cmd_serve(int argc, char **argv)
{
    struct settings *settings = NULL;
    struct err err;
    int status = CMD_DONE;

    if (take_option(&argc, argv, "--help") || take_option(&argc, argv, "-h")) {
        print_help();
        return CMD_DONE;
    }
    if (take_option(&argc, argv, "--help-markdown")) {
        conf_print_reference(stdout);
        return CMD_DONE;
    }
    bool only_check = take_option(&argc, argv, "--check-config");
    settings = mem_zalloc(sizeof *settings);
    if (settings_load(settings, argc, argv, &err) != CODE_OK) {
        fprintf(stderr, "awa-proxy serve: %s\n", err.message);
        status = CMD_MISUSED;
    } else if (only_check) {
        settings_print(settings, stdout);
    } else {
        status = server_run(settings) ? CMD_DONE : CMD_FAILED;
    }
    mem_free(settings);
    return status;
}
