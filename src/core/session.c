/* session: see session.h. */
#include "core/session.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "core/owed.h"
#include "core/parting.h"
#include "core/session_parts.h"

uint64_t sessions_now_us(const struct sessions *sessions)
{
    return sessions->env->now_us(sessions->env->ctx);
}

void session_set_state(struct session *session, enum session_state next)
{
    static const unsigned legal[] = {
        [SESSION_NEW] = 1u << SESSION_OPEN | 1u << SESSION_LEAVING | 1u << SESSION_CLOSED,
        [SESSION_OPEN] = 1u << SESSION_LEAVING | 1u << SESSION_AWAY,
        [SESSION_LEAVING] = 1u << SESSION_CLOSED,
        [SESSION_AWAY] = 0,
        [SESSION_CLOSED] = 0,
    };
    struct sessions *sessions = session->sessions;

    CHECK((legal[session->state] & 1u << next) != 0);
    sessions->in_state[session->state]--;
    sessions->in_state[next]++;
    session->state = next;
}

bool session_is_connected(const struct session *session)
{
    switch (session->state) {
    case SESSION_NEW:
    case SESSION_OPEN:
    case SESSION_LEAVING: return true;
    case SESSION_AWAY:
    case SESSION_CLOSED:
    case SESSION_STATES: break;
    }
    return false;
}

bool session_can_be_resumed(const struct session *session)
{
    return session->state == SESSION_OPEN || session->state == SESSION_AWAY;
}

uint64_t session_id_hash(const struct sessions *sessions, const uint8_t *id)
{
    return hash_of_bytes(&sessions->ids, bytes_of(id, SESSION_ID_BYTES));
}

struct session *session_of(const struct sessions *sessions, handle session)
{
    return slots_get(&sessions->table, session);
}

/* ---- saying things ---- */

/* Whether so much of the output, which ends there, has not left. */
static bool is_behind(const struct session *session, uint64_t output_end)
{
    const struct env *env = session->sessions->env;
    return output_end - env->written(env->ctx, session->connection) >= DEALT_BYTES_MAX;
}

static void set_behind(struct session *session, bool behind)
{
    const struct session_handlers *handlers = &session->sessions->handlers;

    if (session->behind == behind)
        return;
    session->behind = behind;
    handlers->pace(handlers->ctx, session);
}

uint64_t session_send(struct session *session, uint64_t request_id, const struct answer *answer)
{
    const struct env *env = session->sessions->env;
    uint64_t end = env->send(env->ctx, session->connection, request_id, answer);

    if (end != SENT_NOWHERE && is_behind(session, end))
        set_behind(session, true);
    return end;
}

void session_caught_up(struct sessions *sessions, handle who)
{
    struct session *session = session_of(sessions, who);

    if (session != NULL)
        set_behind(session, false);
}

void session_send_notice(struct session *session, enum notice_kind kind, struct bytes receipt)
{
    struct answer answer = {.kind = ANSWER_NOTICE, .of.notice = {kind, receipt}};
    session_send(session, 0, &answer);
}

/* ---- requests ---- */

/* The jobs of a ClaimOk are the newest attempts of the session. */
static void send_answer(struct session *session, uint64_t request_id, const struct answer *answer)
{
    uint64_t end = session_send(session, request_id, answer);

    if (answer->kind == ANSWER_CLAIM)
        attempts_note_sent(&session->attempts, answer->of.claim.count, end);
}

void sessions_answer(struct sessions *sessions, struct request *request,
                     const struct answer *answer)
{
    struct session *session = session_of(sessions, request->session);

    if (session != NULL) {
        owed_remove(session, request);
        if (session_is_connected(session))
            send_answer(session, request->id, answer);
        parting_try_to_leave(session);
    }
    sessions->left_bytes -= request->left_bytes;
    request_free(request);
}

void sessions_answer_err(struct sessions *sessions, struct request *request, const struct err *err)
{
    struct answer answer = {.kind = ANSWER_ERROR, .of.err = err};
    sessions_answer(sessions, request, &answer);
}

/* ---- Hello ---- */

