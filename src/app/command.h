/* command: what the subcommands that ask the database share: options, one plain connection with a
 * time limit, one call at a time, and showing the rows as tables for people or as one JSON object.
 *
 * Synchronous libpq: these are commands, not part of the daemon's loop. Each of them calls
 * functions of the schema and holds no other SQL.
 */
#ifndef APP_COMMAND_H
#define APP_COMMAND_H

#include <stdbool.h>

#include <libpq-fe.h>

#include "app/target.h"

struct command_setup {
    const char *name; /* "queue counts" */
    const char *usage_arguments;
    const char *summary;
    int arguments_min;
    int arguments_max;
};

struct command {
    const struct command_setup *with;
    struct target target;
    bool json;
    char **arguments; /* what is no option; ends with NULL */
    int argument_count;
    PGconn *connection;
};

/* A whole subcommand: reads the command line, calls run, which connects, and disconnects. Returns
 * the exit code. */
int command_run(const struct command_setup *setup, int (*run)(struct command *command), int argc,
                char **argv);

/* Connects, and refuses a schema that this binary does not fit. False after a complaint. */
bool command_connect(struct command *command);

/* SELECT * FROM schema.function(…), called like "get_job($1)", as text. NULL after a complaint. */
PGresult *command_call(struct command *command, const char *call, int count,
                       const char *const *values);

/* Says on stderr what is wrong, in the command's name. */
void command_complain(const struct command *command, const char *format, ...) PRINTF_LIKE(2, 3);

#endif
