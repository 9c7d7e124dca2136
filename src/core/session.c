/* session: see session.h. */
#include "core/session.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

static uint64_t now_us(const struct sessions *sessions)
{
    return sessions->env->now_us(sessions->env->ctx);
}

static void set_state(struct session *session, enum session_state next)
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

/* Whether there is a connection that reads and is read. */
static bool is_connected(const struct session *session)
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

static bool can_be_resumed(const struct session *session)
{
    return session->state == SESSION_OPEN || session->state == SESSION_AWAY;
}

struct session *session_of(const struct sessions *sessions, handle session)
{
    return slots_get(&sessions->table, session);
}

/* ---- saying things ---- */

static uint64_t send(const struct session *session, uint64_t request_id,
                     const struct answer *answer)
{
    const struct env *env = session->sessions->env;
    return env->send(env->ctx, session->connection, request_id, answer);
}

static void send_notice(const struct session *session, enum notice_kind kind, struct bytes receipt)
{
    struct answer answer = {.kind = ANSWER_NOTICE, .of.notice = {kind, receipt}};
    send(session, 0, &answer);
}

/* ---- credit ---- */

static bool has_credit(const struct session *session)
{
    return session->credit_requests < CREDIT_REQUESTS && session->credit_bytes < CREDIT_BYTES &&
           session->finish_items < FINISH_ITEMS_PER_SESSION_MAX;
}

static void update_reading(struct session *session)
{
    const struct env *env = session->sessions->env;
    bool reading = has_credit(session);

    if (reading == session->reading || !is_connected(session))
        return;
    session->reading = reading;
    env->set_reading(env->ctx, session->connection, reading);
}

static bool costs_credit(const struct request *request)
{
    return request->kind == REQUEST_ENQUEUE || request->kind == REQUEST_COUNTS;
}

static bool is_finish(const struct request *request)
{
    return request->kind == REQUEST_FINISH || request->kind == REQUEST_RELEASE;
}

static void take_credit(struct session *session, const struct request *request)
{
    if (costs_credit(request)) {
        session->credit_requests++;
        session->credit_bytes += request->frame_bytes;
    }
    if (is_finish(request))
        session->finish_items += request->in.finish.count;
    update_reading(session);
}

static void give_credit(struct session *session, const struct request *request)
{
    if (costs_credit(request)) {
        CHECK(session->credit_requests > 0 && session->credit_bytes >= request->frame_bytes);
        session->credit_requests--;
        session->credit_bytes -= request->frame_bytes;
    }
    if (is_finish(request))
        session->finish_items -= request->in.finish.count;
    update_reading(session);
}

/* ---- what is unanswered ---- */

static uint64_t request_hash(const struct sessions *sessions, handle session, uint64_t request_id)
{
    return hash_of_u64(&sessions->requests, session, request_id);
}

static bool id_in_use(const struct sessions *sessions, handle session, uint64_t request_id)
{
    uint64_t hash = request_hash(sessions, session, request_id);

    for (struct hash_node *node = hash_first(&sessions->requests, hash); node != NULL;
         node = hash_next(node)) {
        struct request *request = CONTAINER_OF(node, struct request, by_id);
        if (request->session == session && request->id == request_id)
            return true;
    }
    return false;
}

static void attach(struct session *session, struct request *request)
{
    struct sessions *sessions = session->sessions;

    request->session = session->self;
    list_push_back(&session->requests, &request->node);
    hash_add(&sessions->requests, &request->by_id,
             request_hash(sessions, session->self, request->id));
    take_credit(session, request);
}

static void detach(struct session *session, struct request *request)
{
    hash_remove(&session->sessions->requests, &request->by_id);
    list_remove(&session->requests, &request->node);
    request->session = HANDLE_NONE;
    give_credit(session, request);
}

/* ---- losing the connection ---- */

static uint64_t id_hash(const struct sessions *sessions, const uint8_t *id)
{
    return hash_of_bytes(&sessions->ids, bytes_of(id, SESSION_ID_BYTES));
}

static void hand_back(struct session *session, enum job_outcome as, handle tell)
{
    const struct session_handlers *handlers = &session->sessions->handlers;
    handlers->hand_back(handlers->ctx, &session->attempts, as, tell);
}

