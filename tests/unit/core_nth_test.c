/* Each call to the database, by its number, fails once in a life of a session, surely not done or
 * unknown (and then done or not): every request is answered once, and no job is lost or left held.
 */
#include "core_world.h"

enum fate { NOT_DONE, LOST_BEFORE, LOST_AFTER };

/* The last job that is enqueued cannot be read when it is claimed. */
enum { READABLE = 2, ENQUEUED = 3, STEPS_MAX = 400, STORED_MAX = 64 };

enum job_state { AVAILABLE, RUNNING, ENDED };

/* What the database has committed. */
struct stored {
    int64_t id;
    enum job_state state;
    unsigned ended; /* how often an end was accepted */
};

struct store {
    struct world *world;
    struct stored jobs[STORED_MAX];
    size_t count;
    uint64_t claimed[STORED_MAX]; /* the nonce of the claim that holds each job */
    int64_t next_id;
    unsigned calls;
    unsigned fails_at; /* the call with this number */
    enum fate fate;
    bool struck;
};

static struct stored *stored_of(struct store *store, uint64_t id)
{
    for (size_t i = 0; i < store->count; i++)
        if (store->jobs[i].id == (int64_t)id)
            return &store->jobs[i];
    return NULL;
}

/* ---- what each call does when it commits; the reply is sent only where `reply` is set ---- */

static void commit_enqueue(struct store *store, const struct db_call *call)
{
    for (size_t i = 0; i < call->args.enqueue.count; i++) {
        assert_null(stored_of(store, (uint64_t)call->args.enqueue.ids[i])); /* stored once */
        assert_true(store->count < STORED_MAX);
        store->jobs[store->count++] = (struct stored){.id = call->args.enqueue.ids[i]};
    }
}

static void commit_claim(struct store *store, const struct db_call *call)
{
    uint32_t left = call->args.claim.limit;

    for (size_t i = 0; i < store->count && left > 0; i++) {
        if (store->jobs[i].state != AVAILABLE)
            continue;
        store->jobs[i].state = RUNNING;
        store->claimed[i] = call->args.claim.nonce;
        left--;
    }
}

static void reply_claim(struct store *store, struct db_call *call)
{
    struct claimed_job jobs[STORED_MAX] = {0};
    struct unreadable_job unreadable[STORED_MAX] = {0};
    size_t count = 0;
    size_t unreadable_count = 0;

    for (size_t i = 0; i < store->count; i++) {
        struct receipt receipt = {.batch_id = call->args.claim.nonce,
                                  .nonce = call->args.claim.nonce,
                                  .job_id = (uint64_t)store->jobs[i].id,
                                  .run_lease = 1,
                                  .index = (uint16_t)(i + 1)};
        if (store->claimed[i] != call->args.claim.nonce)
            continue;
        if (i < READABLE)
            jobs[count++].receipt = receipt;
        else
            unreadable[unreadable_count++] = (struct unreadable_job){
                .receipt = receipt, .queue = bytes_of_text("q"), .why = "unreadable job"};
    }
    struct db_reply with = {.outcome = OUTCOME_DONE,
                            .backend = store->world->backend,
                            .rows.claim = {jobs, count, count > 0 ? CLAIM_FILLED : CLAIM_EMPTY,
                                           unreadable, unreadable_count}};
    reply(store->world, call, &with);
}

static void commit_finish(struct store *store, const struct db_call *call, int16_t *statuses)
{
    for (size_t i = 0; i < call->args.finish.count; i++) {
        const struct finish_order *order = call->args.finish.orders[i];
        struct stored *job = stored_of(store, order->receipt.job_id);

        assert_non_null(job);
        statuses[i] = job->state == RUNNING ? FINISH_DONE : FINISH_ALREADY_DONE;
        if (job->state != RUNNING)
            continue;
        job->state = order->outcome == JOB_RELEASE ? AVAILABLE : ENDED;
        job->ended += job->state == ENDED;
        store->claimed[job - store->jobs] = 0;
    }
}

static void commit_and_reply(struct store *store, struct db_call *call, bool tell)
{
    struct db_reply with = {.outcome = OUTCOME_DONE, .backend = store->world->backend};
    int16_t statuses[FLUSH_ITEMS_MAX];
    bool exist[FLUSH_ITEMS_MAX];

    switch (call->op) {
    case DB_RESERVE_IDS:
        store->next_id += 10000;
        if (tell)
            reply_ids(store->world, store->next_id - 10000, 10000);
        return;
    case DB_ENQUEUE: commit_enqueue(store, call); break;
    case DB_CLAIM: commit_claim(store, call); __attribute__((fallthrough));
    case DB_CLAIM_RESULT:
        if (tell)
            reply_claim(store, call);
        return;
    case DB_COMPLETE:
    case DB_FINISH:
        commit_finish(store, call, statuses);
        with.rows.finish.statuses = statuses;
        with.rows.finish.count = call->args.finish.count;
        break;
    case DB_BACKEND_GONE: with.rows.gone = true; break;
    case DB_JOBS_EXIST:
        for (size_t i = 0; i < call->args.jobs_exist.count; i++)
            exist[i] = stored_of(store, (uint64_t)call->args.jobs_exist.ids[i]) != NULL;
        with.rows.exist = exist;
        break;
    case DB_COUNTS: break;
    case DB_ENQUEUE_ONCE:
    case DB_ANNOUNCE:
    case DB_MEMBERSHIP:
    case DB_MAINTENANCE: fail_msg("not in this scenario"); return;
    }
    if (tell)
        reply(store->world, call, &with);
}

