/* broker and group: one call for all who wait, dealt fairly, at the right time. */
#include "core_world.h"

static void claims_of_a_group_share_one_call(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle a = join(world, 1);

    claim(world, a, 10, 5, 1000);
    claim(world, a, 11, 7, 1000);
    turn(world);
    assert_int_equal(calls_of(world, DB_CLAIM), 1);
    assert_int_equal(call_of(world, DB_CLAIM)->args.claim.limit, 12);
    claim(world, a, 12, 600, 1000);
    turn(world);
    assert_int_equal(calls_of(world, DB_CLAIM), 1); /* one in flight a group */
    reply_claimed(world, 12, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 11)->count, 7);
    assert_int_equal(call_of(world, DB_CLAIM)->args.claim.limit,
                     512); /* filled: at once, and at most 512 */
    world_end(world);
}

static void jobs_are_dealt_by_session_then_by_age(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle a = join(world, 1);
    handle b = join(world, 2);

    claim(world, a, 10, 2, 1000);
    claim(world, a, 11, 100, 1000);
    claim(world, a, 12, 100, 1000);
    claim(world, b, 20, 3, 1000);
    turn(world);
    reply_claimed(world, 9, CLAIM_EMPTY);
    assert_int_equal(answer_to(world, 2, 20)->count, 3); /* takes turns with all of a */
    assert_int_equal(answer_to(world, 1, 10)->count, 2); /* a's oldest first */
    assert_int_equal(answer_to(world, 1, 11)->count, 4);
    assert_null(answer_to(world, 1, 12));
    world_end(world);
}

static void who_got_nothing_is_first_the_next_time(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle sessions[3];

    for (handle i = 0; i < 3; i++) {
        sessions[i] = join(world, i + 1);
        claim(world, sessions[i], 10, 1, 10000);
    }
    turn(world);
    reply_claimed(world, 1, CLAIM_EMPTY);
    assert_non_null(answer_to(world, 1, 10));
    claim(world, sessions[0], 11, 1, 10000);
    wait_us(world, 5000);
    reply_claimed(world, 2, CLAIM_EMPTY);
    assert_non_null(answer_to(world, 2, 10));
    assert_non_null(answer_to(world, 3, 10));
    assert_null(answer_to(world, 1, 11));
    world_end(world);
}

static void empty_is_polled_less_and_less_until_woken(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle a = join(world, 1);

    claim(world, a, 10, 1, 60000);
    turn(world);
    for (uint64_t pause_us = 5000; pause_us < 250000; pause_us *= 2) {
        reply_claimed(world, 0, CLAIM_EMPTY);
        wait_us(world, pause_us - 1);
        assert_null(call_of(world, DB_CLAIM));
        wait_us(world, 1);
        assert_non_null(call_of(world, DB_CLAIM));
    }
    reply_claimed(world, 0, CLAIM_EMPTY);
    broker_wake(&world->core.broker, bytes_of_text("other"));
    turn(world);
    assert_null(call_of(world, DB_CLAIM));
    broker_wake(&world->core.broker, bytes_of_text("q"));
    turn(world);
    assert_non_null(call_of(world, DB_CLAIM)); /* at once */
    broker_wake(&world->core.broker, bytes_of_text("q"));
    reply_claimed(world, 0, CLAIM_EMPTY);
    assert_non_null(call_of(world, DB_CLAIM)); /* what it did not see may be there now */
    world_end(world);
}

static void only_what_a_poll_finds_makes_polls_frequent(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle a = join(world, 1);

    claim(world, a, 10, 512, 60000);
    claim(world, a, 11, 512, 60000);
    claim(world, a, 12, 512, 60000);
    turn(world);
    for (uint64_t pause_us = 5000; pause_us < 80000; pause_us *= 2) {
        reply_claimed(world, 0, CLAIM_EMPTY);
        wait_us(world, pause_us);
    }
    reply_claimed(world, 0, CLAIM_EMPTY); /* pauses 80 ms */
    broker_wake(&world->core.broker, bytes_of_text("q"));
    turn(world);
    reply_claimed(world, 1, CLAIM_EMPTY); /* as announced; pauses 160 ms */
    wait_us(world, 159999);
    assert_null(call_of(world, DB_CLAIM));
    wait_us(world, 1);
    reply_claimed(world, 1, CLAIM_EMPTY); /* unannounced */
    wait_us(world, 4999);
    assert_null(call_of(world, DB_CLAIM));
    wait_us(world, 1);
    assert_non_null(call_of(world, DB_CLAIM));
    world_end(world);
}

