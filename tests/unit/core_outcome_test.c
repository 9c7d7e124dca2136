/* doubt, and what batcher, enqueuer, keyed, finisher and broker do with a call that may have
 * committed; and the server out of lock table. */
#include "core_world.h"

#include "core/retry.h"

static const uint64_t request_us = (uint64_t)REQUEST_MS * US_PER_MS;

/* ---- enqueue ---- */

/* An enqueue of `count` jobs as request 10, with ids from 1000, whose connection is lost. */
static struct world *lose_an_enqueue(size_t count)
{
    struct world *world = world_new();

    enqueue(world, join(world, 1), 10, count);
    turn(world);
    reply_ids(world, 1000, 10000);
    lose_call(world, call_of(world, DB_ENQUEUE));
    return world;
}

static void an_unknown_enqueue_that_exists_is_acknowledged(void **state)
{
    (void)state;
    struct world *world = lose_an_enqueue(2);
    const bool exist[] = {true, true};

    assert_null(answer_to(world, 1, 10));
    assert_int_equal(call_of(world, DB_BACKEND_GONE)->args.backend.pid, 100);
    assert_int_equal(call_of(world, DB_BACKEND_GONE)->args.backend.started, 5);
    assert_null(call_of(world, DB_JOBS_EXIST)); /* it may still commit */
    reply_gone(world, false);
    assert_null(call_of(world, DB_BACKEND_GONE)); /* not at once again */
    wait_us(world, 4000);
    reply_gone(world, true);
    assert_int_equal(call_of(world, DB_JOBS_EXIST)->args.jobs_exist.count, 2);
    assert_int_equal(call_of(world, DB_JOBS_EXIST)->args.jobs_exist.ids[1], 1001);
    reply_exist(world, exist);
    assert_int_equal(answer_to(world, 1, 10)->first_job_id, 1000);
    assert_null(call_of(world, DB_ENQUEUE));
    world_end(world);
}

static void what_of_an_unknown_enqueue_does_not_exist_is_enqueued(void **state)
{
    (void)state;
    struct world *world = lose_an_enqueue(3);
    const bool exist[] = {false, true, false};

    reply_gone(world, true);
    reply_exist(world, exist);
    assert_null(answer_to(world, 1, 10));
    struct db_call *again = call_of(world, DB_ENQUEUE);
    assert_int_equal(again->args.enqueue.count, 2);
    assert_int_equal(again->args.enqueue.ids[0], 1003); /* an id is never tried twice */
    reply_enqueued(world, again);
    assert_int_equal(answer_to(world, 1, 10)->count, 3);
    assert_int_equal(answer_to(world, 1, 10)->first_job_id, 1003);
    world_end(world);
}

static void what_was_resolved_is_not_unknown_any_more(void **state)
{
    (void)state;
    struct world *world = lose_an_enqueue(1);
    const bool exist[] = {false};

    reply_gone(world, true);
    reply_exist(world, exist);
    fail_call(world, call_of(world, DB_ENQUEUE), OUTCOME_NOT_DONE, "42501");
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_PERMISSION_DENIED);
    world_end(world);
}

static void new_server_proves_nothing_about_ids(struct server_run server)
{
    struct world *world = lose_an_enqueue(1);
    const bool exist[] = {true};

    world->backend.server = server;
    reply_gone(world, true);
    reply_exist(world, exist);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_DEADLINE_EXCEEDED);
    assert_null(call_of(world, DB_ENQUEUE));
    world_end(world);
}

static void an_unknown_enqueue_stays_unknown_on_another_server(void **state)
{
    (void)state;
    new_server_proves_nothing_about_ids((struct server_run){.started = 2, .timeline = 1});
    new_server_proves_nothing_about_ids((struct server_run){.started = 1, .timeline = 2});
    new_server_proves_nothing_about_ids(
        (struct server_run){.started = 1, .timeline = 1, .schema_id = 1});
}

