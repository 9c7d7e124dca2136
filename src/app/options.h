/* options: the next option of a command's line, by getopt_long, whose own complaints may show a
 * password: they quote what stands behind a mistyped name. */
#ifndef APP_OPTIONS_H
#define APP_OPTIONS_H

#include <getopt.h>

enum { OPTION_REFUSED = '?' };

/* Its number, which must not be OPTION_REFUSED; OPTION_REFUSED after a complaint in the command's
 * name; -1 when there are no more: what is left begins at argv[optind]. -h is --help. */
int options_next(const char *command, int argc, char **argv, const struct option *options);

#endif
