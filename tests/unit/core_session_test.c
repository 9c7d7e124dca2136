/* session: states, request ids, credit, silence, and every way to leave. */
#include "core_world.h"

static void hello_is_first_and_only_first(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle early = session_open(&world->core.sessions, 1);
    handle late = join(world, 2);

    take(world, early, REQUEST_PING, 5);
    assert_int_equal(answer_to(world, 1, 0)->code, CODE_FAILED_PRECONDITION);
    assert_true(world->closed[1]);
    take(world, early, REQUEST_PING, 6);
    assert_null(answer_to(world, 1, 6)); /* nothing is read any more */
    take(world, late, REQUEST_HELLO, 7);
    assert_int_equal(answer_to(world, 2, 7)->code, CODE_FAILED_PRECONDITION);
    assert_false(world->closed[2]);
    world_end(world);
}

static void no_hello_in_time(void **state)
{
    (void)state;
    struct world *world = world_new();

    session_open(&world->core.sessions, 1);
    wait_us(world, (uint64_t)HANDSHAKE_MS * US_PER_MS - 1);
    assert_false(world->closed[1]);
    wait_us(world, 1);
    assert_int_equal(answer_to(world, 1, 0)->code, CODE_DEADLINE_EXCEEDED);
    assert_true(world->closed[1]);
    world_end(world);
}

static void silence_ends_a_session_that_waits_for_nothing(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle waits = join(world, 1);
    uint64_t idle_us = (uint64_t)IDLE_TIMEOUT_MS * US_PER_MS;

    join(world, 2);
    handle pings = join(world, 3);
    claim(world, waits, 10, 1, CLAIM_WAIT_MS_MAX);
    wait_us(world, idle_us - 1000);
    take(world, pings, REQUEST_PING, 11);
    assert_int_equal(answer_to(world, 3, 11)->kind, ANSWER_PONG);
    wait_us(world, 1000);
    assert_true(world->closed[2]);
    assert_false(world->closed[1]);
    assert_false(world->closed[3]);
    wait_us(world, idle_us);
    assert_true(world->closed[3]);
    world_end(world);
}

static void a_request_id_in_use_is_refused(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 1, 60000);
    claim(world, session, 10, 1, 60000);
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_INVALID_ARGUMENT);
    world->sent_count = 0;
    turn(world);
    reply_claimed(world, 1, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 10)->kind, ANSWER_CLAIM);
    world->sent_count = 0;
    finish(world, session, 10, 1, 1, 1, JOB_COMPLETE); /* free again */
    turn(world);
    reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_int_equal(answer_to(world, 1, 10)->kind, ANSWER_FINISH);
    world_end(world);
}

static void credit_stops_reading_and_answers_start_it_again(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    for (uint64_t i = 0; i < CREDIT_REQUESTS; i++) {
        assert_false(world->paused[1]);
        enqueue(world, session, 100 + i, 1);
    }
    assert_true(world->paused[1]);
    finish(world, session, 10, 1, 1, 1,
           JOB_COMPLETE); /* what was read already still counts for nothing */
    turn(world);
    reply_ids(world, 1, 10000);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
    assert_false(world->paused[1]);
    world_end(world);
}

static void an_attempt_of_a_vanished_session_goes_back(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 5, 1000);
    turn(world);
    reply_claimed(world, 5, CLAIM_FILLED);
    assert_int_equal(world->core.attempts.owned, 5);
    session_vanished(&world->core.sessions, session);
    session_vanished(&world->core.sessions, session); /* a no-op */
    turn(world);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 5);
    assert_int_equal(world->core.attempts.owned, 0);
    world_end(world);
}

static void goodbye_waits_for_answers_then_hands_back(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 2, 1000);
    turn(world);
    reply_claimed(world, 2, CLAIM_FILLED);
    claim(world, session, 11, 2, 60000);
    enqueue(world, session, 12, 1);
    turn(world);
    take(world, session, REQUEST_GOODBYE, 13);
    assert_int_equal(answer_to(world, 1, 11)->count, 0); /* waiting claims end empty */
    claim(world, session, 14, 1, 1000);
    assert_int_equal(answer_to(world, 1, 14)->kind, ANSWER_ERROR);
    turn(world);
    assert_null(call_of(world, DB_FINISH)); /* the enqueue is not answered yet */
    reply_ids(world, 1, 10000);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 2);
    assert_null(answer_to(world, 1, 13));
    reply_all_done(world, call_of(world, DB_FINISH));
    assert_int_equal(answer_to(world, 1, 13)->count, 2);
    assert_true(world->closed[1]);
    world_end(world);
}

static void draining_lets_workers_finish_what_they_hold(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle holds = join(world, 1);

    join(world, 2);
    claim(world, holds, 10, 1, 1000);
    turn(world);
    reply_claimed(world, 1, CLAIM_FILLED);
    sessions_drain(&world->core.sessions, false);
    turn(world);
    assert_true(world->closed[2]);
    assert_false(world->closed[1]);
    assert_null(call_of(world, DB_FINISH)); /* what it holds stays its own */
    enqueue(world, holds, 11, 1);
    assert_int_equal(answer_to(world, 1, 11)->code, CODE_UNAVAILABLE);
    sessions_drain(&world->core.sessions, true);
    turn(world);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 1);
    reply_all_done(world, call_of(world, DB_FINISH));
    assert_true(world->closed[1]);
    world_end(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_is_first_and_only_first),
        cmocka_unit_test(no_hello_in_time),
        cmocka_unit_test(silence_ends_a_session_that_waits_for_nothing),
        cmocka_unit_test(a_request_id_in_use_is_refused),
        cmocka_unit_test(credit_stops_reading_and_answers_start_it_again),
        cmocka_unit_test(an_attempt_of_a_vanished_session_goes_back),
        cmocka_unit_test(goodbye_waits_for_answers_then_hands_back),
        cmocka_unit_test(draining_lets_workers_finish_what_they_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
