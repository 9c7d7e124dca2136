/* core_world: a world for core in tests: time that is moved by hand, a database that answers when
 * told, clients that only remember what they were sent. Include it once, in a core_*_test.c. */
#ifndef CORE_WORLD_H
#define CORE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "core/core.h"

enum {
    CALLS_MAX = 64,
    SENT_MAX = 4096,
    CONNECTIONS_MAX = 16,
    UNKNOWN_MAX_US = 15 * 1000 * 1000,
    GRACE_US = 5 * US_PER_S,
};

struct sent {
    handle connection;
    uint64_t request_id;
    enum answer_kind kind;
    size_t count; /* of jobs or results */
    enum code code;
    char message[ERR_MESSAGE_BYTES];
    char sqlstate[SQLSTATE_LEN + 1];
    int64_t first_job_id;
    enum finish_status statuses[8];
    bool flag; /* resumed, cancelled */
    enum notice_kind notice;
    enum heartbeat_status held[8];
};

struct world {
    struct env env;
    struct core core;
    uint64_t now_us;
    uint64_t random;
    unsigned idle;
    unsigned dropped; /* control sessions */
    unsigned joined;
    struct db_call *calls[CALLS_MAX]; /* submitted and not answered */
    size_t call_count;
    struct sent sent[SENT_MAX];
    size_t sent_count;
    bool paused[CONNECTIONS_MAX];
    bool closed[CONNECTIONS_MAX];
    bool stuck[CONNECTIONS_MAX]; /* from then on nothing leaves */
    bool gone[CONNECTIONS_MAX];  /* and core does not know yet */
    uint64_t job_bytes;          /* that each job adds to its ClaimOk */
    uint64_t appended[CONNECTIONS_MAX];
    uint64_t written[CONNECTIONS_MAX];
    uint8_t session_ids[CONNECTIONS_MAX][SESSION_ID_BYTES]; /* as told by HelloOk */
    int64_t next_job_id;
    uint64_t batch_id;      /* of all that is claimed */
    struct backend backend; /* that answers */
};

enum { ANSWER_BYTES = 100 };

static inline uint64_t world_now_us(void *ctx)
{
    return ((struct world *)ctx)->now_us;
}

static inline uint64_t world_random(void *ctx)
{
    struct world *world = ctx;
    world->random = world->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return world->random;
}

static inline void world_submit(void *ctx, struct db_call *call)
{
    struct world *world = ctx;
    assert_true(world->call_count < CALLS_MAX);
    world->calls[world->call_count++] = call;
}

static inline void world_drop_control(void *ctx, const struct err *why)
{
    (void)why;
    ((struct world *)ctx)->dropped++;
}

static inline void world_joined(void *ctx)
{
    ((struct world *)ctx)->joined++;
}

static inline unsigned world_idle(void *ctx)
{
    return ((struct world *)ctx)->idle;
}

static inline void note_results(struct sent *sent, const struct answer *answer)
{
    sent->count = answer->of.finish.count;
    for (size_t i = 0; i < sent->count && i < 8; i++)
        sent->statuses[i] = answer->of.finish.results[i].status;
}

static inline void note_heartbeat(struct sent *sent, const struct answer *answer)
{
    sent->count = answer->of.heartbeat.count;
    for (size_t i = 0; i < sent->count && i < 8; i++)
        sent->held[i] = answer->of.heartbeat.statuses[i];
}

static inline uint64_t world_written(void *ctx, handle connection)
{
    return ((struct world *)ctx)->written[connection];
}

