/* batcher, finisher, enqueuer, ids, retry: who shares a transaction, when it is sent, what a
 * failure does. */
#include "core_world.h"

#include "core/retry.h"

static void one_flush_at_once_then_collect(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    finish(world, session, 10, 1, 1, 3, JOB_COMPLETE);
    finish(world, session, 11, 1, 4, 2, JOB_COMPLETE);
    assert_null(call_of(world, DB_COMPLETE)); /* not before the end of the turn */
    turn(world);
    struct db_call *first = call_of(world, DB_COMPLETE);
    assert_int_equal(first->args.finish.count, 5); /* both requests together */

    world->idle = 1;
    finish(world, session, 12, 1, 6, 1, JOB_COMPLETE);
    turn(world);
    assert_int_equal(calls_of(world, DB_COMPLETE), 1); /* collected while one is in flight */
    wait_us(world, 999);
    assert_int_equal(calls_of(world, DB_COMPLETE), 1);
    wait_us(world, 1);
    assert_int_equal(calls_of(world, DB_COMPLETE),
                     2); /* 1 ms have passed and a connection is free */

    world->idle = 0;
    finish(world, session, 13, 1, 7, 1, JOB_COMPLETE);
    wait_us(world, 5000);
    assert_int_equal(calls_of(world, DB_COMPLETE), 2); /* none is free */
    reply_all_done(world, first);
    reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_int_equal(calls_of(world, DB_COMPLETE), 1); /* as soon as none is in flight */
    assert_int_equal(answer_to(world, 1, 10)->count, 3);
    assert_int_equal(answer_to(world, 1, 11)->count, 2);
    assert_null(answer_to(world, 1, 13));
    world_end(world);
}

static void completes_are_sorted_and_without_duplicates(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    finish(world, session, 10, 9, 1, 2, JOB_COMPLETE);
    finish(world, session, 11, 3, 1, 2, JOB_COMPLETE);
    finish(world, session, 12, 9, 2, 1, JOB_COMPLETE); /* again */
    turn(world);
    struct db_call *call = call_of(world, DB_COMPLETE);
    assert_int_equal(call->args.finish.count, 4);
    for (size_t i = 1; i < 4; i++)
        assert_true(receipt_compare(&call->args.finish.orders[i - 1]->receipt,
                                    &call->args.finish.orders[i]->receipt) < 0);
    reply_all_done(world, call);
    assert_null(call_of(world, DB_COMPLETE)); /* one answer for both */
    int one = (int)answer_to(world, 1, 10)->statuses[1];
    int other = (int)answer_to(world, 1, 12)->statuses[0];
    assert_int_equal(one + other, FINISH_DONE + FINISH_ALREADY_DONE);
    assert_int_equal(answer_to(world, 1, 11)->statuses[1], FINISH_DONE);
    world_end(world);
}

static void a_flood_of_one_receipt_is_one_order(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    for (uint64_t id = 10; id < 10 + FLUSH_ITEMS_MAX - 1; id++)
        finish(world, session, id, 9, 1, 1, JOB_COMPLETE);
    finish(world, session, 5, 10, 1, 1, JOB_COMPLETE);
    turn(world);
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, 2);
    reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_null(call_of(world, DB_COMPLETE));
    assert_int_equal(answer_to(world, 1, 5)->statuses[0], FINISH_DONE);
    size_t done = 0;
    for (uint64_t id = 10; id < 10 + FLUSH_ITEMS_MAX - 1; id++)
        done += answer_to(world, 1, id)->statuses[0] == FINISH_DONE;
    assert_int_equal(done, 1);
    world_end(world);
}

static void rivals_for_one_receipt_are_asked_apart(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    int16_t stale[] = {FINISH_STALE};

    finish(world, session, 10, 9, 1, 1, JOB_CANCEL);
    finish(world, session, 11, 9, 1, 1, JOB_FAIL);
    finish(world, session, 12, 9, 1, 1, JOB_CANCEL);
    turn(world);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 1);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_FAIL);
    reply_all_done(world, call_of(world, DB_FINISH));
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 1);
    reply_finished(world, call_of(world, DB_FINISH), stale);
    assert_int_equal(answer_to(world, 1, 11)->statuses[0], FINISH_DONE);
    assert_int_equal(answer_to(world, 1, 10)->statuses[0], FINISH_STALE);
    assert_int_equal(answer_to(world, 1, 12)->statuses[0], FINISH_STALE);
    world_end(world);
}