/* Nobody can name it any more. */
static void free_session(struct session *session)
{
    struct sessions *sessions = session->sessions;

    CHECK(session->attempts.count == 0 && session->seats.count == 0);
    CHECK(session->requests.count == 0);
    if (can_be_resumed(session))
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
        detach(session, CONTAINER_OF(session->requests.first, struct request, node));
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

/* From here on it is its id and its attempts. */
static void lose_connection(struct session *session)
{
    struct sessions *sessions = session->sessions;

    set_state(session, SESSION_AWAY);
    drop_requests(session);
    hand_back_unsent(session);
    session->connection = HANDLE_NONE;
    timer_set(sessions->timers, &session->patience, now_us(sessions) + sessions->grace_us);
}

static void end_away(struct session *session, enum job_outcome as)
{
    if (session->attempts.count > 0)
        log_event(LOG_INFO, "session_ended", "attempts=%zu ended_as=%s", session->attempts.count,
                  as == JOB_RELEASE ? "released" : "worker_lost");
    hand_back(session, as, HANDLE_NONE);
    free_session(session);
}

static void close_session(struct session *session)
{
    const struct env *env = session->sessions->env;
    handle connection = session->connection;

    if (session->state == SESSION_OPEN) {
        lose_connection(session);
        if (session->attempts.count == 0)
            free_session(session);
    } else {
        set_state(session, SESSION_CLOSED);
        timer_stop(session->sessions->timers, &session->patience);
        drop_requests(session);
    }
    env->close(env->ctx, connection);
}

/* The connection's own error: one frame with request id 0, then the close. */
static void close_with(struct session *session, const struct err *err)
{
    struct answer answer = {.kind = ANSWER_ERROR, .of.err = err};

    send(session, 0, &answer);
    close_session(session);
}

void session_refuse(struct sessions *sessions, handle who, uint64_t request_id,
                    const struct err *err)
{
    struct session *session = session_of(sessions, who);
    struct answer answer = {.kind = ANSWER_ERROR, .of.err = err};

    if (session == NULL || !is_connected(session))
        return;
    session->heard_us = now_us(sessions);
    send(session, request_id, &answer);
    if (request_id == 0 || session->state == SESSION_NEW)
        close_session(session);
}

void session_vanished(struct sessions *sessions, handle who)
{
    struct session *session = session_of(sessions, who);

    if (session == NULL || session->state == SESSION_AWAY)
        return;
    if (session->state == SESSION_OPEN) {
        lose_connection(session);
        if (session->attempts.count == 0)
            free_session(session);
        return;
    }
    if (session->state != SESSION_CLOSED)
        set_state(session, SESSION_CLOSED);
    drop_requests(session);
    hand_back(session, JOB_RELEASE, HANDLE_NONE);
    free_session(session);
}

/* ---- leaving ---- */

static void finish_leaving(struct session *session, size_t released)
{
    struct answer answer = {.kind = ANSWER_GOODBYE};
    struct err err;

    if (session->goodbye_id != 0) {
        answer.of.released = (uint32_t)released;
        send(session, session->goodbye_id, &answer);
        close_session(session);
        return;
    }
    err_set(&err, CODE_UNAVAILABLE, "the proxy is shutting down: connect again");
    close_with(session, &err);
}

/* A leaving session goes when nothing is unanswered and nothing is held. One that leaves because
 * the proxy drains may first finish what it holds; one that said Goodbye hands it back. */
static void try_to_leave(struct session *session)
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
    hand_back(session, JOB_RELEASE, session->self);
}

void sessions_handed_back(struct sessions *sessions, handle who, size_t released)
{
    struct session *session = session_of(sessions, who);

    if (session != NULL && session->state == SESSION_LEAVING)
        finish_leaving(session, released);
}

static void start_leaving(struct session *session)
{
    struct sessions *sessions = session->sessions;

    if (can_be_resumed(session))
        hash_remove(&sessions->ids, &session->by_id);
    set_state(session, SESSION_LEAVING);
    sessions->handlers.end_claims(sessions->handlers.ctx, session);
    try_to_leave(session);
}

static void drain_session(struct session *session, bool force)
{
    switch (session->state) {
    case SESSION_OPEN:
        send_notice(session, NOTICE_DRAINING, (struct bytes){NULL, 0});
        start_leaving(session);
        break;
    case SESSION_NEW: start_leaving(session); break;
    case SESSION_AWAY: end_away(session, JOB_RELEASE); return;
    case SESSION_LEAVING:
    case SESSION_CLOSED:
    case SESSION_STATES: break;
    }
    if (!force || session->state != SESSION_LEAVING || session->handing_back)
        return;
    session->handing_back = true;
    hand_back(session, JOB_RELEASE, session->self);
}

void sessions_drain(struct sessions *sessions, bool force)
{
    sessions->draining = true;
    for (uint32_t i = 0; i < sessions->table.size; i++) {
        struct session *session = slots_at(&sessions->table, i);
        if (session != NULL)
            drain_session(session, force);
    }
}

/* ---- requests ---- */

