/* statements: the table of SQL the daemon speaks (statements.def), and its preparation on a
 * connection.
 *
 * Why prepared once per connection: parsing per call costs more than most calls. Why never cached
 * beyond the connection: a plan dies with its session.
 */
#ifndef PG_STATEMENTS_H
#define PG_STATEMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include <libpq-fe.h>

enum statement_role { ROLE_DATA, ROLE_CONTROL };

enum statement_id {
#define STATEMENT(id, role, select, call, ...) STATEMENT_##id,
#include "pg/statements.def"
#undef STATEMENT
    STATEMENT_COUNT,
};

const char *statement_name(enum statement_id id);

/* On which connections it is prepared. */
enum statement_role statement_role(enum statement_id id);

/* Queues the end of what was prepared before, the session settings, every statement of the role,
 * for a control connection that it listens, and last the question who we are talking to, whose
 * answer is backend_identity()'s (no Sync). Each statement fails with SQLSTATE_OTHER_SCHEMA once
 * the schema is another one than schema_id. False: libpq refused. */
bool statements_send_setup(PGconn *connection, enum statement_role role, const char *schema,
                           int64_t schema_id);

#endif
