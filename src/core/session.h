/* session: one connected client, from its first byte to its last answer.
 *
 * What: the table of sessions and, for each, its state, the requests it waits for, the attempts it
 * holds, and its credit. Every frame passes sessions_take_request; every answer passes
 * sessions_answer. States: NEW (waits for Hello) -> OPEN -> LEAVING (Goodbye, or the proxy drains:
 * no new claims; what is unanswered is answered, what is held is handed back) -> CLOSED (told to
 * close, nothing is read any more). Invariants: a request is answered exactly once; a request id is
 * in use once per session; a session that has used up its credit is not read until answers have
 * gone out; Finish, Release and Ping cost no credit. Not here: what requests do (enqueuer,
 * finisher, broker, counter).
 */
#ifndef CORE_SESSION_H
#define CORE_SESSION_H

#include "base/hash.h"
#include "base/timers.h"
#include "core/attempts.h"
#include "core/env.h"
#include "core/request.h"

struct sessions;

enum session_state { SESSION_NEW, SESSION_OPEN, SESSION_LEAVING, SESSION_CLOSED };

struct session {
    struct sessions *sessions;
    handle self;
    handle connection;
    enum session_state state;
    struct timer silence; /* Hello deadline, later the idle time-out */
    uint64_t heard_us;
    struct list requests;
    struct list attempts;
    struct list seats; /* broker: one per claim group it waits in */
    size_t claims_waiting;
    size_t credit_requests;
    size_t credit_bytes;
    size_t finish_items;
    uint64_t goodbye_id; /* 0: it did not ask to leave */
    bool handing_back;
    bool reading;
    uint8_t id[SESSION_ID_BYTES];
};

/* What sessions need from the modules that do the work. */
struct session_handlers {
    void *ctx;
    void (*take)(void *ctx, struct session *session,
                 struct request *request);                  /* Enqueue … QueueCounts */
    void (*end_claims)(void *ctx, struct session *session); /* answer them empty */
    void (*hand_back)(void *ctx,
                      struct session *session); /* all attempts; then sessions_handed_back */
};

struct sessions {
    const struct env *env;
    struct timers *timers;
    struct session_handlers handlers;
    struct slots table;
    struct hash requests; /* by session and request id */
    bool draining;
};

struct sessions_setup {
    const struct env *env;
    struct timers *timers;
    struct session_handlers handlers;
};

void sessions_init(struct sessions *sessions, const struct sessions_setup *setup);
void sessions_free(struct sessions *sessions);

/* HANDLE_NONE when SESSIONS_MAX are connected: the caller says so and closes. */
handle session_open(struct sessions *sessions, handle connection);

/* The connection is gone, whatever the reason: claims end, attempts go back, answers go nowhere. */
void session_vanished(struct sessions *sessions, handle who);

/* One request, decoded and checked. */
void sessions_take_request(struct sessions *sessions, handle who, struct request *request);

/* A frame that cannot be a request: answered under its id (0: the connection's own error, then
 * close). */
void session_refuse(struct sessions *sessions, handle who, uint64_t request_id,
                    const struct err *err);

/* Sends the answer of a request (nowhere, if its session is gone) and frees the request. */
void sessions_answer(struct sessions *sessions, struct request *request,
                     const struct answer *answer);
void sessions_answer_err(struct sessions *sessions, struct request *request, const struct err *err);

struct session *session_of(const struct sessions *sessions, handle session);

void sessions_handed_back(struct sessions *sessions, handle who, size_t released);

/* SIGTERM: claims end, new work is refused, a session that holds nothing is closed. force: what is
 * held is handed back now. */
void sessions_drain(struct sessions *sessions, bool force);

#endif