static void an_enqueue_in_doubt_has_a_deadline_and_the_doubt_goes_on(void **state)
{
    (void)state;
    struct world *world = lose_an_enqueue(1);
    const bool exist[] = {false};

    wait_us(world, request_us - 1000);
    assert_null(answer_to(world, 1, 10));
    wait_us(world, 2000);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_DEADLINE_EXCEEDED);
    reply_gone(world, false);
    wait_us(world, 4000);
    reply_gone(world, true); /* still asked */
    reply_exist(world, exist);
    assert_null(call_of(world, DB_ENQUEUE)); /* nobody waits for it: it is not repeated */
    world_end(world);
}

static void a_lost_question_is_asked_again(void **state)
{
    (void)state;
    struct world *world = lose_an_enqueue(1);
    const bool exist[] = {true};

    lose_call(world, call_of(world, DB_BACKEND_GONE));
    assert_null(call_of(world, DB_BACKEND_GONE));
    wait_us(world, 30000);
    reply_gone(world, true);
    fail_call(world, call_of(world, DB_JOBS_EXIST), OUTCOME_NOT_DONE, "57014");
    wait_us(world, 30000);
    assert_null(call_of(world, DB_BACKEND_GONE)); /* that is known for ever */
    reply_exist(world, exist);
    assert_int_equal(answer_to(world, 1, 10)->first_job_id, 1000);
    world_end(world);
}

static void other_enqueues_go_on_while_one_is_in_doubt(void **state)
{
    (void)state;
    struct world *world = lose_an_enqueue(1);
    const bool exist[] = {true};

    enqueue(world, join(world, 2), 20, 1);
    turn(world);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
    assert_int_equal(answer_to(world, 2, 20)->count, 1);
    reply_gone(world, true);
    reply_exist(world, exist);
    assert_int_equal(answer_to(world, 1, 10)->count, 1);
    world_end(world);
}

static void what_waits_behind_doubts_is_answered_in_time(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    world->idle = 16;
    for (uint64_t i = 0; i < FLUSHES_PER_BATCHER_MAX; i++) {
        enqueue(world, session, 10 + i, 1);
        wait_us(world, 2000);
        if (i == 0)
            reply_ids(world, 1000, 10000);
    }
    assert_int_equal(calls_of(world, DB_ENQUEUE), FLUSHES_PER_BATCHER_MAX);
    while (call_of(world, DB_ENQUEUE) != NULL)
        lose_call(world, call_of(world, DB_ENQUEUE));
    enqueue(world, session, 99, 1);
    turn(world);
    assert_null(call_of(world, DB_ENQUEUE)); /* no flush is free */
    wait_us(world, request_us + 2000);
    assert_int_equal(answer_to(world, 1, 99)->code, CODE_UNAVAILABLE); /* it was never sent */
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_DEADLINE_EXCEEDED);
    const bool none[] = {false};
    while (call_of(world, DB_BACKEND_GONE) != NULL)
        reply_gone(world, true);
    while (call_of(world, DB_JOBS_EXIST) != NULL)
        reply_exist(world, none);
    world_end(world);
}

static void ids_are_of_one_server(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    enqueue(world, session, 10, 1);
    turn(world);
    reply_ids(world, 1000, ID_BLOCK_LOW + 1);
    assert_int_equal(call_of(world, DB_ENQUEUE)->args.enqueue.server.started, 1);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
    world->backend.server.started = 2; /* it tells while ids of the old one are left */
    enqueue(world, session, 11, 1);
    turn(world);
    assert_int_equal(call_of(world, DB_ENQUEUE)->args.enqueue.server.started, 1);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
    reply_ids(world, 700, 100);
    enqueue(world, session, 12, 1);
    turn(world);
    assert_int_equal(call_of(world, DB_ENQUEUE)->args.enqueue.ids[0], 700);
    assert_int_equal(call_of(world, DB_ENQUEUE)->args.enqueue.server.started, 2);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
    world_end(world);
}

/* ---- enqueue with a key ---- */

static struct world *send_keyed(size_t count)
{
    struct world *world = world_new();

    enqueue_keyed(world, join(world, 1), 10, count, "key");
    turn(world);
    reply_ids(world, 1000, 10000);
    return world;
}

