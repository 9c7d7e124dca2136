/* schema: see schema.h. */
#include "pg/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pg/migrations.h"

const char schema_catalogue_query[] =
    "SELECT n.oid IS NOT NULL,"
    " EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = n.oid"
    "         AND relname = 'schema_migrations' AND relkind = 'r'),"
    " EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = n.oid)"
    " OR EXISTS (SELECT FROM pg_catalog.pg_proc WHERE pronamespace = n.oid)"
    " OR EXISTS (SELECT FROM pg_catalog.pg_type WHERE typnamespace = n.oid),"
    " d.oid::bigint << 32 | n.oid::bigint"
    " FROM (SELECT $1::text AS name) want"
    " JOIN pg_catalog.pg_database d ON d.datname = pg_catalog.current_database()"
    " LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = want.name";

const char *schema_ledger_query(const char *quoted, char out[SCHEMA_QUERY_BYTES])
{
    snprintf(out, SCHEMA_QUERY_BYTES,
             "SELECT version, name FROM %s.schema_migrations ORDER BY version", quoted);
    return out;
}

int schema_known_version(void)
{
    int version = 0;
    while (migrations[version].version != 0)
        version++;
    return version;
}

static bool is_true(const PGresult *catalogue, int column)
{
    return PQgetvalue(catalogue, 0, column)[0] == 't';
}

bool schema_has_ledger(const PGresult *catalogue)
{
    return is_true(catalogue, 1);
}

int64_t schema_id_of(const PGresult *catalogue)
{
    return PQgetisnull(catalogue, 0, 3) ? 0 : strtoll(PQgetvalue(catalogue, 0, 3), NULL, 10);
}

/* Judges the rows (version, name) of schema_migrations, ordered by version. */
static enum code judge_ledger(const char *schema, const PGresult *rows, int *version,
                              struct err *err)
{
    int count = PQntuples(rows);
    int known = schema_known_version();
    int newest = count == 0 ? 0 : atoi(PQgetvalue(rows, count - 1, 0));

    if (newest > known)
        return err_set(err, CODE_FAILED_PRECONDITION,
                       "schema %s is at version %d, this binary knows up to %d: use a newer binary",
                       schema, newest, known);
    if (count == 0)
        return err_set(err, CODE_FAILED_PRECONDITION,
                       "schema %s is half installed: its schema_migrations is empty", schema);
    for (int i = 0; i < count; i++) {
        if (atoi(PQgetvalue(rows, i, 0)) != i + 1)
            return err_set(err, CODE_FAILED_PRECONDITION,
                           "schema %s is half installed: version %d is missing although version %d"
                           " is there",
                           schema, i + 1, newest);
        if (strcmp(PQgetvalue(rows, i, 1), migrations[i].name) != 0)
            return err_set(err, CODE_FAILED_PRECONDITION,
                           "schema %s is not from this program: its version %d is \"%.30s\","
                           " this binary's is \"%.30s\"",
                           schema, i + 1, PQgetvalue(rows, i, 1), migrations[i].name);
    }
    *version = newest;
    return CODE_OK;
}

enum code schema_judge(const char *schema, const PGresult *catalogue, const PGresult *ledger,
                       bool *exists, int *version, struct err *err)
{
    *exists = is_true(catalogue, 0);
    *version = 0;
    if (ledger != NULL)
        return judge_ledger(schema, ledger, version, err);
    if (is_true(catalogue, 2))
        return err_set(err, CODE_FAILED_PRECONDITION,
                       "schema %s holds objects but no schema_migrations: it is half installed or"
                       " belongs to something else; drop it or name another with --schema",
                       schema);
    return CODE_OK;
}

enum code schema_require_current(const char *schema, const PGresult *catalogue,
                                 const PGresult *ledger, struct err *err)
{
    int known = schema_known_version();
    bool exists = false;
    int version = 0;
    enum code code = schema_judge(schema, catalogue, ledger, &exists, &version, err);

    if (code != CODE_OK)
        return code;
    if (!exists)
        return err_set(err, CODE_FAILED_PRECONDITION,
                       "schema %s does not exist; run awa-proxy migrate", schema);
    if (version == 0)
        return err_set(err, CODE_FAILED_PRECONDITION, "schema %s is empty; run awa-proxy migrate",
                       schema);
    if (version < known)
        return err_set(err, CODE_FAILED_PRECONDITION,
                       "schema %s is at version %d, this binary needs version %d; run awa-proxy"
                       " migrate",
                       schema, version, known);
    return CODE_OK;
}

enum code schema_check_encoding(const PGconn *connection, struct err *err)
{
    const char *encoding = PQparameterStatus(connection, "server_encoding");

    if (encoding == NULL || strcmp(encoding, "UTF8") == 0 || strcmp(encoding, "SQL_ASCII") == 0)
        return CODE_OK;
    return err_set(err, CODE_UNAVAILABLE, "the encoding of the database is %s: it must be UTF8",
                   encoding);
}