/* The jobs of a ClaimOk are the newest attempts of the session. */
static void send_answer(struct session *session, uint64_t request_id, const struct answer *answer)
{
    uint64_t end = send(session, request_id, answer);

    if (answer->kind == ANSWER_CLAIM)
        attempts_note_sent(&session->attempts, answer->of.claim.count, end);
}

void sessions_answer(struct sessions *sessions, struct request *request,
                     const struct answer *answer)
{
    struct session *session = session_of(sessions, request->session);

    if (session != NULL) {
        detach(session, request);
        if (is_connected(session))
            send_answer(session, request->id, answer);
        try_to_leave(session);
    }
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
    for (struct hash_node *node = hash_first(&sessions->ids, id_hash(sessions, id.data));
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

    hash_add(&sessions->ids, &session->by_id, id_hash(sessions, session->id));
    set_state(session, SESSION_OPEN);
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
    send(old, 0, &answer);
    lose_connection(old);
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
    hand_back(old, JOB_RELEASE, HANDLE_NONE);
    free_session(old);
}

static void tell_what_is_lost(const struct session *session, const struct request *request)
{
    const struct held_receipt *held = request->in.hello.held;

    for (size_t i = 0; i < request->in.hello.held_count; i++)
        if (held_attempt(session, &held[i]) == NULL)
            send_notice(session, NOTICE_ATTEMPT_LOST, held[i].token);
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
    send(session, request->id, &answer);
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
    close_with(session, &err);
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
    if (id_in_use(session->sessions, session->self, request->id) ||
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
        start_leaving(session);
    else
        try_to_leave(session);
}

static void take_heartbeat(const struct session *session, struct request *request)
{
    size_t count = request->in.heartbeat.count;
    enum heartbeat_status *statuses = request_alloc(request, count * sizeof *statuses);
    struct answer answer = {.kind = ANSWER_HEARTBEAT, .of.heartbeat = {statuses, count}};

    for (size_t i = 0; i < count; i++)
        statuses[i] = held_attempt(session, &request->in.heartbeat.items[i]) != NULL
                          ? HEARTBEAT_OK
                          : HEARTBEAT_LOST;
    send(session, request->id, &answer);
}

static void take_cancel(struct session *session, const struct request *request)
{
    const struct session_handlers *handlers = &session->sessions->handlers;
    struct answer answer = {.kind = ANSWER_CANCEL};

    answer.of.cancelled = handlers->end_claim(handlers->ctx, session, request->in.cancel_id);
    send(session, request->id, &answer);
}

static void take_open(struct session *session, struct request *request)
{
    struct sessions *sessions = session->sessions;
    struct answer pong = {.kind = ANSWER_PONG};

    switch (request->kind) {
    case REQUEST_HELLO: UNREACHABLE("refused before");
    case REQUEST_PING: send(session, request->id, &pong); break;
    case REQUEST_GOODBYE: take_goodbye(session, request); break;
    case REQUEST_HEARTBEAT: take_heartbeat(session, request); break;
    case REQUEST_CANCEL: take_cancel(session, request); break;
    case REQUEST_ENQUEUE:
    case REQUEST_CLAIM:
    case REQUEST_FINISH:
    case REQUEST_RELEASE:
    case REQUEST_COUNTS:
        attach(session, request);
        sessions->handlers.take(sessions->handlers.ctx, session, request);
        return; /* the module ends it */
    }
    request_free(request);
}

void sessions_take_request(struct sessions *sessions, handle who, struct request *request)
{
    struct session *session = session_of(sessions, who);
    struct err err;

    if (session == NULL || !is_connected(session)) {
        request_free(request);
        return;
    }
    session->heard_us = now_us(sessions);
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

    if (session->requests.count > 0)
        session->heard_us = now; /* we owe it an answer: silence is its right */
    if (now >= session->heard_us + idle_us) {
        err_set(&err, CODE_DEADLINE_EXCEEDED, "silent for %d ms: send Ping", IDLE_TIMEOUT_MS);
        close_with(session, &err);
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
        close_with(session, &err);
        return;
    case SESSION_OPEN:
    case SESSION_LEAVING: look_at_silence(session, now); return;
    case SESSION_AWAY: end_away(session, JOB_WORKER_LOST); return;
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
    session->heard_us = now_us(sessions);
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
    const struct session *session = session_of(sessions, sessions_owner(attempt->owner));
    uint8_t token[RECEIPT_BYTES];

    if (session == NULL || !is_connected(session))
        return;
    receipt_encode(&attempt->receipt, token);
    send_notice(session, NOTICE_ATTEMPT_LOST, bytes_of(token, sizeof token));
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
    slots_free(&sessions->table);
    hash_free(&sessions->requests);
    hash_free(&sessions->ids);
}
