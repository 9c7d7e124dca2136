/* session: see session.h. */
#include "core/session.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

static uint64_t now_us(const struct sessions *sessions)
{
    return sessions->env->now_us(sessions->env->ctx);
}

static void set_state(struct session *session, enum session_state next)
{
    static const unsigned legal[] = {
        [SESSION_NEW] = 1u << SESSION_OPEN | 1u << SESSION_LEAVING | 1u << SESSION_CLOSED,
        [SESSION_OPEN] = 1u << SESSION_LEAVING | 1u << SESSION_CLOSED,
        [SESSION_LEAVING] = 1u << SESSION_CLOSED,
        [SESSION_CLOSED] = 0,
    };

    CHECK((legal[session->state] & 1u << next) != 0);
    session->state = next;
}

struct session *session_of(const struct sessions *sessions, handle session)
{
    return slots_get(&sessions->table, session);
}

/* ---- saying things ---- */

static void send(struct session *session, uint64_t request_id, const struct answer *answer)
{
    const struct env *env = session->sessions->env;
    env->send(env->ctx, session->connection, request_id, answer);
}

static void close_session(struct session *session)
{
    struct sessions *sessions = session->sessions;
    const struct env *env = sessions->env;

    set_state(session, SESSION_CLOSED);
    timer_stop(sessions->timers, &session->silence);
    sessions->handlers.end_claims(sessions->handlers.ctx, session); /* answered to nobody */
    env->close(env->ctx, session->connection);
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

    if (session == NULL || session->state == SESSION_CLOSED)
        return;
    session->heard_us = now_us(sessions);
    send(session, request_id, &answer);
    if (request_id == 0 || session->state == SESSION_NEW)
        close_session(session);
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

    if (reading == session->reading || session->state == SESSION_CLOSED)
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
    struct sessions *sessions = session->sessions;

    if (session->state != SESSION_LEAVING || session->requests.count > 0 || session->handing_back)
        return;
    if (session->attempts.count == 0) {
        finish_leaving(session, 0);
        return;
    }
    if (session->goodbye_id == 0)
        return;
    session->handing_back = true;
    sessions->handlers.hand_back(sessions->handlers.ctx, session);
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

    set_state(session, SESSION_LEAVING);
    sessions->handlers.end_claims(sessions->handlers.ctx, session);
    try_to_leave(session);
}

static void drain_session(struct session *session, bool force)
{
    struct sessions *sessions = session->sessions;

    if (session->state == SESSION_NEW || session->state == SESSION_OPEN)
        start_leaving(session);
    if (!force || session->state != SESSION_LEAVING || session->handing_back)
        return;
    session->handing_back = true;
    sessions->handlers.hand_back(sessions->handlers.ctx, session);
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

void sessions_answer(struct sessions *sessions, struct request *request,
                     const struct answer *answer)
{
    struct session *session = session_of(sessions, request->session);

    if (session != NULL) {
        uint64_t id = request->id;
        detach(session, request);
        if (session->state != SESSION_CLOSED)
            send(session, id, answer);
        try_to_leave(session);
    }
    request_free(request);
}

void sessions_answer_err(struct sessions *sessions, struct request *request, const struct err *err)
{
    struct answer answer = {.kind = ANSWER_ERROR, .of.err = err};
    sessions_answer(sessions, request, &answer);
}

static void say_hello(struct session *session, const struct request *request)
{
    struct answer answer = {.kind = ANSWER_HELLO, .of.session_id = session->id};

    set_state(session, SESSION_OPEN);
    send(session, request->id, &answer);
    timer_set(session->sessions->timers, &session->silence,
              session->heard_us + (uint64_t)IDLE_TIMEOUT_MS * US_PER_MS);
}

static void take_first(struct session *session, const struct request *request)
{
    struct err err;

    if (request->kind == REQUEST_HELLO) {
        say_hello(session, request);
        return;
    }
    err_set(&err, CODE_FAILED_PRECONDITION, "the first frame of a connection must be Hello");
    close_with(session, &err);
}

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

static void take_open(struct session *session, struct request *request)
{
    struct sessions *sessions = session->sessions;
    struct answer pong = {.kind = ANSWER_PONG};

    switch (request->kind) {
    case REQUEST_HELLO: UNREACHABLE("refused before");
    case REQUEST_PING: send(session, request->id, &pong); break;
    case REQUEST_GOODBYE: take_goodbye(session, request); break;
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

    if (session == NULL || session->state == SESSION_CLOSED) {
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
static void on_silence(struct timer *timer, uint64_t now)
{
    struct session *session = CONTAINER_OF(timer, struct session, silence);
    uint64_t idle_us = (uint64_t)IDLE_TIMEOUT_MS * US_PER_MS;
    struct err err;

    if (session->state == SESSION_NEW) {
        err_set(&err, CODE_DEADLINE_EXCEEDED, "no Hello within %d ms", HANDSHAKE_MS);
        close_with(session, &err);
        return;
    }
    if (session->requests.count > 0)
        session->heard_us = now; /* we owe it an answer: silence is its right */
    if (now >= session->heard_us + idle_us) {
        err_set(&err, CODE_DEADLINE_EXCEEDED, "silent for %d ms: send Ping", IDLE_TIMEOUT_MS);
        close_with(session, &err);
        return;
    }
    timer_set(session->sessions->timers, timer, session->heard_us + idle_us);
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
    session->heard_us = now_us(sessions);
    session->reading = true;
    session->silence.fire = on_silence;
    for (size_t i = 0; i < SESSION_ID_BYTES; i += sizeof(uint64_t)) {
        uint64_t word = env->random_u64(env->ctx);
        memcpy(session->id + i, &word, sizeof word);
    }
    timer_set(sessions->timers, &session->silence,
              session->heard_us + (uint64_t)HANDSHAKE_MS * US_PER_MS);
    return session->self;
}

void session_vanished(struct sessions *sessions, handle who)
{
    struct session *session = session_of(sessions, who);

    if (session == NULL)
        return;
    if (session->state != SESSION_CLOSED)
        set_state(session, SESSION_CLOSED);
    timer_stop(sessions->timers, &session->silence);
    sessions->handlers.end_claims(sessions->handlers.ctx, session);
    while (session->requests.first != NULL)
        detach(session, CONTAINER_OF(session->requests.first, struct request, node));
    sessions->handlers.hand_back(sessions->handlers.ctx, session);
    CHECK(session->attempts.count == 0 && session->seats.count == 0);
    slots_remove(&sessions->table, who);
    mem_free(session);
}

void sessions_init(struct sessions *sessions, const struct sessions_setup *setup)
{
    *sessions =
        (struct sessions){.env = setup->env, .timers = setup->timers, .handlers = setup->handlers};
    slots_init(&sessions->table, SESSIONS_MAX);
    hash_init(&sessions->requests, setup->env->random_u64(setup->env->ctx));
}

void sessions_free(struct sessions *sessions)
{
    CHECK(sessions->table.count == 0 && sessions->requests.count == 0);
    slots_free(&sessions->table);
    hash_free(&sessions->requests);
}
