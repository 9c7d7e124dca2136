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

static int type_count(const struct statement *statement)
{
    int count = 0;
    while (count < PARAMS_MAX && statement->types[count] != PG_NONE)
        count++;
    return count;
}

static bool send_prepare(PGconn *connection, const struct statement *statement,
                         const char *quoted_schema)
{
    size_t size =
        strlen(statement->select) + strlen(quoted_schema) + strlen(statement->call) + sizeof " .";
    char *text = mem_alloc(size);

    snprintf(text, size, "%s %s.%s", statement->select, quoted_schema, statement->call);
    int sent =
        PQsendPrepare(connection, statement->name, text, type_count(statement), statement->types);
    mem_free(text);
    return sent == 1;
}

/* In the storage's own words: only it knows the channel. */
static bool send_listen(PGconn *connection, const char *quoted_schema)
{
    const char select[] = "SELECT ";
    const char call[] = ".listen()";
    size_t size = sizeof select + strlen(quoted_schema) + sizeof call;
    char *text = mem_alloc(size);

    snprintf(text, size, "%s%s%s", select, quoted_schema, call);
    int sent = PQsendQueryParams(connection, text, 0, NULL, NULL, NULL, NULL, 1);
    mem_free(text);
    return sent == 1;
}

/* The server's own word, since a pooler in between gives libpq another pid. */
static bool send_identity(PGconn *connection, const char *quoted_schema)
{
    static const char select[] = "SELECT pid, started, server_started, timeline FROM ";
    static const char function[] = ".backend_identity()";
    size_t size = sizeof select + strlen(quoted_schema) + sizeof function;
    char *text = mem_alloc(size);

    snprintf(text, size, "%s%s%s", select, quoted_schema, function);
    int sent = PQsendQueryParams(connection, text, 0, NULL, NULL, NULL, NULL, 1);
    mem_free(text);
    return sent == 1;
}

/* A pooler in between may hand on a session in which our names are taken, by whatever text. */
static bool send_deallocate(PGconn *connection)
{
    return PQsendQueryParams(connection, "DEALLOCATE ALL", 0, NULL, NULL, NULL, NULL, 1) == 1;
}

bool statements_send_setup(PGconn *connection, enum statement_role role, const char *schema)
{
    char *quoted = PQescapeIdentifier(connection, schema, strlen(schema));
    bool sent = quoted != NULL && send_deallocate(connection) &&
                PQsendQueryParams(connection, settings[role], 0, NULL, NULL, NULL, NULL, 1) == 1;

    for (size_t i = 0; sent && i < STATEMENT_COUNT; i++)
        if (statements[i].role == role)
            sent = send_prepare(connection, &statements[i], quoted);
    if (sent && role == ROLE_CONTROL)
        sent = send_listen(connection, quoted);
    sent = sent && send_identity(connection, quoted);
    PQfreemem(quoted);
    return sent;
}
