/* migrate: brings one schema to the version this binary knows (migrations.h).
 *
 * Synchronous libpq on a connection of its own: this is a command, not part of the daemon's loop.
 * Safe to run twice, and from several processes at once: one works, the others wait a bounded time
 * for it and then find nothing to do. It refuses a schema that is newer than the binary or half
 * installed, and leaves it untouched. Each migration is one transaction.
 */
#ifndef PG_MIGRATE_H
#define PG_MIGRATE_H

#include <stdbool.h>

#include "base/err.h"

enum migrate_mode {
    MIGRATE_APPLY,     /* do it */
    MIGRATE_LIST,      /* say what would be applied */
    MIGRATE_PRINT_SQL, /* write it to stdout as a psql script */
    MIGRATE_REBASE,    /* repair a schema that was moved to another cluster (rebase() in sql/) */
};

struct migrate_request {
    const char *url; /* a libpq connection URL or string */
    const char *schema;
    enum migrate_mode mode;
};

/* Says on stderr which database it works on and what went wrong, on stdout what was done. True when
 * the schema is (or, in the other modes, could be brought) at this binary's version. Passwords are
 * never printed. */
MUST_CHECK bool migrate_run(const struct migrate_request *request);

#endif
