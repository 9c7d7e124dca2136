/* migrate: see migrate.h for the promise.
 *
 * How: a session advisory lock keyed by the schema's name serialises all migrators of one schema.
 * Under it the state is read from the catalogue and schema_migrations, judged as a whole, and only
 * then is anything written. lock_timeout bounds every wait, for that lock and inside the
 * migrations. Invariant: schema_migrations holds 1..n without a gap, and row n commits together
 * with migration n. Not here: any SQL of the product (sql/).
 */
#include "pg/migrate.h"

#include <libpq-fe.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pg/migrations.h"
#include "pg/schema.h"
#include "pg/url.h"

enum {
    CONNECT_WAIT_S = 10,
    LOCK_WAIT_MS = 15000,
    SQL_BYTES_MAX = 512,
    COMPLAINT_BYTES_MAX = 2048,
};

struct migrator {
    const struct migrate_request *request;
    PGconn *conn;
    char *schema_quoted; /* as an identifier, owned by libpq */
    bool schema_exists;
    int version; /* the schema's; 0 = nothing is there */
};

PRINTF_LIKE(1, 2) static bool refuse(const char *format, ...)
{
    char text[COMPLAINT_BYTES_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t len = strlen(text);
    while (len > 0 && text[len - 1] == '\n') /* libpq's own end with one */
        text[--len] = '\0';
    fprintf(stderr, "awa-proxy migrate: %s\n", text);
    return false;
}

/* The line of `sql` that the server complains about; 0 when it does not say. */
static int error_line(const PGresult *result, const char *sql)
{
    const char *position = PQresultErrorField(result, PG_DIAG_STATEMENT_POSITION);
    if (position == NULL)
        return 0;
    long characters = strtol(position, NULL, 10);
    int line = 1;
    for (const char *c = sql; *c != '\0' && characters > 1; c++) {
        line += *c == '\n';
        characters -= (*c & 0xC0) != 0x80; /* counts UTF-8 characters, not bytes */
    }
    return line;
}

/* What is not said is not told: a function's error has no line of ours, and few have a hint. */
static bool explain_failure(struct migrator *m, const PGresult *result, const char *what,
                            const char *sql)
{
    const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *detail = PQresultErrorField(result, PG_DIAG_MESSAGE_DETAIL);
    const char *hint = PQresultErrorField(result, PG_DIAG_MESSAGE_HINT);
    char place[sizeof ", line -2147483648"] = "";
    int line = error_line(result, sql);

    if (message == NULL)
        return refuse("%s: %s", what, PQerrorMessage(m->conn));
    if (line != 0)
        snprintf(place, sizeof place, ", line %d", line);
    return refuse("%s%s: %s%s%s (SQLSTATE %s)%s%s", what, place, message, detail ? ": " : "",
                  detail ? detail : "", sqlstate ? sqlstate : "unknown", hint ? ". " : "",
                  hint ? hint : "");
}

/* Runs statements whose rows nobody needs. `what` names them in a complaint. */
static bool run(struct migrator *m, const char *what, const char *sql)
{
    PGresult *result = PQexec(m->conn, sql);
    ExecStatusType status = PQresultStatus(result);
    bool ok = status == PGRES_COMMAND_OK || status == PGRES_TUPLES_OK;
    if (!ok)
        explain_failure(m, result, what, sql);
    PQclear(result);
    return ok;
}

/* One query with the schema's name as $1. NULL after a complaint; free with PQclear. */
static PGresult *ask(struct migrator *m, const char *what, const char *sql)
{
    const char *values[] = {m->request->schema};
    PGresult *result = PQexecParams(m->conn, sql, 1, NULL, values, NULL, NULL, 0);
    if (PQresultStatus(result) == PGRES_TUPLES_OK)
        return result;
    explain_failure(m, result, what, sql);
    PQclear(result);
    return NULL;
}

static bool connect_database(struct migrator *m)
{
    char wait_s[12];
    snprintf(wait_s, sizeof wait_s, "%d", CONNECT_WAIT_S);
    const char *names[] = {"connect_timeout", "fallback_application_name", "dbname", NULL};
    const char *values[] = {wait_s, "awa-proxy migrate", m->request->url, NULL};
    struct err err;
    if (url_check(m->request->url, &err) != CODE_OK)
        return refuse("%s", err.message);
    m->conn = PQconnectdbParams(names, values, 1);
    if (PQstatus(m->conn) != CONNECTION_OK)
        return refuse("%s", PQerrorMessage(m->conn));
    fprintf(stderr, "target: database %s on %s port %s as %s, schema %s\n", PQdb(m->conn),
            PQhost(m->conn), PQport(m->conn), PQuser(m->conn), m->request->schema);
    m->schema_quoted = PQescapeIdentifier(m->conn, m->request->schema, strlen(m->request->schema));
    return m->schema_quoted != NULL || refuse("%s", PQerrorMessage(m->conn));
}

static bool check_encoding(struct migrator *m)
{
    struct err err;

    return schema_check_encoding(m->conn, &err) == CODE_OK || refuse("%s", err.message);
}

/* A migration may take longer than the role's other statements are meant to. */
static bool lock_schema(struct migrator *m)
{
    char sql[SQL_BYTES_MAX];
    snprintf(sql, sizeof sql,
             "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;"
             " SET client_min_messages = warning; SET lock_timeout = %d",
             LOCK_WAIT_MS);
    if (!run(m, "session settings", sql))
        return false;
    PGresult *result =
        ask(m, "waiting for another migrate of this schema",
            "SELECT pg_advisory_lock(hashtextextended('awa-proxy migrate ' || $1::text, 0))");
    PQclear(result);
    return result != NULL;
}

static PGresult *read_ledger(struct migrator *m)
{
    char sql[SCHEMA_QUERY_BYTES];
    PGresult *rows = PQexec(m->conn, schema_ledger_query(m->schema_quoted, sql));
    if (PQresultStatus(rows) == PGRES_TUPLES_OK)
        return rows;
    explain_failure(m, rows, "reading schema_migrations", sql);
    PQclear(rows);
    return NULL;
}

static bool read_state(struct migrator *m)
{
    PGresult *catalogue = ask(m, "reading the catalogue", schema_catalogue_query);
    bool has_ledger = catalogue != NULL && schema_has_ledger(catalogue);
    PGresult *ledger = has_ledger ? read_ledger(m) : NULL;
    bool ok = catalogue != NULL && (ledger != NULL || !has_ledger);
    struct err err;
    if (ok && schema_judge(m->request->schema, catalogue, ledger, &m->schema_exists, &m->version,
                           &err) != CODE_OK)
        ok = refuse("%s", err.message);
    PQclear(catalogue);
    PQclear(ledger);
    return ok;
}

/* Runs a step, or writes it as a line of the psql script. */
static bool step(struct migrator *m, const char *what, const char *sql)
{
    switch (m->request->mode) {
    case MIGRATE_APPLY: return run(m, what, sql);
    case MIGRATE_PRINT_SQL: printf("%s\n", sql); return true;
    case MIGRATE_LIST:
    case MIGRATE_REBASE: break; /* applies no migration */
    }
    return true;
}

/* Opens the transaction, with the schema and its ledger made if they are missing. */
static bool begin_migration(struct migrator *m, const char *what)
{
    char sql[SQL_BYTES_MAX];
    if (!step(m, what, "BEGIN ISOLATION LEVEL READ COMMITTED;"))
        return false;
    if (!m->schema_exists) {
        snprintf(sql, sizeof sql, "CREATE SCHEMA %s;", m->schema_quoted);
        if (!step(m, what, sql))
            return false;
    }
    snprintf(sql, sizeof sql, "SET LOCAL search_path = %s, pg_temp;", m->schema_quoted);
    if (!step(m, what, sql))
        return false;
    return m->version > 0 ||
           step(m, what,
                "CREATE TABLE schema_migrations (version int PRIMARY KEY, name text NOT NULL,"
                " applied_at timestamptz NOT NULL DEFAULT now());");
}

static bool run_files(struct migrator *m, const struct migration *migration)
{
    char what[SQL_BYTES_MAX];
    for (size_t i = 0; i < migration->file_count; i++) {
        const struct migration_file *file = &migration->files[i];
        snprintf(what, sizeof what, "%04d_%s/%s", migration->version, migration->name, file->name);
        if (!step(m, what, file->text))
            return false;
        if (m->request->mode == MIGRATE_APPLY && PQtransactionStatus(m->conn) != PQTRANS_INTRANS)
            return refuse("%s: ended the transaction of its migration", what);
    }
    return true;
}

static bool commit_migration(struct migrator *m, const struct migration *migration,
                             const char *what)
{
    char sql[SQL_BYTES_MAX];
    snprintf(sql, sizeof sql, "INSERT INTO %s.schema_migrations (version, name) VALUES (%d, '%s');",
             m->schema_quoted, migration->version, migration->name);
    return step(m, what, sql) && step(m, what, "COMMIT;");
}

static bool apply(struct migrator *m, const struct migration *migration)
{
    char what[SQL_BYTES_MAX];
    snprintf(what, sizeof what, "%04d_%s", migration->version, migration->name);
    if (m->request->mode == MIGRATE_LIST) {
        printf("would apply %s (%zu files)\n", what, migration->file_count);
        return true;
    }
    if (!begin_migration(m, what) || !run_files(m, migration) ||
        !commit_migration(m, migration, what))
        return false;
    m->schema_exists = true;
    m->version = migration->version;
    if (m->request->mode == MIGRATE_APPLY)
        printf("applied %s\n", what);
    return true;
}

static bool rebase(struct migrator *m)
{
    char sql[SQL_BYTES_MAX];
    if (m->version != schema_known_version())
        return refuse(
            "schema %s is at version %d, this binary rebases version %d: migrate it first",
            m->request->schema, m->version, schema_known_version());
    snprintf(sql, sizeof sql, "SELECT %s.rebase();", m->schema_quoted);
    if (!run(m, "rebase", sql))
        return false;
    printf("schema %s is rebased\n", m->request->schema);
    return true;
}

static bool bring_up(struct migrator *m)
{
    if (!connect_database(m) || !check_encoding(m) || !lock_schema(m) || !read_state(m))
        return false;
    if (m->request->mode == MIGRATE_REBASE)
        return rebase(m);
    int known = schema_known_version();
    int found = m->version;
    if (m->request->mode == MIGRATE_PRINT_SQL)
        puts("\\set ON_ERROR_STOP on");
    for (int i = found; i < known; i++) {
        if (!apply(m, &migrations[i]))
            return false;
    }
    if (m->request->mode != MIGRATE_PRINT_SQL)
        printf("schema %s is at version %d%s\n", m->request->schema, m->version,
               found == known ? ", nothing to do" : "");
    return true;
}

bool migrate_run(const struct migrate_request *request)
{
    struct migrator m = {.request = request};
    bool ok = bring_up(&m);
    PQfreemem(m.schema_quoted);
    PQfinish(m.conn); /* also ends a failed transaction and the advisory lock */
    return ok;
}