static void a_keyed_request_is_one_call_of_its_own(void **state)
{
    (void)state;
    struct world *world = send_keyed(JOBS_PER_ENQUEUE_MAX);
    struct db_call *call = call_of(world, DB_ENQUEUE_ONCE);

    assert_null(call_of(world, DB_ENQUEUE));
    assert_int_equal(call->args.enqueue.count, JOBS_PER_ENQUEUE_MAX); /* more than a flush holds */
    assert_int_equal(call->args.enqueue.key.len, 3);
    world->idle = 4;
    enqueue_keyed(world, join(world, 2), 20, 1, "other");
    wait_us(world, 1000);
    assert_int_equal(calls_of(world, DB_ENQUEUE_ONCE), 2); /* beside the first */
    reply_enqueued(world, call);
    assert_int_equal(answer_to(world, 1, 10)->count, JOBS_PER_ENQUEUE_MAX);
    assert_int_equal(answer_to(world, 1, 10)->first_job_id, 1000);
    reply_enqueued(world, call_of(world, DB_ENQUEUE_ONCE));
    assert_int_equal(answer_to(world, 2, 20)->first_job_id, 1000 + JOBS_PER_ENQUEUE_MAX);
    world_end(world);
}

static void a_known_key_answers_the_ids_of_then(void **state)
{
    (void)state;
    struct world *world = send_keyed(2);
    const int64_t ids[] = {77, 78};
    struct db_reply with = {.outcome = OUTCOME_DONE, .rows.enqueue.known_ids = ids};

    reply(world, call_of(world, DB_ENQUEUE_ONCE), &with);
    assert_int_equal(answer_to(world, 1, 10)->first_job_id, 77);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_OK);
    world_end(world);
}

/* The first use may have been committed without its proxy learning of it. */
static void a_known_key_wakes_who_waits_for_its_queues(void **state)
{
    (void)state;
    struct world *world = send_keyed(1);
    const int64_t ids[] = {77};
    struct db_reply with = {.outcome = OUTCOME_DONE, .rows.enqueue.known_ids = ids};

    claim(world, join(world, 2), 20, 1, 60000);
    turn(world);
    reply_claimed(world, 0, CLAIM_EMPTY);
    assert_null(call_of(world, DB_CLAIM));
    reply(world, call_of(world, DB_ENQUEUE_ONCE), &with);
    assert_non_null(call_of(world, DB_CLAIM));
    reply_claimed(world, 0, CLAIM_EMPTY);
    world_end(world);
}

static void a_job_refused_then_is_refused_again(void **state)
{
    (void)state;
    struct world *world = send_keyed(2);
    const int64_t ids[] = {0, 78};
    struct db_reply with = {.outcome = OUTCOME_DONE, .rows.enqueue.known_ids = ids};

    reply(world, call_of(world, DB_ENQUEUE_ONCE), &with);
    assert_int_equal(answer_to(world, 1, 10)->first_job_id, 0);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_INVALID_ARGUMENT);
    world_end(world);
}

static void a_bad_job_of_a_keyed_request_fails_alone(void **state)
{
    (void)state;
    struct world *world = send_keyed(2);
    const struct db_failed_item failed = {.item = 0, .sqlstate = "22023", .message = "no"};
    struct db_reply with = {.outcome = OUTCOME_DONE, .rows.enqueue = {&failed, 1, NULL}};

    reply(world, call_of(world, DB_ENQUEUE_ONCE), &with);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_INVALID_ARGUMENT);
    assert_int_equal(answer_to(world, 1, 10)->first_job_id, 0);
    world_end(world);
}

static void an_unknown_keyed_request_is_sent_again(void **state)
{
    (void)state;
    struct world *world = send_keyed(1);

    lose_call(world, call_of(world, DB_ENQUEUE_ONCE));
    assert_null(call_of(world, DB_ENQUEUE_ONCE)); /* the old one might hold the key */
    world->backend.server.started = 2;            /* a key is good on any server */
    reply_gone(world, true);
    assert_null(call_of(world, DB_JOBS_EXIST));
    assert_int_equal(call_of(world, DB_ENQUEUE_ONCE)->args.enqueue.ids[0], 1001);
    reply_enqueued(world, call_of(world, DB_ENQUEUE_ONCE));
    assert_int_equal(answer_to(world, 1, 10)->first_job_id, 1001);
    world_end(world);
}