static void busy_comes_back_in_one_to_three_ms(void **state)
{
    (void)state;
    struct world *world = world_new();

    claim(world, join(world, 1), 10, 1, 60000);
    turn(world);
    for (int i = 0; i < 50; i++) {
        reply_claimed(world, 0, CLAIM_BUSY);
        wait_us(world, 999);
        assert_null(call_of(world, DB_CLAIM));
        wait_us(world, 2001);
        assert_non_null(call_of(world, DB_CLAIM));
    }
    world_end(world);
}

static void a_claim_ends_empty_after_its_wait_but_not_untried(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle a = join(world, 1);

    claim(world, a, 10, 1, 100);
    turn(world);
    reply_claimed(world, 0, CLAIM_EMPTY);
    wait_us(world, 99999);
    reply_claimed(world, 0, CLAIM_EMPTY);
    assert_null(answer_to(world, 1, 10));
    wait_us(world, 1);
    assert_int_equal(answer_to(world, 1, 10)->count, 0);
    claim(world, a, 11, 1, 0);
    wait_us(world, 10000);
    assert_null(answer_to(world, 1, 11)); /* its call is in flight */
    reply_claimed(world, 1, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 11)->count, 1);
    world_end(world);
}

static void jobs_nobody_waits_for_go_back(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle a = join(world, 1);
    handle b = join(world, 2);

    claim(world, a, 10, 3, 1000);
    claim(world, b, 10, 1, 1000);
    turn(world);
    session_vanished(&world->core.sessions, a);
    reply_claimed(world, 4, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 2, 10)->count, 1);
    const struct db_call *back = call_of(world, DB_FINISH);
    assert_int_equal(back->args.finish.count, 3);
    assert_int_equal(back->args.finish.orders[0]->outcome, JOB_RELEASE);
    world_end(world);
}

static void when_the_storage_can_not_be_asked_the_claim_says_so(void **state)
{
    (void)state;
    struct world *world = world_new();

    claim(world, join(world, 1), 10, 1, 200);
    turn(world);
    for (int i = 0; i < 100 && answer_to(world, 1, 10) == NULL; i++) {
        if (call_of(world, DB_CLAIM) != NULL)
            fail_call(world, call_of(world, DB_CLAIM), OUTCOME_NOT_DONE, "57P03");
        wait_us(world, 10000);
    }
    assert_int_equal(answer_to(world, 1, 10)->kind, ANSWER_ERROR);
    assert_int_equal(world->core.attempts.reserved, 0);
    world_end(world);
}

static void a_failed_claim_says_what_can_be_done(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 1, 0);
    turn(world);
    fail_call(world, call_of(world, DB_CLAIM), OUTCOME_NOT_DONE, "57014");
    assert_int_equal(answer_to(world, 1, 10)->code, CODE_UNAVAILABLE);
    claim(world, session, 11, 1, 0);
    wait_us(world, US_PER_S);
    fail_call(world, call_of(world, DB_CLAIM), OUTCOME_NOT_DONE, "42501");
    assert_int_equal(answer_to(world, 1, 11)->code, CODE_PERMISSION_DENIED);
    world_end(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_claim_says_what_can_be_done),
        cmocka_unit_test(claims_of_a_group_share_one_call),
        cmocka_unit_test(jobs_are_dealt_by_session_then_by_age),
        cmocka_unit_test(who_got_nothing_is_first_the_next_time),
        cmocka_unit_test(empty_is_polled_less_and_less_until_woken),
        cmocka_unit_test(only_what_a_poll_finds_makes_polls_frequent),
        cmocka_unit_test(busy_comes_back_in_one_to_three_ms),
        cmocka_unit_test(a_claim_ends_empty_after_its_wait_but_not_untried),
        cmocka_unit_test(jobs_nobody_waits_for_go_back),
        cmocka_unit_test(when_the_storage_can_not_be_asked_the_claim_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
