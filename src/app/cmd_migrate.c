/* cmd_migrate: `awa-proxy migrate`: reads options and environment, the work is pg/migrate.h. */
#include <stdbool.h>
#include <stdio.h>

#include "app/cmd.h"
#include "app/options.h"
#include "app/target.h"
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

struct choice {
    struct target target;
    enum migrate_mode mode;
    bool help;
};

static bool choose(struct choice *chosen, enum migrate_mode mode)
{
    bool only = chosen->mode == MIGRATE_APPLY || chosen->mode == mode;
    if (!only)
        fputs("awa-proxy migrate: only one of --dry-run, --sql and --rebase\n", stderr);
    chosen->mode = mode;
    return only;
}

/* False after a complaint. */
static bool parse(int argc, char **argv, struct choice *chosen)
{
    bool sound = true;
    int key;

    while (sound && (key = options_next("migrate", argc, argv, options)) != -1) {
        switch (key) {
        case OPTION_DATABASE: chosen->target.url = optarg; break;
        case OPTION_SCHEMA: chosen->target.schema = optarg; break;
        case OPTION_DRY_RUN: sound = choose(chosen, MIGRATE_LIST); break;
        case OPTION_SQL: sound = choose(chosen, MIGRATE_PRINT_SQL); break;
        case OPTION_REBASE: sound = choose(chosen, MIGRATE_REBASE); break;
        case 'h': chosen->help = true; break;
        default: sound = false; break;
        }
    }
    if (sound && optind < argc) { /* it is not shown: it may be a URL with its password */
        fputs("awa-proxy migrate: takes options only, no argument\n", stderr);
        sound = false;
    }
    return sound;
}

int cmd_migrate(int argc, char **argv)
{
    struct choice chosen = {.target = target_from_environment(), .mode = MIGRATE_APPLY};
    struct err err;

    if (!parse(argc, argv, &chosen)) {
        fputs(usage, stderr);
        return CMD_MISUSED;
    }
    if (chosen.help) {
        fputs(usage, stdout);
        return CMD_DONE;
    }
    if (target_check(&chosen.target, &err) != CODE_OK) {
        fprintf(stderr, "awa-proxy migrate: %s\n", err.message);
        return CMD_MISUSED;
    }
    struct migrate_request request = {
        .url = chosen.target.url, .schema = chosen.target.schema, .mode = chosen.mode};
    return migrate_run(&request) ? CMD_DONE : CMD_FAILED;
}