static void a_keyed_request_in_doubt_has_a_deadline(void **state)
{
    (void)state;
    struct world *world = send_keyed(3);

    lose_call(world, call_of(world, DB_ENQUEUE_ONCE));
    wait_us(world, request_us + 2000);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_DEADLINE_EXCEEDED);
    assert_int_equal(answer_to(world, 1, 10)->count, 3);
    reply_gone(world, true);
    assert_null(call_of(world, DB_ENQUEUE_ONCE));
    world_end(world);
}

static void a_keyed_request_without_a_good_job_asks_nobody(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    struct request *request = request_of(REQUEST_ENQUEUE, 10);
    struct enqueue_order *orders = request_alloc(request, sizeof *orders);
    struct err err;

    err_set(&err, CODE_INVALID_ARGUMENT, "bad");
    orders[0].invalid = request_keep_err(request, &err);
    request->in.enqueue.orders = orders;
    request->in.enqueue.count = 1;
    request->in.enqueue.key = bytes_of_text("key");
    sessions_take_request(&world->core.sessions, session, request);
    turn(world);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_INVALID_ARGUMENT);
    assert_int_equal(world->call_count, 0);
    world_end(world);
}

/* ---- finish ---- */

static void an_unknown_completion_waits_for_the_old_backend(void **state)
{
    (void)state;
    struct world *world = world_new();
    int16_t already[] = {FINISH_ALREADY_DONE};

    finish(world, join(world, 1), 10, 1, 1, 1, JOB_COMPLETE);
    turn(world);
    lose_call(world, call_of(world, DB_COMPLETE));
    wait_us(world, US_PER_S);
    assert_null(call_of(world, DB_COMPLETE)); /* the old one may hold what it needs */
    reply_gone(world, true);
    reply_finished(world, call_of(world, DB_COMPLETE), already);
    assert_int_equal(answer_to(world, 1, 10)->statuses[0], FINISH_ALREADY_DONE);
    world_end(world);
}

static void a_finish_in_doubt_has_a_deadline(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    finish(world, session, 10, 1, 1, 1, JOB_COMPLETE);
    wait_us(world, 1);
    struct db_call *first = call_of(world, DB_COMPLETE);
    wait_us(world, request_us / 2);
    finish(world, session, 11, 1, 2, 1, JOB_COMPLETE);
    fail_call(world, first, OUTCOME_NOT_DONE, ""); /* both share no flush */
    wait_us(world, 60000);
    while (call_of(world, DB_COMPLETE) != NULL)
        lose_call(world, call_of(world, DB_COMPLETE));
    wait_us(world, request_us / 2);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_DEADLINE_EXCEEDED);
    assert_null(answer_to(world, 1, 11)); /* it came later */
    while (call_of(world, DB_BACKEND_GONE) != NULL)
        reply_gone(world, true);
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, 1); /* without the first */
    reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_int_equal(answer_to(world, 1, 11)->statuses[0], FINISH_DONE);
    world_end(world);
}

/* ---- claim ---- */

static struct world *lose_a_claim(uint32_t jobs)
{
    struct world *world = world_new();

    claim(world, join(world, 1), 10, jobs, 60000);
    turn(world);
    lose_call(world, call_of(world, DB_CLAIM));
    return world;
}

static void an_unknown_claim_is_dealt_by_its_nonce(void **state)
{
    (void)state;
    struct world *world = world_new();

    claim(world, join(world, 1), 10, 2, 60000);
    turn(world);
    uint64_t nonce = call_of(world, DB_CLAIM)->args.claim.nonce;
    lose_call(world, call_of(world, DB_CLAIM));
    reply_gone(world, false);
    assert_null(call_of(world, DB_CLAIM_RESULT));
    wait_us(world, 4000);
    reply_gone(world, true);
    assert_true(call_of(world, DB_CLAIM_RESULT)->args.claim.nonce == nonce);
    reply_jobs(world, call_of(world, DB_CLAIM_RESULT), 2, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 10)->count, 2);
    world_end(world);
}