static struct session *find_resumable(const struct sessions *sessions, struct bytes id)
{
    if (id.len != SESSION_ID_BYTES)
        return NULL;
    for (struct hash_node *node = hash_first(&sessions->ids, session_id_hash(sessions, id.data));
         node != NULL; node = hash_next(node)) {
        struct session *session = CONTAINER_OF(node, struct session, by_id);
        if (memcmp(session->id, id.data, SESSION_ID_BYTES) == 0)
            return session;
    }
    return NULL;
}

static void open_session(struct session *session)
{
    struct sessions *sessions = session->sessions;

    hash_add(&sessions->ids, &session->by_id, session_id_hash(sessions, session->id));
    session_set_state(session, SESSION_OPEN);
    timer_set(sessions->timers, &session->patience,
              session->heard_us + (uint64_t)IDLE_TIMEOUT_MS * US_PER_MS);
}

/* A client that comes back while its old connection seems to live knows better: that one is half
 * open. */
static void end_old_connection(struct session *old)
{
    const struct env *env = old->sessions->env;
    handle connection = old->connection;
    struct answer answer = {.kind = ANSWER_ERROR};
    struct err err;

    err_set(&err, CODE_FAILED_PRECONDITION, "another connection has resumed this session");
    answer.of.err = &err;
    session_send(old, 0, &answer);
    parting_lose_connection(old);
    env->close(env->ctx, connection);
}

static struct attempt *held_attempt(const struct session *session, const struct held_receipt *held)
{
    struct attempt *attempt =
        held->valid ? attempts_find(session->sessions->attempts, &held->receipt) : NULL;
    return attempt != NULL && attempt->owner == &session->attempts ? attempt : NULL;
}

/* All attempts, or those that the client says it holds. */
static void take_attempts(struct session *session, struct session *old,
                          const struct request *request)
{
    const struct held_receipt *held = request->in.hello.held;

    while (!request->in.hello.says_held && old->attempts.first != NULL)
        attempt_move(CONTAINER_OF(old->attempts.first, struct attempt, node), &session->attempts);
    for (size_t i = 0; i < request->in.hello.held_count; i++) {
        struct attempt *attempt = held_attempt(old, &held[i]);
        if (attempt != NULL)
            attempt_move(attempt, &session->attempts);
    }
}

/* What the client did not list it never got: nobody works on it. */
static void resume(struct session *session, struct session *old, const struct request *request)
{
    if (old->state == SESSION_OPEN)
        end_old_connection(old);
    take_attempts(session, old, request);
    memcpy(session->id, old->id, SESSION_ID_BYTES);
    parting_hand_back(old, JOB_RELEASE, HANDLE_NONE);
    parting_free(old);
}

static void tell_what_is_lost(struct session *session, const struct request *request)
{
    const struct held_receipt *held = request->in.hello.held;

    for (size_t i = 0; i < request->in.hello.held_count; i++)
        if (held_attempt(session, &held[i]) == NULL)
            session_send_notice(session, NOTICE_ATTEMPT_LOST, held[i].token);
}

static bool is_full(const struct sessions *sessions)
{
    return sessions->in_state[SESSION_OPEN] + sessions->in_state[SESSION_LEAVING] +
               sessions->in_state[SESSION_AWAY] >=
           SESSIONS_MAX;
}

static void take_hello(struct session *session, const struct request *request)
{
    struct sessions *sessions = session->sessions;
    struct session *old = find_resumable(sessions, request->in.hello.session_id);
    struct answer answer = {.kind = ANSWER_HELLO};
    struct err err;

    if (old == NULL && is_full(sessions)) {
        err_set(&err, CODE_RESOURCE_EXHAUSTED,
                "%d sessions are connected, or wait for their client", SESSIONS_MAX);
        session_refuse(sessions, session->self, request->id, &err);
        return;
    }
    if (old != NULL)
        resume(session, old, request);
    open_session(session);
    answer.of.hello.session_id = session->id;
    answer.of.hello.resumed = old != NULL;
    answer.of.hello.grace_ms = (uint32_t)(sessions->grace_us / US_PER_MS);
    session_send(session, request->id, &answer);
    if (old != NULL)
        tell_what_is_lost(session, request);
}