static void limits_of_a_call_are_kept(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    for (uint64_t batch = 1; batch <= 100; batch++)
        finish(world, session, 100 + batch, batch, 1, 1, JOB_COMPLETE);
    finish(world, session, 99, 500, 1, 100, JOB_FAIL);
    turn(world);
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, COMPLETE_BATCHES_PER_CALL_MAX);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, FINISH_ITEMS_PER_CALL_MAX);
    reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count,
                     100 - COMPLETE_BATCHES_PER_CALL_MAX);
    world_end(world);
}

/* Whatever else comes, however low its receipts sort. */
static void the_oldest_outcome_goes_first(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    handle flooding = join(world, 2);

    finish(world, session, 10, 999, 1, 1, JOB_COMPLETE);
    for (uint64_t batch = 1; batch <= COMPLETE_BATCHES_PER_CALL_MAX; batch++)
        finish(world, flooding, 100 + batch, batch, 1, 1, JOB_COMPLETE);
    turn(world);
    reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_non_null(answer_to(world, 1, 10));
    assert_int_equal(answer_to(world, 1, 10)->statuses[0], FINISH_DONE);
    world_end(world);
}

/* The database works, but comes to it too late. */
static void what_was_not_sent_in_time_is_answered(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    finish(world, session, 10, 1, 1, 1, JOB_COMPLETE);
    turn(world);
    wait_us(world, US_PER_S);
    finish(world, session, 11, 2, 1, 1, JOB_COMPLETE);
    turn(world);
    uint64_t due_us = world->now_us + (uint64_t)REQUEST_MS * US_PER_MS + 1;
    while (world->now_us < due_us) { /* the turns come by themselves */
        assert_true(core_next_us(&world->core) <= due_us);
        assert_null(answer_to(world, 1, 11));
        wait_us(world, core_next_us(&world->core) - world->now_us);
    }
    assert_non_null(answer_to(world, 1, 11));
    assert_int_equal(answer_to(world, 1, 11)->statuses[0], FINISH_ABORTED);
    assert_null(answer_to(world, 1, 10)); /* its call is under way */
    world_end(world);
}

/* Why is what the server said, however the time went by. */
static void what_waited_for_ids_in_vain_hears_why(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    enqueue(world, session, 10, 1);
    enqueue_keyed(world, session, 11, 1, "key");
    turn(world);
    while (answer_to(world, 1, 10) == NULL || answer_to(world, 1, 11) == NULL) {
        if (call_of(world, DB_RESERVE_IDS) != NULL)
            fail_call(world, call_of(world, DB_RESERVE_IDS), OUTCOME_NOT_DONE, "57P03");
        wait_us(world, core_next_us(&world->core) - world->now_us);
    }
    assert_string_equal(answer_to(world, 1, 10)->sqlstate, "57P03");
    assert_string_equal(answer_to(world, 1, 11)->sqlstate, "57P03");
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_UNAVAILABLE);
    assert_true(world->now_us < (uint64_t)(REQUEST_MS + 2000) * US_PER_MS);
    world_end(world);
}

static void busy_items_come_again(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    int16_t statuses[] = {FINISH_DONE, STORAGE_BUSY, FINISH_STALE};

    finish(world, session, 10, 1, 1, 3, JOB_COMPLETE);
    turn(world);
    reply_finished(world, call_of(world, DB_COMPLETE), statuses);
    assert_null(answer_to(world, 1, 10));
    wait_us(world, 1900);
    assert_null(call_of(world, DB_COMPLETE));
    wait_us(world, 200);
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.orders[0]->receipt.index, 2);
    reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_int_equal(answer_to(world, 1, 10)->statuses[0], FINISH_DONE);
    assert_int_equal(answer_to(world, 1, 10)->statuses[1], FINISH_DONE);
    assert_int_equal(answer_to(world, 1, 10)->statuses[2], FINISH_STALE);
    world_end(world);
}

static void busy_items_are_asked_less_and_less_and_given_up(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    uint64_t end_us = world->now_us + (uint64_t)(REQUEST_MS + 200) * US_PER_MS;
    int16_t busy[] = {STORAGE_BUSY};
    size_t calls = 0;

    finish(world, session, 10, 1, 1, 1, JOB_COMPLETE);
    turn(world);
    for (; world->now_us < end_us; wait_us(world, 1000)) {
        if (call_of(world, DB_COMPLETE) == NULL)
            continue;
        calls++;
        reply_finished(world, call_of(world, DB_COMPLETE), busy);
    }
    assert_int_equal(answer_to(world, 1, 10)->statuses[0], FINISH_ABORTED);
    assert_in_range(calls, 100, 500);
    world_end(world);
}