static void lose_and_expect_above(struct world *world, uint64_t above)
{
    lose_call(world, call_of(world, DB_CLAIM));
    reply_gone(world, true);
    assert_int_equal(call_of(world, DB_CLAIM_RESULT)->args.claim.above, above);
    reply_jobs(world, call_of(world, DB_CLAIM_RESULT), 0, CLAIM_FILLED);
    wait_us(world, UINT64_C(1) * US_PER_S);
}

/* What was lost is newer than what the same backend has answered with; of others nothing is known.
 */
static void a_result_is_looked_for_among_the_newer_batches_of_its_backend(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 2, 60000);
    turn(world);
    lose_and_expect_above(world, 0);
    world->batch_id = 41;
    reply_mixed(world, call_of(world, DB_CLAIM), 0, 1, CLAIM_FILLED);
    reply_all_done(world, call_of(world, DB_FINISH));
    turn(world);
    lose_and_expect_above(world, 41);
    world->batch_id = 42;
    reply_claimed(world, 1, CLAIM_FILLED);
    claim(world, session, 11, 1, 60000);
    turn(world);
    lose_and_expect_above(world, 42);
    world->backend.pid++; /* that of the next connection */
    lose_and_expect_above(world, 0);
    reply_claimed(world, 1, CLAIM_FILLED);
    world_end(world);
}

static void a_group_claims_on_while_a_call_is_in_doubt(void **state)
{
    (void)state;
    struct world *world = lose_a_claim(2);

    wait_us(world, 40000);
    reply_claimed(world, 1, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 10)->count, 1);
    reply_gone(world, true);
    reply_jobs(world, call_of(world, DB_CLAIM_RESULT), 2, CLAIM_FILLED); /* nobody waits for them */
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 2);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_RELEASE);
    reply_all_done(world, call_of(world, DB_FINISH));
    world_end(world);
}

static void a_claim_that_did_not_commit_leaves_nothing(void **state)
{
    (void)state;
    struct world *world = lose_a_claim(1);

    reply_gone(world, true);
    reply_jobs(world, call_of(world, DB_CLAIM_RESULT), 0, CLAIM_FILLED);
    assert_null(answer_to(world, 1, 10));
    assert_null(call_of(world, DB_FINISH));
    wait_us(world, 40000);
    reply_claimed(world, 1, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 10)->count, 1);
    world_end(world);
}

static void a_busy_result_is_asked_for_again(void **state)
{
    (void)state;
    struct world *world = lose_a_claim(1);

    reply_gone(world, true);
    reply_jobs(world, call_of(world, DB_CLAIM_RESULT), 0, CLAIM_BUSY);
    assert_null(call_of(world, DB_CLAIM_RESULT));
    wait_us(world, 10000);
    reply_jobs(world, call_of(world, DB_CLAIM_RESULT), 1, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 10)->count, 1);
    world_end(world);
}

static void doubts_of_a_group_are_bounded_and_claims_still_answered(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 1, 10000);
    turn(world);
    for (int i = 0; i < CLAIM_DOUBTS_PER_GROUP_MAX; i++) {
        if (i == CLAIM_DOUBTS_PER_GROUP_MAX - 1)
            claim(world, session, 13, 1, 0); /* comes, and is over, while the last is under way */
        turn(world);
        lose_call(world, call_of(world, DB_CLAIM));
        wait_us(world, UINT64_C(2) * US_PER_S);
    }
    assert_null(call_of(world, DB_CLAIM)); /* enough is unknown */
    assert_int_equal(answer_to(world, 1, 13)->code, CODE_UNAVAILABLE);
    claim(world, session, 11, 1, 0);
    turn(world);
    assert_int_equal(answer_to(world, 1, 11)->code, CODE_UNAVAILABLE);
    wait_us(world, UINT64_C(10) * US_PER_S);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_UNAVAILABLE);
    assert_false(core_is_idle(&world->core));
    claim(world, session, 12, 1, 60000);
    reply_gone(world, true);
    reply_jobs(world, call_of(world, DB_CLAIM_RESULT), 1, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 12)->count, 1);
    world_end(world);
}

