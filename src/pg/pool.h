/* pool: a fixed number of places for connections (pipe.h) and the calls that wait for one.
 *
 * What: calls are queued by pool_submit and sent by pool_dispatch at the end of the turn: to an
 * idle connection if there is one; else a further one is opened, and meanwhile the call is
 * pipelined behind the least busy. A lost connection is replaced with jittered back-off, for ever.
 * A call that no connection takes within WAIT_MS is answered NOT_DONE with the server's own last
 * words. A connection that has reached its age is replaced, one at a time, and only when another
 * serves, where there is room for one. Used twice: for the data connections, and with size 1 for
 * the control connection, which does not age: the lead and the locks hang on it. A server
 * that turned read only (after a failover) is left with all connections: each new one looks the
 * host up again. Of several hosts libpq tries one after the other, but one that takes the
 * connection and then says nothing keeps it for ever: so the next try begins with the next host,
 * or address of it (hosts.h).
 * Limits: PIPE_SEGMENTS_MAX calls a connection; how many wait is bounded by core, which owns every
 * call.
 */
#ifndef PG_POOL_H
#define PG_POOL_H

#include "base/rng.h"
#include "pg/pipe.h"

struct pool;

struct pool_setup {
    struct loop *loop;
    struct rng *rng;
    struct params *params;
    const char *url;
    const char *schema;
    const char *name; /* in the log */
    enum statement_role role;
    size_t size;
    uint32_t lifetime_ms; /* of a connection; 0: it does not age */
    bool bound; /* a call belongs to the connection: it fails with it even before it was sent */
    void (*on_up)(void *ctx, const char *database); /* a connection became ready */
    void (*on_lost)(void *ctx); /* a ready one was lost; called before its calls fail */
    /* A server refused to write, or its schema was made anew: no connection to it is good. */
    void (*on_useless)(void *ctx, const struct err *err, const struct server_run *server);
    void (*on_notified)(void *ctx, int by_pid, const char *payload); /* may be NULL */
    void *ctx;
};

struct pool *pool_new(const struct pool_setup *setup);

/* Calls that still wait are failed as NOT_DONE; none may be running. */
void pool_free(struct pool *pool);

void pool_submit(struct pool *pool, struct pipe_call *call);

/* How many further calls could start at once. */
unsigned pool_idle(const struct pool *pool);

bool pool_has_backend(const struct pool *pool, int pid);

/* Gives up every connection, or every one to this server (NULL: any), for this reason: at once when
 * it is idle or its calls are bound to it, else when they have been answered. Others replace them.
 */
void pool_leave(struct pool *pool, const struct err *why, const struct server_run *server);

/* How many calls wait or run. */
size_t pool_running(const struct pool *pool);

/* Turn hooks: buries broken connections and fails what they owed; and sends what waits. */
void pool_reap(struct pool *pool);
void pool_dispatch(struct pool *pool);

#endif