static void what_could_not_be_handed_back_is_offered_again(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 2, 1000);
    turn(world);
    reply_claimed(world, 2, CLAIM_FILLED);
    session_vanished(&world->core.sessions, session);
    wait_us(world, GRACE_US);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 2);
        fail_call(world, call_of(world, DB_FINISH), OUTCOME_NOT_DONE, "57014");
        assert_null(call_of(world, DB_FINISH));
        assert_false(core_is_idle(&world->core));
        wait_us(world, US_PER_S);
    }
    const struct db_call *call = call_of(world, DB_FINISH);
    assert_int_equal(call->args.finish.orders[0]->outcome, JOB_WORKER_LOST);
    assert_int_equal(call->args.finish.orders[1]->receipt.job_id, 2);
    reply_all_done(world, call_of(world, DB_FINISH));
    assert_true(core_is_idle(&world->core));
    world_end(world);
}

static void jobs_without_ids_are_answered(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    enqueue(world, session, 10, 1);
    turn(world);
    fail_call(world, call_of(world, DB_RESERVE_IDS), OUTCOME_NOT_DONE, "08006");
    assert_null(answer_to(world, 1, 10)); /* the connection: it may come back */
    wait_us(world, (uint64_t)(REQUEST_MS + 1) * US_PER_MS);
    enqueue(world, session, 11, 1);
    turn(world);
    fail_call(world, call_of(world, DB_RESERVE_IDS), OUTCOME_NOT_DONE, "08006");
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_UNAVAILABLE);
    assert_null(answer_to(world, 1, 11));
    wait_us(world, US_PER_S);
    fail_call(world, call_of(world, DB_RESERVE_IDS), OUTCOME_NOT_DONE, "42501");
    assert_int_equal(answer_to(world, 1, 11)->code, CODE_PERMISSION_DENIED);
    world_end(world);
}

static void count_queue(struct world *world, handle session, uint64_t id)
{
    struct request *request = request_of(REQUEST_COUNTS, id);

    request->in.counts_queue = bytes_of_text("q");
    sessions_take_request(&world->core.sessions, session, request);
}

static void counts_do_not_crowd_the_database(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    struct db_reply counted = {.outcome = OUTCOME_DONE};

    for (uint64_t id = 10; id < 20; id++)
        count_queue(world, session, id);
    turn(world);
    assert_int_equal(calls_of(world, DB_COUNTS), COUNTS_IN_FLIGHT_MAX);
    for (int i = 0; i < 4; i++)
        reply(world, call_of(world, DB_COUNTS), &counted);
    world->now_us += (uint64_t)(REQUEST_MS + 1) * US_PER_MS; /* the others are too late */
    reply(world, call_of(world, DB_COUNTS), &counted);
    assert_int_equal(calls_of(world, DB_COUNTS), COUNTS_IN_FLIGHT_MAX - 1);
    size_t counted_late = 0;
    for (uint64_t id = 10; id < 20; id++)
        counted_late +=
            answer_to(world, 1, id) != NULL && answer_to(world, 1, id)->code == CODE_UNAVAILABLE;
    assert_int_equal(counted_late, 4);
    for (uint64_t id = 30; id < 40; id++)
        count_queue(world, session, id);
    session_vanished(&world->core.sessions, session); /* and nobody waits for these */
    while (calls_of(world, DB_COUNTS) > 0)
        reply(world, call_of(world, DB_COUNTS), &counted);
    assert_true(core_is_idle(&world->core));
    world_end(world);
}

static void a_deadlock_is_tried_three_times_whole_then_singly(void **state)
{
    (void)state;
    static const uint64_t delays_us[] = {10000, 20000, 40000};
    struct world *world = world_new();
    handle session = join(world, 1);

    finish(world, session, 10, 1, 1, 2, JOB_COMPLETE);
    turn(world);
    for (size_t i = 0; i < 3; i++) {
        fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_NOT_DONE, "40P01");
        wait_us(world, delays_us[i] - 1);
        assert_null(call_of(world, DB_COMPLETE));
        wait_us(world, 1);
        assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, 2);
    }
    fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_NOT_DONE, "40P01");
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, 1);
    reply_all_done(world, call_of(world, DB_COMPLETE));
    for (size_t i = 0; i < 4; i++) { /* the second one alone, to the end */
        assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, 1);
        fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_NOT_DONE, "40P01");
        wait_us(world, 40000);
    }
    assert_int_equal(answer_to(world, 1, 10)->statuses[0], FINISH_DONE);
    assert_int_equal(answer_to(world, 1, 10)->statuses[1], FINISH_ABORTED);
    world_end(world);
}