static void take_first(struct session *session, const struct request *request)
{
    struct err err;

    if (request->kind == REQUEST_HELLO) {
        take_hello(session, request);
        return;
    }
    err_set(&err, CODE_FAILED_PRECONDITION, "the first frame of a connection must be Hello");
    parting_close_with(session, &err);
}

/* ---- other requests ---- */

static bool is_work(const struct request *request)
{
    return request->kind == REQUEST_ENQUEUE || request->kind == REQUEST_CLAIM;
}

/* The one error that refuses the request in this state, if any. */
static enum code refuse_reason(const struct session *session, const struct request *request,
                               struct err *err)
{
    if (owed_find(session->sessions, session->self, request->id) != NULL ||
        request->id == session->goodbye_id)
        return err_set(err, CODE_INVALID_ARGUMENT,
                       "request_id %llu is in use by an unanswered request",
                       (unsigned long long)request->id);
    if (request->kind == REQUEST_HELLO)
        return err_set(err, CODE_FAILED_PRECONDITION,
                       "Hello is only the first frame of a connection");
    if (session->goodbye_id != 0 && request->kind != REQUEST_PING)
        return err_set(err, CODE_FAILED_PRECONDITION, "the session has said Goodbye");
    if (session->state == SESSION_LEAVING && is_work(request))
        return err_set(err, CODE_UNAVAILABLE, "the proxy is shutting down: connect again");
    if (request->kind == REQUEST_CLAIM && session->claims_waiting >= CLAIMS_PER_SESSION_MAX)
        return err_set(err, CODE_RESOURCE_EXHAUSTED,
                       "%d claims of this session are waiting already", CLAIMS_PER_SESSION_MAX);
    return CODE_OK;
}

static void take_goodbye(struct session *session, const struct request *request)
{
    session->goodbye_id = request->id;
    if (session->state == SESSION_OPEN)
        parting_start(session);
    else
        parting_try_to_leave(session);
}

static void take_heartbeat(struct session *session, struct request *request)
{
    size_t count = request->in.heartbeat.count;
    enum heartbeat_status *statuses = request_alloc(request, count * sizeof *statuses);
    struct answer answer = {.kind = ANSWER_HEARTBEAT, .of.heartbeat = {statuses, count}};

    for (size_t i = 0; i < count; i++)
        statuses[i] = held_attempt(session, &request->in.heartbeat.items[i]) != NULL
                          ? HEARTBEAT_OK
                          : HEARTBEAT_LOST;
    session_send(session, request->id, &answer);
}

static void take_cancel(struct session *session, const struct request *request)
{
    const struct session_handlers *handlers = &session->sessions->handlers;
    struct request *named = owed_find(session->sessions, session->self, request->in.cancel_id);
    struct answer answer = {.kind = ANSWER_CANCEL};

    answer.of.cancelled = named != NULL && named->kind == REQUEST_CLAIM;
    if (answer.of.cancelled)
        handlers->end_claim(handlers->ctx, named);
    session_send(session, request->id, &answer);
}

static void take_open(struct session *session, struct request *request)
{
    struct sessions *sessions = session->sessions;
    struct answer pong = {.kind = ANSWER_PONG};

    switch (request->kind) {
    case REQUEST_HELLO: UNREACHABLE("refused before");
    case REQUEST_PING: session_send(session, request->id, &pong); break;
    case REQUEST_GOODBYE: take_goodbye(session, request); break;
    case REQUEST_HEARTBEAT: take_heartbeat(session, request); break;
    case REQUEST_CANCEL: take_cancel(session, request); break;
    case REQUEST_ENQUEUE:
    case REQUEST_CLAIM:
    case REQUEST_FINISH:
    case REQUEST_RELEASE:
    case REQUEST_COUNTS:
        owed_add(session, request);
        sessions->handlers.take(sessions->handlers.ctx, session, request);
        return; /* the module ends it */
    }
    request_free(request);
}

void sessions_take_request(struct sessions *sessions, handle who, struct request *request)
{
    struct session *session = session_of(sessions, who);
    struct err err;

    if (session == NULL || !session_is_connected(session)) {
        request_free(request);
        return;
    }
    session->heard_us = sessions_now_us(sessions);
    if (session->state == SESSION_NEW) {
        take_first(session, request);
        request_free(request);
    } else if (refuse_reason(session, request, &err) != CODE_OK) {
        session_refuse(sessions, who, request->id, &err);
        request_free(request);
    } else {
        take_open(session, request);
    }
}