/* Answers the oldest call there is, as its number says. False: there is none. */
static bool answer_one(struct store *store)
{
    struct world *world = store->world;

    if (world->call_count == 0)
        return false;
    struct db_call *call = world->calls[0];
    if (++store->calls != store->fails_at) {
        commit_and_reply(store, call, true);
        return true;
    }
    store->struck = true;
    if (store->fate == LOST_AFTER)
        commit_and_reply(store, call, false);
    if (store->fate == NOT_DONE)
        fail_call(world, call, OUTCOME_NOT_DONE, "57P01");
    else
        lose_call(world, call);
    return true;
}

/* Lets time pass and the database answer until this request is answered. */
static const struct sent *await(struct store *store, uint64_t id)
{
    for (int i = 0; i < STEPS_MAX; i++) {
        const struct sent *sent = answer_to(store->world, 1, id);
        if (sent != NULL)
            return sent;
        if (!answer_one(store))
            wait_us(store->world, 10000);
    }
    fail_msg("request %llu is not answered (call %u, fate %d)", (unsigned long long)id,
             store->fails_at, (int)store->fate);
    return NULL;
}

static void finish_claimed(struct store *store, handle session, uint64_t id, size_t at,
                           enum job_outcome outcome)
{
    struct request *request =
        request_of(outcome == JOB_RELEASE ? REQUEST_RELEASE : REQUEST_FINISH, id);
    struct finish_input *input = request_alloc(request, sizeof *input);
    uint64_t nonce = store->claimed[at];

    input->order.outcome = outcome;
    input->order.receipt = (struct receipt){.batch_id = nonce,
                                            .nonce = nonce,
                                            .job_id = (uint64_t)store->jobs[at].id,
                                            .run_lease = 1,
                                            .index = (uint16_t)(at + 1)};
    request->in.finish.inputs = input;
    request->in.finish.count = 1;
    sessions_take_request(&store->world->core.sessions, session, request);
}

/* Hello, Enqueue, Claim, Finish, Release, QueueCounts, Goodbye. False: the call that was to fail
 * was not reached. */
static bool live_through(unsigned fails_at, enum fate fate)
{
    struct store store = {
        .world = world_new(), .next_id = 1000, .fails_at = fails_at, .fate = fate};
    struct world *world = store.world;
    handle session = join(world, 1);

    enqueue(world, session, 10, ENQUEUED);
    const struct sent *enqueued = await(&store, 10);
    assert_int_equal(enqueued->code, CODE_OK);
    assert_int_equal(store.count, ENQUEUED); /* an acknowledged job is there, once */
    claim(world, session, 11, ENQUEUED, 60000);
    assert_int_equal(await(&store, 11)->count, READABLE);
    finish_claimed(&store, session, 12, 0, JOB_COMPLETE);
    enum finish_status status = await(&store, 12)->statuses[0];
    assert_true(status == FINISH_DONE || status == FINISH_ALREADY_DONE);
    finish_claimed(&store, session, 13, 1, JOB_RELEASE);
    assert_int_equal(await(&store, 13)->kind, ANSWER_RELEASE);
    take(world, session, REQUEST_COUNTS, 14);
    await(&store, 14);
    claim(world, session, 15, 1, 60000);
    assert_int_equal(await(&store, 15)->count, 1);
    for (int i = 0; i < STEPS_MAX && store.jobs[READABLE].state != ENDED; i++)
        if (!answer_one(&store))
            wait_us(world, 10000);
    take(world, session, REQUEST_GOODBYE, 16);
    assert_int_equal(await(&store, 16)->kind, ANSWER_GOODBYE);
    assert_int_equal(store.jobs[0].state, ENDED);
    assert_int_equal(store.jobs[0].ended, 1);
    assert_int_equal(store.jobs[1].state, AVAILABLE); /* Goodbye gave it back */
    assert_int_equal(store.jobs[READABLE].ended, 1);
    assert_true(store.struck || store.calls < fails_at);
    bool struck = store.struck;
    world_end(world); /* idle: nothing is left over */
    return struck;
}

static void every_call_fails_once(enum fate fate)
{
    unsigned number = 1;

    while (live_through(number, fate))
        number++;
    assert_true(number > 7); /* ids, enqueue, claim, finish, release, counts, claim, release */
}

static void every_call_is_not_done_once(void **state)
{
    (void)state;
    every_call_fails_once(NOT_DONE);
}

static void every_call_is_lost_before_its_commit_once(void **state)
{
    (void)state;
    every_call_fails_once(LOST_BEFORE);
}

static void every_call_is_lost_after_its_commit_once(void **state)
{
    (void)state;
    every_call_fails_once(LOST_AFTER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_is_not_done_once),
        cmocka_unit_test(every_call_is_lost_before_its_commit_once),
        cmocka_unit_test(every_call_is_lost_after_its_commit_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