static void a_claim_whose_answer_made_no_sense_is_not_asked_about(void **state)
{
    (void)state;
    struct world *world = world_new();

    claim(world, join(world, 1), 10, 1, 0);
    turn(world);
    fail_call(world, call_of(world, DB_CLAIM), OUTCOME_UNKNOWN, "");
    assert_null(call_of(world, DB_BACKEND_GONE));
    assert_int_equal(answer_to(world, 1, 10)->kind, ANSWER_ERROR);
    world_end(world);
}

/* ---- deadlocks, and the server out of lock table ---- */

static uint64_t deadlock_retries(const struct world *world)
{
    return core_counters(&world->core).deadlock_retries;
}

static void trap_14_deadlocks_are_counted(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    finish(world, session, 10, 1, 1, 2, JOB_COMPLETE);
    turn(world);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(deadlock_retries(world), i);
        assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, 2);
        fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_NOT_DONE, "40P01");
        wait_us(world, 40000);
    }
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, 1); /* each alone */
    fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_NOT_DONE, "40001");
    assert_int_equal(deadlock_retries(world), 4); /* no deadlock */
    wait_us(world, 40000);
    while (call_of(world, DB_COMPLETE) != NULL)
        reply_all_done(world, call_of(world, DB_COMPLETE));
    finish(world, session, 11, 2, 1, 1, JOB_FAIL);
    enqueue(world, session, 12, 1);
    enqueue_keyed(world, session, 13, 1, "key");
    turn(world);
    reply_ids(world, 1, 10000);
    fail_call(world, call_of(world, DB_FINISH), OUTCOME_NOT_DONE, "40P01");
    fail_call(world, call_of(world, DB_ENQUEUE), OUTCOME_NOT_DONE, "40P01");
    fail_call(world, call_of(world, DB_ENQUEUE_ONCE), OUTCOME_NOT_DONE, "40P01");
    assert_int_equal(deadlock_retries(world), 7);
    world_end(world);
}

static size_t batches_of_a_flush(struct world *world, handle session, uint64_t id)
{
    for (uint64_t batch = 1; batch <= COMPLETE_BATCHES_PER_CALL_MAX; batch++)
        finish(world, session, id + batch, id + batch, 1, 1, JOB_COMPLETE);
    turn(world);
    size_t count = call_of(world, DB_COMPLETE)->args.finish.count;
    while (call_of(world, DB_COMPLETE) != NULL)
        reply_all_done(world, call_of(world, DB_COMPLETE));
    return count;
}

static void a_full_lock_table_makes_flushes_smaller_for_a_while(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    finish(world, session, 10, 1, 1, 2, JOB_COMPLETE);
    turn(world);
    fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_NOT_DONE, "53200");
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, 1); /* in halves */
    fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_NOT_DONE, "53200");
    wait_us(world, 40000); /* alone: it waits, the attempt is kept */
    while (call_of(world, DB_COMPLETE) != NULL)
        reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_int_equal(answer_to(world, 1, 10)->statuses[1], FINISH_DONE);
    assert_int_equal(batches_of_a_flush(world, session, 1000), COMPLETE_BATCHES_PER_CALL_MAX / 4);
    wait_us(world, UINT64_C(10) * US_PER_S);
    assert_int_equal(batches_of_a_flush(world, session, 2000), COMPLETE_BATCHES_PER_CALL_MAX / 2);
    wait_us(world, UINT64_C(10) * US_PER_S);
    assert_int_equal(batches_of_a_flush(world, session, 3000), COMPLETE_BATCHES_PER_CALL_MAX);
    world_end(world);
}