static inline uint64_t world_send(void *ctx, handle connection, uint64_t request_id,
                                  const struct answer *answer)
{
    struct world *world = ctx;
    struct sent *sent = &world->sent[world->sent_count++];

    assert_true(world->sent_count < SENT_MAX);
    *sent = (struct sent){.connection = connection, .request_id = request_id, .kind = answer->kind};
    switch (answer->kind) {
    case ANSWER_ENQUEUE:
        sent->count = answer->of.enqueue.count;
        sent->first_job_id = answer->of.enqueue.results[0].job_id;
        if (answer->of.enqueue.results[0].err != NULL) {
            sent->code = answer->of.enqueue.results[0].err->code;
            memcpy(sent->sqlstate, answer->of.enqueue.results[0].err->sqlstate,
                   sizeof sent->sqlstate);
        }
        break;
    case ANSWER_CLAIM:
        sent->count = answer->of.claim.count;
        sent->first_job_id = sent->count > 0 ? (int64_t)answer->of.claim.first->receipt.job_id : 0;
        break;
    case ANSWER_FINISH:
    case ANSWER_RELEASE: note_results(sent, answer); break;
    case ANSWER_GOODBYE: sent->count = answer->of.released; break;
    case ANSWER_ERROR:
        sent->code = answer->of.err->code;
        memcpy(sent->message, answer->of.err->message, sizeof sent->message);
        break;
    case ANSWER_HELLO:
        sent->flag = answer->of.hello.resumed;
        memcpy(world->session_ids[connection], answer->of.hello.session_id, SESSION_ID_BYTES);
        break;
    case ANSWER_HEARTBEAT: note_heartbeat(sent, answer); break;
    case ANSWER_CANCEL: sent->flag = answer->of.cancelled; break;
    case ANSWER_NOTICE: sent->notice = answer->of.notice.kind; break;
    case ANSWER_PONG:
    case ANSWER_COUNTS: break;
    }
    if (world->gone[connection])
        return SENT_NOWHERE;
    world->appended[connection] += ANSWER_BYTES;
    if (answer->kind == ANSWER_CLAIM)
        world->appended[connection] += answer->of.claim.count * world->job_bytes;
    if (!world->stuck[connection])
        world->written[connection] = world->appended[connection];
    return world->appended[connection];
}

static inline void world_set_reading(void *ctx, handle connection, bool reading)
{
    ((struct world *)ctx)->paused[connection] = !reading;
}

static inline void world_close(void *ctx, handle connection)
{
    ((struct world *)ctx)->closed[connection] = true;
}

static inline struct world *world_new(void)
{
    struct world *world = calloc(1, sizeof *world);
    struct core_setup setup = {.claim_batch_size = 512,
                               .enqueue_batch_size = 512,
                               .completion_batch_size = 512,
                               .completion_shards = 1,
                               .flush_us = 1000,
                               .session_grace_us = GRACE_US,
                               .poll_min_us = 5000,
                               .poll_max_us = 250000,
                               .claims_in_flight_max = 4,
                               .unknown_max_us = UNKNOWN_MAX_US,
                               .joined = world_joined,
                               .joined_ctx = world};

    world->now_us = 1000000;
    world->batch_id = 1;
    world->backend =
        (struct backend){.pid = 100, .started = 5, .server = {.started = 1, .timeline = 1}};
    world->env = (struct env){.ctx = world,
                              .now_us = world_now_us,
                              .random_u64 = world_random,
                              .submit = world_submit,
                              .idle_connections = world_idle,
                              .drop_control = world_drop_control,
                              .send = world_send,
                              .written = world_written,
                              .set_reading = world_set_reading,
                              .close = world_close};
    core_init(&world->core, &world->env, &setup);
    return world;
}

static inline void turn(struct world *world)
{
    core_turn(&world->core);
}

static inline void wait_us(struct world *world, uint64_t us)
{
    world->now_us += us;
    turn(world);
}

/* ---- the database ---- */

static inline struct db_call *call_of(const struct world *world, enum db_op op)
{
    for (size_t i = 0; i < world->call_count; i++)
        if (world->calls[i]->op == op)
            return world->calls[i];
    return NULL;
}

static inline size_t calls_of(const struct world *world, enum db_op op)
{
    size_t count = 0;
    for (size_t i = 0; i < world->call_count; i++)
        count += world->calls[i]->op == op;
    return count;
}

static inline void reply(struct world *world, struct db_call *call, const struct db_reply *with)
{
    for (size_t i = 0; i < world->call_count; i++)
        if (world->calls[i] == call)
            world->calls[i] = world->calls[--world->call_count];
    call->done(call, with);
    turn(world);
}

static inline void fail_call(struct world *world, struct db_call *call, enum outcome outcome,
                             const char *sqlstate)
{
    struct db_reply with = {.outcome = outcome};
    err_set(&with.err, CODE_INTERNAL, "made to fail");
    err_set_sqlstate(&with.err, sqlstate);
    reply(world, call, &with);
}

/* The connection that ran the call is lost after the commit was sent. */
static inline void lose_call(struct world *world, struct db_call *call)
{
    struct db_reply with = {.outcome = OUTCOME_UNKNOWN, .backend = world->backend};
    err_set(&with.err, CODE_UNAVAILABLE, "lost");
    reply(world, call, &with);
}

static inline void reply_gone(struct world *world, bool gone)
{
    struct db_reply with = {.outcome = OUTCOME_DONE, .backend = world->backend, .rows.gone = gone};
    reply(world, call_of(world, DB_BACKEND_GONE), &with);
}

