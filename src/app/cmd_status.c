/* cmd_status: `awa-proxy status`: what the schema holds as a whole. */
#include <stdio.h>

#include "app/cmd.h"
#include "app/command.h"
#include "app/show.h"

static const struct command_setup setup = {
    .name = "status",
    .usage_arguments = "",
    .summary = "Shows the version of the schema, open attempts, deferred jobs, the slots of both\n"
               "rings with their age, and the proxies that registered. Times are UTC.",
};

static void show_json(const PGresult *status, const PGresult *slots, const PGresult *instances)
{
    putchar('{');
    show_json_members(status, 0);
    fputs(",\"ring_slots\":", stdout);
    show_json_array(slots);
    fputs(",\"instances\":", stdout);
    show_json_array(instances);
    puts("}");
}

static void show_tables(const PGresult *status, const PGresult *slots, const PGresult *instances)
{
    show_record(status);
    putchar('\n');
    show_table(slots);
    if (PQntuples(instances) > 0) {
        putchar('\n');
        show_table(instances);
    }
}

static int run(struct command *command)
{
    if (!command_connect(command))
        return CMD_FAILED;
    PGresult *status = command_call(command, "status()", 0, NULL);
    PGresult *slots = status != NULL ? command_call(command, "ring_slots()", 0, NULL) : NULL;
    PGresult *instances = slots != NULL ? command_call(command, "instances()", 0, NULL) : NULL;

    if (instances != NULL && command->json)
        show_json(status, slots, instances);
    else if (instances != NULL)
        show_tables(status, slots, instances);
    PQclear(status);
    PQclear(slots);
    PQclear(instances);
    return instances != NULL ? CMD_DONE : CMD_FAILED;
}

int cmd_status(int argc, char **argv)
{
    return command_run(&setup, run, argc, argv);
}
