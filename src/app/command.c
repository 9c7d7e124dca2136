/* command: see command.h. */
#include "app/command.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "app/cmd.h"
#include "app/options.h"
#include "base/err.h"
#include "base/mem.h"
#include "pg/schema.h"
#include "pg/url.h"

enum { SQL_BYTES_MAX = 512, COMPLAINT_BYTES_MAX = 2048 };

/* Longer than any answer should take, and short enough for a person and a script. */
#define CONNECT_WAIT_S    "10"
#define STATEMENT_WAIT_MS "30000"

enum option_key { OPTION_DATABASE = 1, OPTION_SCHEMA, OPTION_JSON };

static const struct option options[] = {
    {"database", required_argument, NULL, OPTION_DATABASE},
    {"schema", required_argument, NULL, OPTION_SCHEMA},
    {"json", no_argument, NULL, OPTION_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

static void print_usage(const struct command_setup *with, FILE *out)
{
    fprintf(out,
            "usage: awa-proxy %s [--database URL] [--schema NAME] [--json]%s\n\n%s\n\n"
            "  --database URL  the database (AWA_DATABASE_URL)\n"
            "  --schema NAME   the schema (AWA_SCHEMA, awa)\n"
            "  --json          one JSON object instead of a table\n"
            "  --help          this text\n\n"
            "Exit code: 0 done, 1 failed, 2 used wrongly.\n",
            with->name, with->usage_arguments, with->summary);
}

void command_complain(const struct command *command, const char *format, ...)
{
    char text[COMPLAINT_BYTES_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t len = strlen(text);
    while (len > 0 && text[len - 1] == '\n') /* libpq's own end with one */
        text[--len] = '\0';
    fprintf(stderr, "awa-proxy %s: %s\n", command->with->name, text);
}

/* ---- the command line ---- */

static bool read_options(struct command *command, int argc, char **argv, bool *help)
{
    int key;

    while ((key = options_next(command->with->name, argc, argv, options)) != -1) {
        switch (key) {
        case OPTION_DATABASE: command->target.url = optarg; break;
        case OPTION_SCHEMA: command->target.schema = optarg; break;
        case OPTION_JSON: command->json = true; break;
        case 'h': *help = true; break;
        default: return false;
        }
    }
    command->arguments = argv + optind;
    command->argument_count = argc - optind;
    return true;
}

/* What stands there is not shown: a URL, with its password, is easily forgotten to be an option's.
 */
static bool has_its_arguments(const struct command *command)
{
    const struct command_setup *with = command->with;

    if (command->argument_count > with->arguments_max)
        command_complain(command, "too many arguments: takes%s",
                         with->arguments_max == 0 ? " none" : with->usage_arguments);
    else if (command->argument_count < with->arguments_min)
        command_complain(command, "needs%s", with->usage_arguments);
    else
        return true;
    return false;
}

static bool parse(struct command *command, const struct command_setup *setup, int argc, char **argv,
                  int *status)
{
    bool help = false;
    struct err err;

    *command = (struct command){.with = setup, .target = target_from_environment()};
    *status = CMD_MISUSED;
    if (!read_options(command, argc, argv, &help)) {
        print_usage(setup, stderr);
        return false;
    }
    if (help) {
        print_usage(setup, stdout);
        *status = CMD_DONE;
        return false;
    }
    if (!has_its_arguments(command))
        return false;
    if (target_check(&command->target, &err) == CODE_OK)
        return true;
    command_complain(command, "%s", err.message);
    return false;
}

/* ---- the database ---- */

static void complain_of(struct command *command, const PGresult *result)
{
    const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    if (message == NULL)
        command_complain(command, "%s", PQerrorMessage(command->connection));
    else
        command_complain(command, "%s (SQLSTATE %s)", message, sqlstate != NULL ? sqlstate : "?");
}

/* NULL after a complaint. */
static PGresult *ask(struct command *command, const char *sql, int count, const char *const *values)
{
    PGresult *rows = PQexecParams(command->connection, sql, count, NULL, values, NULL, NULL, 0);

    if (PQresultStatus(rows) == PGRES_TUPLES_OK)
        return rows;
    complain_of(command, rows);
    PQclear(rows);
    return NULL;
}

static bool limit_session(struct command *command)
{
    PGresult *rows = ask(command,
                         "SELECT set_config(name, value, false) FROM (VALUES"
                         " ('statement_timeout', '" STATEMENT_WAIT_MS "'), ('TimeZone', 'UTC'),"
                         " ('DateStyle', 'ISO'), ('client_min_messages', 'warning'),"
                         " ('default_transaction_isolation', 'read committed'))"
                         " settings (name, value)",
                         0, NULL);
    PQclear(rows);
    return rows != NULL;
}

static bool judge_schema(struct command *command, const PGresult *catalogue, const PGresult *ledger)
{
    struct err err;

    if (schema_require_current(command->target.schema, catalogue, ledger, &err) == CODE_OK)
        return true;
    command_complain(command, "%s", err.message);
    return false;
}

static bool check_schema(struct command *command)
{
    const char *schema = command->target.schema;
    const char *values[] = {schema};
    char sql[SCHEMA_QUERY_BYTES];
    char *quoted = PQescapeIdentifier(command->connection, schema, strlen(schema));
    PGresult *catalogue = ask(command, schema_catalogue_query, 1, values);
    bool has_ledger = catalogue != NULL && quoted != NULL && schema_has_ledger(catalogue);
    PGresult *ledger = has_ledger ? ask(command, schema_ledger_query(quoted, sql), 0, NULL) : NULL;
    bool fits = catalogue != NULL && (ledger != NULL || !has_ledger) &&
                judge_schema(command, catalogue, ledger);

    PQclear(catalogue);
    PQclear(ledger);
    PQfreemem(quoted);
    return fits;
}

bool command_connect(struct command *command)
{
    /* What stands before dbname may be overridden by the URL. */
    const char *const names[] = {"client_encoding", "connect_timeout", "fallback_application_name",
                                 "dbname", NULL};
    const char *const values[] = {"UTF8", CONNECT_WAIT_S, "awa-proxy", command->target.url, NULL};
    struct err err;

    if (url_check(command->target.url, &err) != CODE_OK) {
        command_complain(command, "%s", err.message);
        return false;
    }
    command->connection = PQconnectdbParams(names, values, 1);
    if (PQstatus(command->connection) != CONNECTION_OK) {
        command_complain(command, "%s", PQerrorMessage(command->connection));
        return false;
    }
    return limit_session(command) && check_schema(command);
}

PGresult *command_call(struct command *command, const char *call, int count,
                       const char *const *values)
{
    const char *schema = command->target.schema;
    char sql[SQL_BYTES_MAX];
    char *quoted = PQescapeIdentifier(command->connection, schema, strlen(schema));

    if (quoted == NULL) {
        command_complain(command, "%s", PQerrorMessage(command->connection));
        return NULL;
    }
    snprintf(sql, sizeof sql, "SELECT * FROM %s.%s", quoted, call);
    PQfreemem(quoted);
    return ask(command, sql, count, values);
}

int command_run(const struct command_setup *setup, int (*run)(struct command *command), int argc,
                char **argv)
{
    struct command command;
    int exit_code = CMD_DONE;

    if (!parse(&command, setup, argc, argv, &exit_code))
        return exit_code;
    exit_code = run(&command);
    PQfinish(command.connection);
    return exit_code;
}