static inline void reply_exist(struct world *world, const bool *exist)
{
    struct db_reply with = {
        .outcome = OUTCOME_DONE, .backend = world->backend, .rows.exist = exist};
    reply(world, call_of(world, DB_JOBS_EXIST), &with);
}

static inline void reply_ids(struct world *world, int64_t first, int64_t count)
{
    struct id_run run = {first, first + count - 1};
    struct db_reply with = {
        .outcome = OUTCOME_DONE, .backend = world->backend, .rows.ids = {&run, 1}};
    reply(world, call_of(world, DB_RESERVE_IDS), &with);
}

static inline void reply_enqueued(struct world *world, struct db_call *call)
{
    struct db_reply with = {.outcome = OUTCOME_DONE, .rows.enqueue = {NULL, 0, NULL}};
    reply(world, call, &with);
}

static inline struct receipt next_receipt(struct world *world, uint64_t nonce, size_t at)
{
    return (struct receipt){.batch_id = world->batch_id,
                            .nonce = nonce,
                            .job_id = (uint64_t)++world->next_job_id,
                            .run_lease = 1,
                            .index = (uint16_t)(at + 1)};
}

/* Some good jobs, then some that cannot be read. */
static inline void reply_mixed(struct world *world, struct db_call *call, size_t count,
                               size_t unreadable_count, enum claim_end end)
{
    uint64_t nonce = call->args.claim.nonce;
    struct claimed_job *jobs = calloc(count + 1, sizeof *jobs);
    struct unreadable_job *unreadable = calloc(unreadable_count + 1, sizeof *unreadable);
    struct db_reply with = {.outcome = OUTCOME_DONE,
                            .backend = world->backend,
                            .rows.claim = {jobs, count, end, unreadable, unreadable_count}};

    assert_true(count + unreadable_count <= call->args.claim.limit);
    for (size_t i = 0; i < count; i++)
        jobs[i].receipt = next_receipt(world, nonce, i);
    for (size_t i = 0; i < unreadable_count; i++)
        unreadable[i] = (struct unreadable_job){.receipt = next_receipt(world, nonce, count + i),
                                                .queue = bytes_of_text("q"),
                                                .why = "unreadable job"};
    reply(world, call, &with);
    free(jobs);
    free(unreadable);
}

static inline void reply_jobs(struct world *world, struct db_call *call, size_t count,
                              enum claim_end end)
{
    reply_mixed(world, call, count, 0, end);
}

static inline void reply_claimed(struct world *world, size_t count, enum claim_end end)
{
    reply_jobs(world, call_of(world, DB_CLAIM), count, end);
}

static inline void reply_finished(struct world *world, struct db_call *call,
                                  const int16_t *statuses)
{
    struct db_reply with = {.outcome = OUTCOME_DONE,
                            .rows.finish = {statuses, call->args.finish.count}};
    reply(world, call, &with);
}

static inline void reply_all_done(struct world *world, struct db_call *call)
{
    int16_t statuses[FLUSH_ITEMS_MAX];
    for (size_t i = 0; i < FLUSH_ITEMS_MAX; i++)
        statuses[i] = FINISH_DONE;
    reply_finished(world, call, statuses);
}

/* ---- clients ---- */

static inline struct request *request_of(enum request_kind kind, uint64_t id)
{
    struct arena arena;
    arena_init(&arena, UNPACK_BYTES_MAX);
    return request_new_take(&arena, kind, id, 100);
}

static inline void take(struct world *world, handle session, enum request_kind kind, uint64_t id)
{
    sessions_take_request(&world->core.sessions, session, request_of(kind, id));
}

/* Its client has read all that it was sent. */
static inline void read_all(struct world *world, handle connection, handle session)
{
    world->stuck[connection] = false;
    world->written[connection] = world->appended[connection];
    session_caught_up(&world->core.sessions, session);
}

/* An open session on this connection (from 1). */
static inline handle join(struct world *world, handle connection)
{
    handle session = session_open(&world->core.sessions, connection);
    take(world, session, REQUEST_HELLO, 1);
    assert_int_equal(world->sent[world->sent_count - 1].kind, ANSWER_HELLO);
    return session;
}

