/* session: one client, from its first byte to the end of its attempts.
 *
 * What: the table of sessions and, for each, its state, the requests it waits for, the attempts it
 * holds, and its credit. Every frame passes sessions_take_request; every answer passes
 * sessions_answer. States: NEW (waits for Hello) -> OPEN -> LEAVING (Goodbye, or the proxy drains:
 * no new claims; what is unanswered is answered, what is held is handed back) -> CLOSED (told to
 * close, nothing is read any more). OPEN -> AWAY: its connection is gone, whoever ended it; what
 * was unanswered is answered to nobody, its attempts wait grace_us for a Hello with its id. Then
 * they end as lost with their worker; those whose ClaimOk never left the proxy go back at once.
 * To resume moves id and attempts to the new connection's session; one that is still OPEN is made
 * AWAY first (the new connection knows better). So each connection has a session of its own, and
 * each id is one session's.
 * Invariants: a request is answered exactly once, or its connection is gone; a request id is in use
 * once per session; a session that has used up its credit is not read until answers have gone out;
 * what vanished sessions have left takes LEFT_BYTES_MAX at most, or no time;
 * one that has DEALT_BYTES_MAX of answers unsent is behind, and gets no jobs before it has read;
 * Finish, Release, Heartbeat, CancelRequest and Ping cost no credit. A session without attempts
 * ends with its connection: there is nothing to keep.
 * Not here: what requests do (enqueuer, finisher, broker, counter).
 */
#ifndef CORE_SESSION_H
#define CORE_SESSION_H

#include "base/hash.h"
#include "base/timers.h"
#include "core/attempts.h"
#include "core/env.h"
#include "core/request.h"

struct sessions;

enum session_state {
    SESSION_NEW,
    SESSION_OPEN,
    SESSION_LEAVING,
    SESSION_AWAY,
    SESSION_CLOSED,
    SESSION_STATES,
};

struct session {
    struct sessions *sessions;
    handle self;
    handle connection;
    enum session_state state;
    struct timer patience;  /* Hello deadline, then the idle time-out, then the grace */
    struct hash_node by_id; /* sessions->ids: while OPEN or AWAY */
    uint64_t heard_us;
    struct list requests;
    struct list attempts;
    struct list seats; /* broker: one per claim group it waits in */
    size_t claims_waiting;
    size_t jobs_wanted; /* by these claims: attempts that are reserved */
    size_t credit_requests;
    size_t credit_bytes;
    size_t finish_items;
    uint64_t goodbye_id; /* 0: it did not ask to leave */
    bool handing_back;
    bool reading;
    bool behind; /* its client does not read what it is sent */
    uint8_t id[SESSION_ID_BYTES];
};

/* What sessions need from the modules that do the work. */
struct session_handlers {
    void *ctx;
    void (*take)(void *ctx, struct session *session,
                 struct request *request);                  /* Enqueue … QueueCounts */
    void (*end_claims)(void *ctx, struct session *session); /* answer them empty */
    void (*end_claim)(void *ctx, struct request *request);  /* this one */
    void (*pace)(void *ctx, struct session *session);       /* session->behind has changed */
    /* Nobody waits for its answer: ends what was not sent to the database; may free it. */
    void (*forget)(void *ctx, struct request *request);
    /* Ends all attempts of the list, which is empty then; tells that session (HANDLE_NONE: nobody)
     * with sessions_handed_back. */
    void (*hand_back)(void *ctx, struct list *attempts, enum job_outcome as, handle tell);
};

struct sessions {
    const struct env *env;
    struct timers *timers;
    struct session_handlers handlers;
    struct attempts *attempts;
    struct slots table;
    struct hash requests; /* by session and request id */
    struct hash ids;      /* sessions that can be resumed, by their id */
    size_t in_state[SESSION_STATES];
    size_t left_bytes; /* requests whose session has gone, as long as they take */
    uint64_t grace_us;
};

struct sessions_setup {
    const struct env *env;
    struct timers *timers;
    struct attempts *attempts;
    struct session_handlers handlers;
    uint64_t grace_us;
};

void sessions_init(struct sessions *sessions, const struct sessions_setup *setup);
void sessions_free(struct sessions *sessions);

/* HANDLE_NONE when there is no room for one more handshake: the caller says so and closes. */
handle session_open(struct sessions *sessions, handle connection);

/* The connection is gone, whatever the reason. */
void session_vanished(struct sessions *sessions, handle who);

/* Less than DEALT_BYTES_MAX of its connection's output is unsent, again. */
void session_caught_up(struct sessions *sessions, handle who);

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

/* The session whose list of attempts this is. */
handle sessions_owner(const struct list *attempts);

/* Tells the owner of the attempt, if it can hear, that somebody else ended it. */
void sessions_tell_lost(struct sessions *sessions, const struct attempt *attempt);

/* SIGTERM: every session is told, claims end, new work is refused, a session that holds nothing is
 * closed; nobody can come back, so what vanished sessions hold is handed back. force: so is what is
 * held by those that are there. May be called again. */
void sessions_drain(struct sessions *sessions, bool force);

#endif
