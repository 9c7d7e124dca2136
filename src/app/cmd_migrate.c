/* `awa-proxy migrate`: reads options and environment, the work is pg/migrate.h. */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "app/cmd.h"
#include "pg/migrate.h"

static const char usage[] =
    "usage: awa-proxy migrate [--database URL] [--schema NAME] [--dry-run | --sql | --rebase]\n"
    "\n"
    "  --database URL  the database (AWA_DATABASE_URL)\n"
    "  --schema NAME   the schema (AWA_SCHEMA, awa)\n"
    "  --dry-run       only list the migrations that are missing\n"
    "  --sql           only print them, as a script for psql\n"
    "  --rebase        repair a schema that was moved to another cluster; no proxy may be "
    "connected\n"
    "  --help          this text\n"
    "\n"
    "Exit code: 0 done, 1 failed, 2 used wrongly.\n";

enum option_key { OPTION_DATABASE = 1, OPTION_SCHEMA, OPTION_DRY_RUN, OPTION_SQL, OPTION_REBASE };

static const struct option options[] = {
    {"database", required_argument, NULL, OPTION_DATABASE},
    {"schema", required_argument, NULL, OPTION_SCHEMA},
    {"dry-run", no_argument, NULL, OPTION_DRY_RUN},
    {"sql", no_argument, NULL, OPTION_SQL},
    {"rebase", no_argument, NULL, OPTION_REBASE},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* NULL when the variable is not set, or empty. */
static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

static bool choose(struct migrate_request *request, enum migrate_mode mode)
{
    bool only = request->mode == MIGRATE_APPLY || request->mode == mode;
    if (!only)
        fputs("awa-proxy migrate: only one of --dry-run, --sql and --rebase\n", stderr);
    request->mode = mode;
    return only;
}

/* Fills *request from the command line. CMD_DONE: go on. */
static enum cmd_exit parse(int argc, char **argv, struct migrate_request *request, bool *help)
{
    static char program[] = "awa-proxy migrate"; /* so that getopt_long complains in our name */
    bool sound = true;
    int key;

    argv[0] = program;
    while (sound && (key = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (key) {
        case OPTION_DATABASE: request->url = optarg; break;
        case OPTION_SCHEMA: request->schema = optarg; break;
        case OPTION_DRY_RUN: sound = choose(request, MIGRATE_LIST); break;
        case OPTION_SQL: sound = choose(request, MIGRATE_PRINT_SQL); break;
        case OPTION_REBASE: sound = choose(request, MIGRATE_REBASE); break;
        case 'h': *help = true; break;
        default: sound = false; break; /* getopt_long has said why */
        }
    }
    if (sound && optind < argc) {
        fprintf(stderr, "awa-proxy migrate: unexpected argument \"%s\"\n", argv[optind]);
        sound = false;
    }
    return sound ? CMD_DONE : CMD_MISUSED;
}

int cmd_migrate(int argc, char **argv)
{
    bool help = false;
    struct migrate_request request = {
        .url = environment("AWA_DATABASE_URL"),
        .schema = environment("AWA_SCHEMA"),
        .mode = MIGRATE_APPLY,
    };

    if (parse(argc, argv, &request, &help) != CMD_DONE) {
        fputs(usage, stderr);
        return CMD_MISUSED;
    }
    if (help) {
        fputs(usage, stdout);
        return CMD_DONE;
    }
    if (request.url == NULL) {
        fputs("awa-proxy migrate: no database: give --database or AWA_DATABASE_URL\n", stderr);
        return CMD_MISUSED;
    }
    if (request.schema == NULL)
        request.schema = "awa";
    return migrate_run(&request) ? CMD_DONE : CMD_FAILED;
}