static void complete_held(struct world *world, handle session, uint64_t id)
{
    const struct session *holder = session_of(&world->core.sessions, session);
    struct request *request = request_of(REQUEST_FINISH, id);
    struct finish_input *input = request_alloc(request, sizeof *input);

    input->order.outcome = JOB_COMPLETE;
    input->order.receipt = CONTAINER_OF(holder->attempts.first, struct attempt, node)->receipt;
    request->in.finish.inputs = input;
    request->in.finish.count = 1;
    sessions_take_request(&world->core.sessions, session, request);
}

/* They name more claim batches than hundreds of calls may. */
static void receipts_that_nobody_holds_keep_no_neighbour_waiting(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle flooder = join(world, 1);
    handle neighbour = join(world, 2);

    claim(world, neighbour, 10, 1, 1000);
    turn(world);
    reply_claimed(world, 1, CLAIM_FILLED);
    for (uint64_t batch = 100; batch < 1100; batch++)
        finish(world, flooder, batch, batch, 1, 1, JOB_COMPLETE);
    turn(world);
    assert_int_equal(calls_of(world, DB_COMPLETE), 1);
    struct db_call *flood = call_of(world, DB_COMPLETE);
    complete_held(world, neighbour, 11);
    turn(world);
    assert_int_equal(calls_of(world, DB_COMPLETE), 2);
    for (size_t i = 0; i < world->call_count; i++)
        if (world->calls[i] != flood && world->calls[i]->op == DB_COMPLETE)
            reply_all_done(world, world->calls[i]);
    assert_int_equal(answer_to(world, 2, 11)->statuses[0], FINISH_DONE);
    for (int i = 0; i < 20 && call_of(world, DB_COMPLETE) != NULL; i++)
        reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_non_null(answer_to(world, 1, 1099)); /* they are served, too */
    world_end(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_enqueue_that_exists_is_acknowledged),
        cmocka_unit_test(what_of_an_unknown_enqueue_does_not_exist_is_enqueued),
        cmocka_unit_test(what_was_resolved_is_not_unknown_any_more),
        cmocka_unit_test(an_unknown_enqueue_stays_unknown_on_another_server),
        cmocka_unit_test(an_enqueue_in_doubt_has_a_deadline_and_the_doubt_goes_on),
        cmocka_unit_test(a_lost_question_is_asked_again),
        cmocka_unit_test(other_enqueues_go_on_while_one_is_in_doubt),
        cmocka_unit_test(what_waits_behind_doubts_is_answered_in_time),
        cmocka_unit_test(ids_are_of_one_server),
        cmocka_unit_test(a_keyed_request_is_one_call_of_its_own),
        cmocka_unit_test(a_known_key_answers_the_ids_of_then),
        cmocka_unit_test(a_known_key_wakes_who_waits_for_its_queues),
        cmocka_unit_test(a_job_refused_then_is_refused_again),
        cmocka_unit_test(a_bad_job_of_a_keyed_request_fails_alone),
        cmocka_unit_test(an_unknown_keyed_request_is_sent_again),
        cmocka_unit_test(a_keyed_request_in_doubt_has_a_deadline),
        cmocka_unit_test(a_keyed_request_without_a_good_job_asks_nobody),
        cmocka_unit_test(an_unknown_completion_waits_for_the_old_backend),
        cmocka_unit_test(a_finish_in_doubt_has_a_deadline),
        cmocka_unit_test(an_unknown_claim_is_dealt_by_its_nonce),
        cmocka_unit_test(a_result_is_looked_for_among_the_newer_batches_of_its_backend),
        cmocka_unit_test(a_group_claims_on_while_a_call_is_in_doubt),
        cmocka_unit_test(a_claim_that_did_not_commit_leaves_nothing),
        cmocka_unit_test(a_busy_result_is_asked_for_again),
        cmocka_unit_test(doubts_of_a_group_are_bounded_and_claims_still_answered),
        cmocka_unit_test(a_claim_whose_answer_made_no_sense_is_not_asked_about),
        cmocka_unit_test(trap_14_deadlocks_are_counted),
        cmocka_unit_test(receipts_that_nobody_holds_keep_no_neighbour_waiting),
        cmocka_unit_test(a_full_lock_table_makes_flushes_smaller_for_a_while),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
