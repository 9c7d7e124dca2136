/* backend: who ran a transaction: a process of Postgres, and the server it belongs to.
 *
 * Why: a call whose outcome is unknown is resolved only after the process that ran it is surely
 * gone, and what one server, or schema, says of ids that another one gave out proves nothing. Times
 * are Postgres' own (µs since 2000), never compared with our clock. A pid alone does not name a
 * process: it is used again; with its start it does.
 */
#ifndef BASE_BACKEND_H
#define BASE_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

struct server_run { /* one run of one server, and in it one schema of one database */
    int64_t started;
    int32_t timeline;
    int64_t schema_id; /* schema_id() of the storage */
};

struct backend {
    int32_t pid; /* 0: not known, or it does not matter */
    int64_t started;
    struct server_run server;
};

static inline bool backend_equal(const struct backend *a, const struct backend *b)
{
    return a->pid == b->pid && a->started == b->started;
}

static inline bool server_run_equal(const struct server_run *a, const struct server_run *b)
{
    return a->started == b->started && a->timeline == b->timeline && a->schema_id == b->schema_id;
}

#endif
