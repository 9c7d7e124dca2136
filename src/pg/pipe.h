/* pipe: one connection to Postgres in pipeline mode, and the FIFO of answers it owes.
 *
 * What: looks the hosts' names up (lookup.h), connects without blocking, refuses a schema that this
 * binary does not fit (schema.h), prepares the statements of its role, then carries calls. One call
 * is one statement and one Sync: its own transaction. Its done() is called when the Sync's answer
 * arrived, so a result is acted on only after its commit. Every result says which backend ran the
 * call. A call whose prepared statement is gone (DISCARD, DEALLOCATE), or was of another schema,
 * surely was not run: the pipe is sent nothing more, reads what it owes (ENDING: those behind such
 * a call were not run either) and breaks; the calls are replayed once on another
 * (pipe_take_replay). When the connection breaks, or the oldest call has been first in line for
 * longer than its deadline (packets may get lost without a close), the pipe only notes it
 * (PIPE_BROKEN). Its owner sees that at the end of the turn and calls pipe_fail_owed: UNKNOWN where
 * the Sync was already handed to libpq, which may have sent it, else NOT_DONE. States: RESOLVING ->
 * CONNECTING -> CHECKING -> PREPARING -> READY -> ENDING -> BROKEN, and from each to BROKEN; why is
 * said by what ended it first. Never reused. Owner: pool. done() may submit to the pool again,
 * which sends later, never from inside done(). Notifications are handed on as they come.
 */
#ifndef PG_PIPE_H
#define PG_PIPE_H

#include <stdbool.h>
#include <stdint.h>

#include <libpq-fe.h>

#include "base/backend.h"
#include "base/err.h"
#include "base/list.h"
#include "base/outcome.h"
#include "ev/loop.h"
#include "pg/lookup.h"
#include "pg/params.h"
#include "pg/statements.h"

enum pipe_state {
    PIPE_RESOLVING,
    PIPE_CONNECTING,
    PIPE_CHECKING,
    PIPE_PREPARING,
    PIPE_READY,
    PIPE_ENDING,
    PIPE_BROKEN
};

struct pipe_result {
    enum outcome outcome;
    struct backend backend; /* pid 0: it was never sent, or nobody needs to be asked about it */
    const PGresult *rows;   /* with OUTCOME_DONE; valid during done() */
    struct err err;         /* otherwise */
};

/* Owned by the caller; must stay put until done(). */
struct pipe_call {
    struct list_node node; /* pool->waiting or pipe->owed */
    enum statement_id statement;
    void (*encode)(struct pipe_call *call, struct params *params); /* when it is sent */
    void (*done)(struct pipe_call *call, const struct pipe_result *result);
    /* Whether this backend may run it; NULL: any. Where not, it is NOT_DONE. */
    bool (*suits)(const struct pipe_call *call, const struct backend *backend);
    uint32_t deadline_ms; /* once it is first in line */
    uint64_t since_us;    /* waiting, later sent or first in line */
    bool synced;          /* the commit may have left */
    bool replayed;
};

struct pipe;

struct pipe_setup {
    struct loop *loop;
    const char *url;
    unsigned attempt; /* decides which host is tried first (hosts.h) */
    struct lookups *lookups;
    const char *schema;
    enum statement_role role;
    struct params *params;                                           /* scratch, shared */
    void (*on_notified)(void *ctx, int by_pid, const char *payload); /* may be NULL */
    void *ctx;
};

struct pipe *pipe_new(const struct pipe_setup *setup);
void pipe_free(struct pipe *pipe); /* owes nothing any more */

enum pipe_state pipe_state(const struct pipe *pipe);
size_t pipe_owed(const struct pipe *pipe);
const struct err *pipe_err(const struct pipe *pipe);         /* why it broke */
const char *pipe_database(const struct pipe *pipe);          /* its name; never NULL */
const struct backend *pipe_backend(const struct pipe *pipe); /* pid 0 before PIPE_READY */

/* Whether somebody between us and the server has given us a number of its own. Only in PIPE_READY.
 */
bool pipe_is_pooled(const struct pipe *pipe);

/* Only in PIPE_READY and below PIPE_SEGMENTS_MAX. */
void pipe_send(struct pipe *pipe, struct pipe_call *call);

/* Breaks it when it has been connecting, or the oldest call has been first in line, for too long.
 */
void pipe_check_deadline(struct pipe *pipe, uint64_t now_us);

/* Gives it up, for this reason. Already broken: nothing. */
void pipe_break(struct pipe *pipe, const struct err *err);

/* Only in PIPE_BROKEN. */
void pipe_fail_owed(struct pipe *pipe);

/* The next call that is to be sent again elsewhere, or NULL: all of them before pipe_free. */
struct pipe_call *pipe_take_replay(struct pipe *pipe);

#endif