static inline void enqueue_keyed(struct world *world, handle session, uint64_t id, size_t count,
                                 const char *key)
{
    struct request *request = request_of(REQUEST_ENQUEUE, id);
    struct enqueue_order *orders = request_alloc(request, count * sizeof *orders);

    for (size_t i = 0; i < count; i++)
        orders[i].job = (struct new_job){.queue = bytes_of_text("q"),
                                         .kind = bytes_of_text("k"),
                                         .args = bytes_of_text("{}"),
                                         .priority = 2};
    request->in.enqueue.orders = orders;
    request->in.enqueue.count = count;
    if (key != NULL)
        request->in.enqueue.key = bytes_of_text(key);
    sessions_take_request(&world->core.sessions, session, request);
}

static inline void enqueue(struct world *world, handle session, uint64_t id, size_t count)
{
    enqueue_keyed(world, session, id, count, NULL);
}

static inline void claim_from(struct world *world, handle session, uint64_t id, const char *name,
                              uint32_t jobs, uint32_t wait_ms)
{
    struct request *request = request_of(REQUEST_CLAIM, id);
    struct bytes *queue = request_alloc(request, sizeof *queue);

    *queue =
        bytes_of(memcpy(request_alloc(request, strlen(name)), name, strlen(name)), strlen(name));
    request->in.claim.queues = queue;
    request->in.claim.queue_count = 1;
    request->in.claim.jobs_max = jobs;
    request->in.claim.wait_ms = wait_ms;
    sessions_take_request(&world->core.sessions, session, request);
}

static inline void claim(struct world *world, handle session, uint64_t id, uint32_t jobs,
                         uint32_t wait_ms)
{
    claim_from(world, session, id, "q", jobs, wait_ms);
}

/* Finishes items of claim batch `batch`, from index `first` on. */
static inline void finish(struct world *world, handle session, uint64_t id, uint64_t batch,
                          uint16_t first, size_t count, enum job_outcome outcome)
{
    struct request *request = request_of(REQUEST_FINISH, id);
    struct finish_input *inputs = request_alloc(request, count * sizeof *inputs);

    for (size_t i = 0; i < count; i++) {
        uint16_t index = (uint16_t)(first + i);
        inputs[i].order.outcome = outcome;
        inputs[i].order.receipt = (struct receipt){
            .batch_id = batch, .nonce = 7, .job_id = batch * 10000 + index, .index = index};
    }
    request->in.finish.inputs = inputs;
    request->in.finish.count = count;
    sessions_take_request(&world->core.sessions, session, request);
}

static inline const struct sent *answer_to(const struct world *world, handle connection,
                                           uint64_t request_id)
{
    const struct sent *found = NULL;

    for (size_t i = 0; i < world->sent_count; i++) {
        const struct sent *sent = &world->sent[i];
        if (sent->connection != connection || sent->request_id != request_id)
            continue;
        assert_null(found); /* answered once */
        found = sent;
    }
    return found;
}

/* Lets everybody leave, answers what is still asked of the database, and checks that nothing is
 * left. */
static inline void world_end(struct world *world)
{
    for (uint32_t i = 0; i < world->core.sessions.table.size; i++) {
        struct session *session = slots_at(&world->core.sessions.table, i);
        if (session != NULL)
            session_vanished(&world->core.sessions, session->self);
    }
    sessions_drain(&world->core.sessions, true);
    for (int i = 0; i < 100 && !core_is_idle(&world->core); i++) {
        wait_us(world, 3000);
        if (call_of(world, DB_FINISH) != NULL)
            reply_all_done(world, call_of(world, DB_FINISH));
        if (call_of(world, DB_COMPLETE) != NULL)
            reply_all_done(world, call_of(world, DB_COMPLETE));
        if (call_of(world, DB_CLAIM) != NULL)
            reply_claimed(world, 0, CLAIM_EMPTY);
        if (call_of(world, DB_RESERVE_IDS) != NULL)
            reply_ids(world, 500000, 10000);
        if (call_of(world, DB_ENQUEUE) != NULL)
            reply_enqueued(world, call_of(world, DB_ENQUEUE));
        if (call_of(world, DB_ENQUEUE_ONCE) != NULL)
            reply_enqueued(world, call_of(world, DB_ENQUEUE_ONCE));
        if (call_of(world, DB_BACKEND_GONE) != NULL)
            reply_gone(world, true);
        if (call_of(world, DB_CLAIM_RESULT) != NULL)
            reply_jobs(world, call_of(world, DB_CLAIM_RESULT), 0, CLAIM_FILLED);
    }
    assert_true(core_is_idle(&world->core));
    core_free(&world->core);
    free(world);
}

#endif
