/* statements: see statements.h. */
#include "pg/statements.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "pg/params.h"

struct statement {
    const char *name;
    enum statement_role role;
    const char *select;
    const char *call;
    Oid types[PARAMS_MAX];
};

static const struct statement statements[] = {
#define STATEMENT(id, role_name, select_text, call_text, ...)                                      \
    [STATEMENT_##id] = {.name = "awa_" #id,                                                        \
                        .role = ROLE_##role_name,                                                  \
                        .select = select_text,                                                     \
                        .call = call_text,                                                         \
                        .types = {__VA_ARGS__}},
#include "pg/statements.def"
#undef STATEMENT
};

/* By SET and not by connection options, which poolers in between refuse. A control session whose
 * process was stopped ends after idle_session_timeout, and with it the locks that say that the
 * process lives and leads; TCP keepalives would never end it. Core makes a call every few seconds.
 */
#define SETTINGS(idle_session_timeout)                                                             \
    "SELECT set_config(name, value, false) FROM (VALUES "                                          \
    "('application_name', 'awa-proxy'), "                                                          \
    "('default_transaction_isolation', 'read committed'), "                                        \
    "('statement_timeout', '30s'), "                                                               \
    "('idle_in_transaction_session_timeout', '60s'), "                                             \
    "('idle_session_timeout', '" idle_session_timeout "'), "                                       \
    "('client_min_messages', 'warning'), "                                                         \
    "('jit', 'off')) settings (name, value)"
static const char *const settings[] = {
    [ROLE_DATA] = SETTINGS("0"),
    [ROLE_CONTROL] = SETTINGS("15s"),
};
#undef SETTINGS

const char *statement_name(enum statement_id id)
{
    return statements[id].name;
}

enum statement_role statement_role(enum statement_id id)
{
    return statements[id].role;
}

static int type_count(const struct statement *statement)
{
    int count = 0;
    while (count < PARAMS_MAX && statement->types[count] != PG_NONE)
        count++;
    return count;
}

struct home {           /* of the statements */
    const char *quoted; /* the schema, as an identifier */
    int64_t schema_id;
};

/* Owned by the caller. The condition is the planner's: a plan that was made is true of the schema
 * that it was made for, and costs nothing. */
static char *call_text(const char *select, const struct home *home, const char *call)
{
    static const char format[] = "%s %s.%s WHERE %s.require_schema(%lld)";
    size_t size = sizeof format + strlen(select) + 2 * strlen(home->quoted) + strlen(call) +
                  sizeof "-9223372036854775808";
    char *text = mem_alloc(size);

    snprintf(text, size, format, select, home->quoted, call, home->quoted,
             (long long)home->schema_id);
    return text;
}

static bool send_prepare(PGconn *connection, const struct statement *statement,
                         const struct home *home)
{
    char *text = call_text(statement->select, home, statement->call);
    int sent =
        PQsendPrepare(connection, statement->name, text, type_count(statement), statement->types);
    mem_free(text);
    return sent == 1;
}

static bool send_once(PGconn *connection, const char *text)
{
    return PQsendQueryParams(connection, text, 0, NULL, NULL, NULL, NULL, 1) == 1;
}

static bool send_call(PGconn *connection, const char *select, const struct home *home,
                      const char *call)
{
    char *text = call_text(select, home, call);
    bool sent = send_once(connection, text);

    mem_free(text);
    return sent;
}

/* In the storage's own words: only it knows the channel. */
static bool send_listen(PGconn *connection, const struct home *home)
{
    return send_call(connection, "SELECT", home, "listen()");
}

/* The server's own word, since a pooler in between gives libpq another pid. */
static bool send_identity(PGconn *connection, const struct home *home)
{
    return send_call(connection, "SELECT pid, started, server_started, timeline FROM", home,
                     "backend_identity()");
}

/* A pooler in between may hand on a session in which our names are taken, by whatever text. */
static bool send_deallocate(PGconn *connection)
{
    return send_once(connection, "DEALLOCATE ALL");
}

bool statements_send_setup(PGconn *connection, enum statement_role role, const char *schema,
                           int64_t schema_id)
{
    char *quoted = PQescapeIdentifier(connection, schema, strlen(schema));
    struct home home = {.quoted = quoted, .schema_id = schema_id};
    bool sent =
        quoted != NULL && send_deallocate(connection) && send_once(connection, settings[role]);

    for (size_t i = 0; sent && i < STATEMENT_COUNT; i++)
        if (statements[i].role == role)
            sent = send_prepare(connection, &statements[i], &home);
    if (sent && role == ROLE_CONTROL)
        sent = send_listen(connection, &home);
    sent = sent && send_identity(connection, &home);
    PQfreemem(quoted);
    return sent;
}
