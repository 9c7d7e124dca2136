/* parting: see parting.h. */
#include "core/parting.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "core/owed.h"
#include "core/session_parts.h"

/* ---- losing the connection ---- */

void parting_hand_back(struct session *session, enum job_outcome as, handle tell)
{
    const struct session_handlers *handlers = &session->sessions->handlers;
    handlers->hand_back(handlers->ctx, &session->attempts, as, tell);
}

/* Nobody can name it any more. */
void parting_free(struct session *session)
{
    struct sessions *sessions = session->sessions;

    CHECK(session->attempts.count == 0 && session->seats.count == 0);
    CHECK(session->requests.count == 0);
    if (session_can_be_resumed(session))
        hash_remove(&sessions->ids, &session->by_id);
    timer_stop(sessions->timers, &session->patience);
    sessions->in_state[session->state]--;
    slots_remove(&sessions->table, session->self);
    mem_free(session);
}

/* Answers to nobody what the session waits for. */
static void drop_requests(struct session *session)
{
    const struct session_handlers *handlers = &session->sessions->handlers;

    handlers->end_claims(handlers->ctx, session);
    while (session->requests.first != NULL)
        owed_leave(session, CONTAINER_OF(session->requests.first, struct request, node));
}

/* The client can not have started what was never sent to it. */
static void hand_back_unsent(struct session *session)
{
    const struct session_handlers *handlers = &session->sessions->handlers;
    const struct env *env = session->sessions->env;
    uint64_t written = env->written(env->ctx, session->connection);
    struct list unsent = {NULL, NULL, 0};

    for (struct list_node *node = session->attempts.first, *next; node != NULL; node = next) {
        struct attempt *attempt = CONTAINER_OF(node, struct attempt, node);
        next = node->next;
        if (attempt->sent_at > written)
            attempt_move(attempt, &unsent);
    }
    handlers->hand_back(handlers->ctx, &unsent, JOB_RELEASE, HANDLE_NONE);
}

void parting_lose_connection(struct session *session)
{
    struct sessions *sessions = session->sessions;

    session_set_state(session, SESSION_AWAY);
    drop_requests(session);
    hand_back_unsent(session);
    session->connection = HANDLE_NONE;
    timer_set(sessions->timers, &session->patience, sessions_now_us(sessions) + sessions->grace_us);
}

void parting_end_away(struct session *session, enum job_outcome as)
{
    if (session->attempts.count > 0)
        log_event(LOG_INFO, "session_ended", "attempts=%zu ended_as=%s", session->attempts.count,
                  as == JOB_RELEASE ? "released" : "worker_lost");
    parting_hand_back(session, as, HANDLE_NONE);
    parting_free(session);
}

/* Without attempts there is nothing to come back for. */
static void lose_or_free(struct session *session)
{
    parting_lose_connection(session);
    if (session->attempts.count == 0)
        parting_free(session);
}

static void close_session(struct session *session)
{
    const struct env *env = session->sessions->env;
    handle connection = session->connection;

    if (session->state == SESSION_OPEN) {
        lose_or_free(session);
    } else {
        session_set_state(session, SESSION_CLOSED);
        timer_stop(session->sessions->timers, &session->patience);
        drop_requests(session);
    }
    env->close(env->ctx, connection);
}

void parting_close_with(struct session *session, const struct err *err)
{
    struct answer answer = {.kind = ANSWER_ERROR, .of.err = err};

    session_send(session, 0, &answer);
    close_session(session);
}

void session_refuse(struct sessions *sessions, handle who, uint64_t request_id,
                    const struct err *err)
{
    struct session *session = session_of(sessions, who);
    struct answer answer = {.kind = ANSWER_ERROR, .of.err = err};

    if (session == NULL || !session_is_connected(session))
        return;
    session->heard_us = sessions_now_us(sessions);
    session_send(session, request_id, &answer);
    if (request_id == 0 || session->state == SESSION_NEW)
        close_session(session);
}

void session_vanished(struct sessions *sessions, handle who)
{
    struct session *session = session_of(sessions, who);

    if (session == NULL || session->state == SESSION_AWAY)
        return;
    if (session->state == SESSION_OPEN) {
        lose_or_free(session);
        return;
    }
    if (session->state != SESSION_CLOSED)
        session_set_state(session, SESSION_CLOSED);
    drop_requests(session);
    parting_hand_back(session, JOB_RELEASE, HANDLE_NONE);
    parting_free(session);
}

/* ---- leaving ---- */

static void finish_leaving(struct session *session, size_t released)
{
    struct answer answer = {.kind = ANSWER_GOODBYE};
    struct err err;

    if (session->goodbye_id != 0) {
        answer.of.released = (uint32_t)released;
        session_send(session, session->goodbye_id, &answer);
        close_session(session);
        return;
    }
    err_set(&err, CODE_UNAVAILABLE, "the proxy is shutting down: connect again");
    parting_close_with(session, &err);
}

/* A leaving session goes when nothing is unanswered and nothing is held. One that leaves because
 * the proxy drains may first finish what it holds; one that said Goodbye hands it back. */
void parting_try_to_leave(struct session *session)
{
    if (session->state != SESSION_LEAVING || session->requests.count > 0 || session->handing_back)
        return;
    if (session->attempts.count == 0) {
        finish_leaving(session, 0);
        return;
    }
    if (session->goodbye_id == 0)
        return;
    session->handing_back = true;
    parting_hand_back(session, JOB_RELEASE, session->self);
}

void sessions_handed_back(struct sessions *sessions, handle who, size_t released)
{
    struct session *session = session_of(sessions, who);

    if (session != NULL && session->state == SESSION_LEAVING)
        finish_leaving(session, released);
}

void parting_start(struct session *session)
{
    struct sessions *sessions = session->sessions;

    if (session_can_be_resumed(session))
        hash_remove(&sessions->ids, &session->by_id);
    session_set_state(session, SESSION_LEAVING);
    sessions->handlers.end_claims(sessions->handlers.ctx, session);
    parting_try_to_leave(session);
}

static void drain_session(struct session *session, bool force)
{
    switch (session->state) {
    case SESSION_OPEN:
        session_send_notice(session, NOTICE_DRAINING, (struct bytes){NULL, 0});
        parting_start(session);
        break;
    case SESSION_NEW: parting_start(session); break;
    case SESSION_AWAY: parting_end_away(session, JOB_RELEASE); return;
    case SESSION_LEAVING:
    case SESSION_CLOSED:
    case SESSION_STATES: break;
    }
    if (!force || session->state != SESSION_LEAVING || session->handing_back)
        return;
    session->handing_back = true;
    parting_hand_back(session, JOB_RELEASE, session->self);
}

void sessions_drain(struct sessions *sessions, bool force)
{
    for (uint32_t i = 0; i < sessions->table.size; i++) {
        struct session *session = slots_at(&sessions->table, i);
        if (session != NULL)
            drain_session(session, force);
    }
}