/* Whether the flush holds the poisoned item. */
static bool is_poisoned(const struct db_call *call)
{
    for (size_t i = 0; i < call->args.finish.count; i++)
        if (call->args.finish.orders[i]->receipt.index == 300)
            return true;
    return false;
}

static void one_bad_item_is_found_by_halves(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    size_t calls = 0;

    finish(world, session, 10, 1, 1, 512, JOB_COMPLETE);
    turn(world);
    for (struct db_call *call; (call = call_of(world, DB_COMPLETE)) != NULL; calls++) {
        if (is_poisoned(call))
            fail_call(world, call, OUTCOME_NOT_DONE, "22P02");
        else
            reply_all_done(world, call);
    }
    assert_in_range(calls, 10, 2 * 10);
    assert_int_equal(answer_to(world, 1, 10)->count, 512);
    assert_int_equal(answer_to(world, 1, 10)->statuses[0], FINISH_DONE);
    world_end(world);
}

static void suspects_are_not_mixed_with_new_items(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    finish(world, session, 10, 1, 1, 3, JOB_COMPLETE);
    turn(world);
    finish(world, session, 11, 2, 1, 3, JOB_COMPLETE);
    fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_NOT_DONE, "22P02");
    const struct db_finish *halves = &call_of(world, DB_COMPLETE)->args.finish;
    assert_int_equal(halves->count, 2);
    reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count,
                     1); /* not two with a new one */
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.orders[0]->receipt.batch_id, 1);
    world_end(world);
}

static void an_unknown_completion_is_replayed(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    int16_t already[] = {FINISH_ALREADY_DONE};

    finish(world, session, 10, 1, 1, 1, JOB_COMPLETE);
    turn(world);
    fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_UNKNOWN, "");
    assert_null(answer_to(world, 1, 10));
    wait_us(world, 40000);
    reply_finished(world, call_of(world, DB_COMPLETE), already);
    assert_int_equal(answer_to(world, 1, 10)->statuses[0], FINISH_ALREADY_DONE);
    world_end(world);
}

static void what_stays_unknown_is_said_to_be_unknown(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    finish(world, session, 10, 1, 1, 1, JOB_COMPLETE);
    turn(world);
    fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_UNKNOWN, "");
    wait_us(world, UINT64_C(31) * US_PER_S);
    fail_call(world, call_of(world, DB_COMPLETE), OUTCOME_NOT_DONE,
              ""); /* but the first one may have committed */
    assert_int_equal(answer_to(world, 1, 10)->kind, ANSWER_ERROR);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_DEADLINE_EXCEEDED);
    world_end(world);
}

static void enqueues_wait_for_ids_and_never_reuse_one(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    enqueue(world, session, 10, 3);
    turn(world);
    assert_null(call_of(world, DB_ENQUEUE));
    reply_ids(world, 1000, 10000);
    struct db_call *call = call_of(world, DB_ENQUEUE);
    assert_int_equal(call->args.enqueue.count, 3);
    assert_int_equal(call->args.enqueue.queue_count, 1);
    assert_int_equal(call->args.enqueue.ids[0], 1000);
    fail_call(world, call, OUTCOME_NOT_DONE, "40001");
    wait_us(world, 10000);
    assert_int_equal(call_of(world, DB_ENQUEUE)->args.enqueue.ids[0], 1003);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
    assert_int_equal(answer_to(world, 1, 10)->first_job_id, 1003);

    core_database_lost(&world->core);
    enqueue(world, session, 11, 1);
    turn(world);
    assert_null(call_of(world, DB_ENQUEUE)); /* the block died */
    reply_ids(world, 50000, 10000);
    assert_int_equal(call_of(world, DB_ENQUEUE)->args.enqueue.ids[0], 50000);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
    world_end(world);
}