/* ---- coming and going ---- */

/* Set once per time-out, not per frame: it looks when the session was last heard of and sets itself
 * again. */
static void look_at_silence(struct session *session, uint64_t now)
{
    uint64_t idle_us = (uint64_t)IDLE_TIMEOUT_MS * US_PER_MS;
    struct err err;

    if (session->requests.count > 0 || session->goodbye_id != 0)
        session->heard_us = now; /* we owe it an answer: silence is its right */
    if (now >= session->heard_us + idle_us) {
        err_set(&err, CODE_DEADLINE_EXCEEDED, "silent for %d ms: send Ping", IDLE_TIMEOUT_MS);
        parting_close_with(session, &err);
        return;
    }
    timer_set(session->sessions->timers, &session->patience, session->heard_us + idle_us);
}

static void on_patience(struct timer *timer, uint64_t now)
{
    struct session *session = CONTAINER_OF(timer, struct session, patience);
    struct err err;

    switch (session->state) {
    case SESSION_NEW:
        err_set(&err, CODE_DEADLINE_EXCEEDED, "no Hello within %d ms", HANDSHAKE_MS);
        parting_close_with(session, &err);
        return;
    case SESSION_OPEN:
    case SESSION_LEAVING: look_at_silence(session, now); return;
    case SESSION_AWAY: parting_end_away(session, JOB_WORKER_LOST); return;
    case SESSION_CLOSED:
    case SESSION_STATES: break;
    }
    UNREACHABLE("its timer is stopped");
}

handle session_open(struct sessions *sessions, handle connection)
{
    const struct env *env = sessions->env;
    struct session *session = mem_zalloc(sizeof *session);

    session->self = slots_add(&sessions->table, session);
    if (session->self == HANDLE_NONE) {
        mem_free(session);
        return HANDLE_NONE;
    }
    session->sessions = sessions;
    session->connection = connection;
    session->state = SESSION_NEW;
    sessions->in_state[SESSION_NEW]++;
    session->heard_us = sessions_now_us(sessions);
    session->reading = true;
    session->patience.fire = on_patience;
    for (size_t i = 0; i < SESSION_ID_BYTES; i += sizeof(uint64_t)) {
        uint64_t word = env->random_u64(env->ctx);
        memcpy(session->id + i, &word, sizeof word);
    }
    timer_set(sessions->timers, &session->patience,
              session->heard_us + (uint64_t)HANDSHAKE_MS * US_PER_MS);
    return session->self;
}

/* ---- the table ---- */

handle sessions_owner(const struct list *attempts)
{
    return CONTAINER_OF(attempts, struct session, attempts)->self;
}

void sessions_tell_lost(struct sessions *sessions, const struct attempt *attempt)
{
    struct session *session = session_of(sessions, sessions_owner(attempt->owner));
    uint8_t token[RECEIPT_BYTES];

    if (session == NULL || !session_is_connected(session))
        return;
    receipt_encode(&attempt->receipt, token);
    session_send_notice(session, NOTICE_ATTEMPT_LOST, bytes_of(token, sizeof token));
}

void sessions_init(struct sessions *sessions, const struct sessions_setup *setup)
{
    *sessions = (struct sessions){.env = setup->env,
                                  .timers = setup->timers,
                                  .attempts = setup->attempts,
                                  .handlers = setup->handlers,
                                  .grace_us = setup->grace_us};
    slots_init(&sessions->table, SESSIONS_MAX + HANDSHAKES_MAX);
    hash_init(&sessions->requests, setup->env->random_u64(setup->env->ctx));
    hash_init(&sessions->ids, setup->env->random_u64(setup->env->ctx));
}

void sessions_free(struct sessions *sessions)
{
    CHECK(sessions->table.count == 0 && sessions->requests.count == 0 && sessions->ids.count == 0);
    CHECK(sessions->left_bytes == 0);
    slots_free(&sessions->table);
    hash_free(&sessions->requests);
    hash_free(&sessions->ids);
}
