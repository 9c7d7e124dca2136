/* cmd_job_get: `awa-proxy job get ID`: one job, its state and its body. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/cmd.h"
#include "app/command.h"
#include "app/show.h"
#include "base/limits.h"

static const struct command_setup setup = {
    .name = "job get",
    .usage_arguments = " ID",
    .summary = "Shows one job: state, attempts, times (UTC), arguments and errors.",
    .arguments_min = 1,
    .arguments_max = 1,
};

static bool is_job_id(const char *text)
{
    char *end = NULL;

    errno = 0;
    long long id = strtoll(text, &end, 10);
    return isdigit((unsigned char)text[0]) && *end == '\0' && errno == 0 && id >= 1 &&
           id <= JOB_ID_MAX;
}

static int run(struct command *command)
{
    const char *values[] = {command->arguments[0]};

    if (!is_job_id(command->arguments[0])) {
        command_complain(command, "\"%.40s\" is not a job id: a number from 1 to %lld",
                         command->arguments[0], (long long)JOB_ID_MAX);
        return CMD_MISUSED;
    }
    if (!command_connect(command))
        return CMD_FAILED;
    PGresult *rows = command_call(command, "get_job($1)", 1, values);
    if (rows == NULL)
        return CMD_FAILED;
    bool found = PQntuples(rows) > 0;
    if (!found) {
        command_complain(command, "no job %s: it never existed, or is no longer retained",
                         command->arguments[0]);
    } else if (command->json) {
        putchar('{');
        show_json_members(rows, 0);
        puts("}");
    } else {
        show_record(rows);
    }
    PQclear(rows);
    return found ? CMD_DONE : CMD_FAILED;
}

int cmd_job_get(int argc, char **argv)
{
    return command_run(&setup, run, argc, argv);
}
