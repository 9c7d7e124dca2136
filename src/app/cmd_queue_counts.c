/* cmd_queue_counts: `awa-proxy queue counts [QUEUE…]`: how many jobs in which state, exactly. */
#include <limits.h>
#include <stdio.h>

#include "app/cmd.h"
#include "app/command.h"
#include "app/show.h"
#include "base/buf.h"

static const struct command_setup setup = {
    .name = "queue counts",
    .usage_arguments = " [QUEUE...]",
    .summary = "Counts the jobs of these queues by state, or of every queue that was ever used.\n"
               "Exact; reads what is retained, so it costs more than a look.",
    .arguments_max = INT_MAX,
};

/* As an array in Postgres's text form, every name quoted. */
static void put_array(struct buf *out, const struct command *command)
{
    buf_add(out, "{", 1);
    for (int i = 0; i < command->argument_count; i++) {
        buf_add(out, i > 0 ? ",\"" : "\"", i > 0 ? 2 : 1);
        for (const char *at = command->arguments[i]; *at != '\0'; at++) {
            if (*at == '"' || *at == '\\')
                buf_add(out, "\\", 1);
            buf_add(out, at, 1);
        }
        buf_add(out, "\"", 1);
    }
    buf_add(out, "}", 2); /* and its NUL */
}

static int run(struct command *command)
{
    struct buf queues;

    if (!command_connect(command))
        return CMD_FAILED;
    buf_init(&queues);
    put_array(&queues, command);
    const char *values[] = {(const char *)buf_data(&queues)};
    PGresult *rows = command_call(command, "queue_counts($1::text[])", 1, values);
    buf_free(&queues);
    if (rows == NULL)
        return CMD_FAILED;
    if (command->json) {
        fputs("{\"queues\":", stdout);
        show_json_array(rows);
        puts("}");
    } else {
        show_table(rows);
    }
    PQclear(rows);
    return CMD_DONE;
}

int cmd_queue_counts(int argc, char **argv)
{
    return command_run(&setup, run, argc, argv);
}