static void an_unknown_enqueue_is_not_repeated(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    enqueue(world, session, 10, 1);
    turn(world);
    reply_ids(world, 1000, 10000);
    fail_call(world, call_of(world, DB_ENQUEUE), OUTCOME_UNKNOWN, "57P01");
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_DEADLINE_EXCEEDED);
    wait_us(world, US_PER_S);
    assert_null(call_of(world, DB_ENQUEUE));
    world_end(world);
}

/* The neighbours of a bad item are not bad, however long the flush has taken. */
static void an_old_flush_with_a_bad_item_is_still_taken_apart(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    struct db_failed_item bad = {0, "22P05", "made to fail"};
    struct db_reply refused = {.outcome = OUTCOME_DONE,
                               .rows.enqueue = {.failed = &bad, .count = 1}};

    enqueue(world, session, 10, 1);
    enqueue(world, session, 11, 1);
    turn(world);
    reply_ids(world, 1000, 10000);
    world->now_us += (REQUEST_MS + 1) * (uint64_t)US_PER_MS;
    fail_call(world, call_of(world, DB_ENQUEUE), OUTCOME_NOT_DONE, "22P05");
    assert_int_equal(call_of(world, DB_ENQUEUE)->args.enqueue.count, 1);
    reply(world, call_of(world, DB_ENQUEUE), &refused);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_INVALID_ARGUMENT);
    assert_int_equal(answer_to(world, 1, 11)->code, CODE_OK);
    world_end(world);
}

static enum trouble trouble_of(const char *sqlstate)
{
    struct err err;
    err_set(&err, CODE_INTERNAL, "x");
    err_set_sqlstate(&err, sqlstate);
    return retry_trouble(&err);
}

static void every_class_of_sqlstate(void **state)
{
    (void)state;
    assert_int_equal(trouble_of("40P01"), TROUBLE_ABORTED);
    assert_int_equal(trouble_of("40001"), TROUBLE_ABORTED);
    assert_int_equal(trouble_of("22P02"), TROUBLE_ITEM);
    assert_int_equal(trouble_of("23505"), TROUBLE_ITEM);
    assert_int_equal(trouble_of("54000"), TROUBLE_ITEM);
    assert_int_equal(trouble_of("XX000"), TROUBLE_ITEM);
    assert_int_equal(trouble_of("57P01"), TROUBLE_CONNECTION);
    assert_int_equal(trouble_of("08006"), TROUBLE_CONNECTION);
    assert_int_equal(trouble_of("25006"), TROUBLE_CONNECTION);
    assert_int_equal(trouble_of(SQLSTATE_OTHER_SCHEMA), TROUBLE_CONNECTION);
    assert_int_equal(trouble_of(""), TROUBLE_CONNECTION);
    assert_int_equal(trouble_of("57014"), TROUBLE_REFUSED);
    assert_int_equal(trouble_of("42883"), TROUBLE_REFUSED);
    assert_int_equal(trouble_of("53100"), TROUBLE_REFUSED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_flush_at_once_then_collect),
        cmocka_unit_test(completes_are_sorted_and_without_duplicates),
        cmocka_unit_test(a_flood_of_one_receipt_is_one_order),
        cmocka_unit_test(rivals_for_one_receipt_are_asked_apart),
        cmocka_unit_test(busy_items_are_asked_less_and_less_and_given_up),
        cmocka_unit_test(what_could_not_be_handed_back_is_offered_again),
        cmocka_unit_test(counts_do_not_crowd_the_database),
        cmocka_unit_test(jobs_without_ids_are_answered),
        cmocka_unit_test(limits_of_a_call_are_kept),
        cmocka_unit_test(the_oldest_outcome_goes_first),
        cmocka_unit_test(what_was_not_sent_in_time_is_answered),
        cmocka_unit_test(what_waited_for_ids_in_vain_hears_why),
        cmocka_unit_test(busy_items_come_again),
        cmocka_unit_test(a_deadlock_is_tried_three_times_whole_then_singly),
        cmocka_unit_test(one_bad_item_is_found_by_halves),
        cmocka_unit_test(an_old_flush_with_a_bad_item_is_still_taken_apart),
        cmocka_unit_test(suspects_are_not_mixed_with_new_items),
        cmocka_unit_test(an_unknown_completion_is_replayed),
        cmocka_unit_test(what_stays_unknown_is_said_to_be_unknown),
        cmocka_unit_test(enqueues_wait_for_ids_and_never_reuse_one),
        cmocka_unit_test(an_unknown_enqueue_is_not_repeated),
        cmocka_unit_test(every_class_of_sqlstate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
