/* broker and group: one call for all who wait, dealt fairly, at the right time. */
#include <stdio.h>

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

/* ---- jobs that cannot be read ---- */

static void assert_fails(const struct db_call *call, size_t count)
{
    assert_non_null(call);
    assert_int_equal(call->args.finish.count, count);
    for (size_t i = 0; i < count; i++) {
        const struct finish_order *order = call->args.finish.orders[i];
        assert_int_equal(order->outcome, JOB_FAIL);
        assert_true(bytes_equal(order->error, bytes_of_text("unreadable job")));
    }
}

static void what_cannot_be_read_fails_and_its_neighbours_are_handed_out(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle a = join(world, 1);

    claim(world, a, 10, 5, 1000);
    turn(world);
    reply_mixed(world, call_of(world, DB_CLAIM), 3, 2, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 10)->count, 3);
    assert_int_equal(world->core.attempts.owned, 3);
    assert_int_equal(world->core.attempts.reserved, 0);
    assert_int_equal(session_of(&world->core.sessions, a)->finish_items, 0);
    assert_fails(call_of(world, DB_FINISH), 2);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->receipt.index, 4);
    reply_all_done(world, call_of(world, DB_FINISH));
    claim(world, a, 11, 5, 60000); /* one that finds only such jobs waits on, and asks at once */
    turn(world);
    reply_mixed(world, call_of(world, DB_CLAIM), 0, 5, CLAIM_FILLED);
    assert_null(answer_to(world, 1, 11));
    assert_int_equal(call_of(world, DB_CLAIM)->args.claim.limit, 5);
    assert_int_equal(core_counters(&world->core).unreadable_jobs, 7);
    world_end(world);
}

static void what_cannot_be_read_fails_however_long_it_takes(void **state)
{
    (void)state;
    static const int16_t too_busy[] = {STORAGE_BUSY, FINISH_DONE};
    struct world *world = world_new();

    claim(world, join(world, 1), 10, 2, 1000);
    turn(world);
    reply_mixed(world, call_of(world, DB_CLAIM), 0, 2, CLAIM_EMPTY);
    lose_call(world, call_of(world, DB_FINISH));
    reply_gone(world, true);
    assert_fails(call_of(world, DB_FINISH), 2);
    fail_call(world, call_of(world, DB_FINISH), OUTCOME_NOT_DONE, "53100");
    wait_us(world, US_PER_S);
    assert_fails(call_of(world, DB_FINISH), 2);
    reply_finished(world, call_of(world, DB_FINISH), too_busy);
    wait_us(world, 20000);
    assert_fails(call_of(world, DB_FINISH), 1);
    reply_all_done(world, call_of(world, DB_FINISH));
    assert_true(finisher_is_idle(&world->core.finisher));
    world_end(world);
}

static void what_cannot_be_read_fails_although_nobody_waits(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle a = join(world, 1);

    claim(world, a, 10, 5, 1000);
    turn(world);
    sessions_drain(&world->core.sessions, false);
    session_vanished(&world->core.sessions, a);
    lose_call(world, call_of(world, DB_CLAIM));
    reply_gone(world, true);
    reply_mixed(world, call_of(world, DB_CLAIM_RESULT), 1, 2, CLAIM_FILLED);
    assert_false(core_is_idle(&world->core));
    const struct db_call *back = call_of(world, DB_FINISH);
    assert_int_equal(back->args.finish.count, 3);
    assert_int_equal(back->args.finish.orders[0]->outcome, JOB_RELEASE);
    assert_int_equal(back->args.finish.orders[1]->outcome, JOB_FAIL);
    assert_int_equal(back->args.finish.orders[2]->outcome, JOB_FAIL);
    reply_all_done(world, call_of(world, DB_FINISH));
    assert_true(core_is_idle(&world->core));
    world_end(world);
}

static void what_the_storage_will_not_fail_is_let_go(void **state)
{
    (void)state;
    static const int16_t refused[] = {FINISH_INVALID, FINISH_STALE};
    struct world *world = world_new();
    handle a = join(world, 1);

    claim(world, a, 10, 2, 1000);
    turn(world);
    reply_mixed(world, call_of(world, DB_CLAIM), 0, 2, CLAIM_EMPTY);
    reply_finished(world, call_of(world, DB_FINISH), refused);
    wait_us(world, (uint64_t)2 * US_PER_S);
    assert_null(call_of(world, DB_FINISH));
    assert_true(finisher_is_idle(&world->core.finisher));
    world_end(world); /* the group waits for nothing */
}

static void so_many_that_cannot_be_read_and_no_more(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle a = join(world, 1);

    claim(world, a, 10, 512, 1000);
    claim(world, a, 11, 1, 60000);
    turn(world);
    reply_mixed(world, call_of(world, DB_CLAIM), 0, 511, CLAIM_FILLED);
    assert_non_null(call_of(world, DB_CLAIM));
    reply_mixed(world, call_of(world, DB_CLAIM), 0, 1, CLAIM_FILLED);
    assert_null(call_of(world, DB_CLAIM));
    wait_us(world, US_PER_S);
    assert_int_equal(answer_to(world, 1, 10)->count, 0);
    assert_null(call_of(world, DB_CLAIM));
    for (int i = 0; i < 8; i++) {
        assert_null(call_of(world, DB_CLAIM));
        assert_non_null(call_of(world, DB_FINISH));
        reply_all_done(world, call_of(world, DB_FINISH));
    }
    assert_non_null(call_of(world, DB_CLAIM));
    world_end(world);
}

/* ---- clients that do not read ---- */

static void who_does_not_read_is_dealt_no_more(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle slow = join(world, 1);

    world->job_bytes = DEALT_BYTES_MAX / 2;
    world->stuck[1] = true;
    for (uint64_t id = 10; id < 20; id++)
        claim(world, slow, id, 2, 60000);
    turn(world);
    reply_claimed(world, 2, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 10)->count, 2);
    turn(world);
    assert_null(call_of(world, DB_CLAIM)); /* what was filled would be asked again at once */
    broker_wake_all(&world->core.broker);
    wait_us(world, US_PER_S);
    assert_null(call_of(world, DB_CLAIM));
    handle neighbour = join(world, 2);
    claim(world, neighbour, 10, 3, 60000);
    turn(world);
    assert_int_equal(call_of(world, DB_CLAIM)->args.claim.limit, 3);
    reply_claimed(world, 3, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 2, 10)->count, 3);
    read_all(world, 1, slow);
    turn(world);
    assert_int_equal(call_of(world, DB_CLAIM)->args.claim.limit, 18); /* nothing is lost */
    reply_claimed(world, 2, CLAIM_EMPTY);
    assert_int_equal(answer_to(world, 1, 11)->count, 2);
    world_end(world);
}

static void what_was_claimed_for_who_stopped_reading_is_for_others(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle slow = join(world, 1);
    handle neighbour = join(world, 2);

    claim(world, slow, 10, 3, 60000);
    claim(world, neighbour, 10, 1, 60000);
    turn(world);
    world->job_bytes = DEALT_BYTES_MAX;
    world->stuck[1] = true;
    world->appended[1] += DEALT_BYTES_MAX;
    take(world, slow, REQUEST_PING, 11); /* any answer shows that it does not read */
    claim(world, slow, 12, 3, 60000);
    reply_claimed(world, 3, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 2, 10)->count, 1);
    assert_null(answer_to(world, 1, 10));
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 2);
    world_end(world);
}

static void work_announced_to_who_does_not_read_is_found_afterwards(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle slow = join(world, 1);

    claim(world, slow, 10, 1, 60000);
    turn(world);
    reply_claimed(world, 0, CLAIM_EMPTY); /* now it pauses */
    world->stuck[1] = true;
    world->appended[1] += DEALT_BYTES_MAX;
    take(world, slow, REQUEST_PING, 11);
    broker_wake(&world->core.broker, bytes_of_text("q"));
    turn(world);
    assert_null(call_of(world, DB_CLAIM));
    read_all(world, 1, slow);
    turn(world);
    assert_non_null(call_of(world, DB_CLAIM)); /* without waiting for the pause */
    world_end(world);
}

static void who_does_not_read_waits_no_longer_than_it_asked_to(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle slow = join(world, 1);

    claim(world, slow, 10, 1, 100);
    turn(world);
    wait_us(world, (uint64_t)100 * US_PER_MS); /* overdue, its call is in flight */
    claim(world, slow, 11, 1, 200);
    claim(world, slow, 12, 1, 0);
    wait_us(world, 1);
    world->stuck[1] = true;
    world->appended[1] += DEALT_BYTES_MAX;
    take(world, slow, REQUEST_PING, 13);
    assert_null(answer_to(world, 1, 12));
    reply_claimed(world, 0, CLAIM_EMPTY);
    assert_int_equal(answer_to(world, 1, 10)->count, 0);
    assert_int_equal(answer_to(world, 1, 12)->count, 0);
    assert_null(answer_to(world, 1, 11));
    wait_us(world, (uint64_t)200 * US_PER_MS);
    assert_int_equal(answer_to(world, 1, 11)->count, 0);
    assert_null(call_of(world, DB_CLAIM));
    assert_int_equal(world->core.broker.idle.count, 1);
    world_end(world);
}

/* Its claim was to be asked for once more before it may leave. */
static void an_overdue_claim_leaves_when_its_client_stops_reading(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle slow = join(world, 1);

    claim(world, slow, 10, 1, 60000);
    turn(world);
    claim(world, slow, 11, 1, 0);
    wait_us(world, 1);
    reply_claimed(world, 0, CLAIM_BUSY);
    assert_null(answer_to(world, 1, 11)); /* no call has begun since it came */
    fail_call(world, call_of(world, DB_CLAIM), OUTCOME_NOT_DONE, "57P03");
    claim(world, slow, 12, 1, 0);
    wait_us(world, 1);
    assert_null(answer_to(world, 1, 12)); /* waits for the next try */
    world->stuck[1] = true;
    world->appended[1] += DEALT_BYTES_MAX;
    take(world, slow, REQUEST_PING, 13);
    turn(world);
    assert_int_equal(answer_to(world, 1, 12)->kind, ANSWER_ERROR);
    assert_null(answer_to(world, 1, 10));
    world_end(world);
}

static void expect_no_room(const struct world *world, uint64_t id, const char *message)
{
    assert_int_equal(answer_to(world, 1, id)->code, CODE_RESOURCE_EXHAUSTED);
    assert_string_equal(answer_to(world, 1, id)->message, message);
}

static void one_session_has_an_eighth_of_all_attempts_at_most(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle greedy = join(world, 1);
    handle neighbour = join(world, 2);
    uint64_t id = 100;

    for (size_t room = ATTEMPTS_PER_SESSION_MAX; room > 0; room -= CLAIM_JOBS_MAX)
        claim(world, greedy, id++, CLAIM_JOBS_MAX, 60000);
    turn(world);
    reply_claimed(world, 2, CLAIM_EMPTY); /* the first, which gives back what it does not need */
    claim(world, greedy, 10, CLAIM_JOBS_MAX - 2, 60000);
    claim(world, greedy, 11, 1, 60000);
    assert_null(answer_to(world, 1, 10));
    expect_no_room(world, 11,
                   "this session holds 2 jobs and asks for 32766: 1 more are beyond 32768");
    claim(world, neighbour, 10, CLAIM_JOBS_MAX, 60000);
    assert_null(answer_to(world, 2, 10));
    world_end(world);
}

static void one_session_waits_for_an_eighth_of_all_lists_at_most(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle greedy = join(world, 1);
    handle neighbour = join(world, 2);
    char name[16];

    for (unsigned i = 0; i < GROUPS_PER_SESSION_MAX; i++) {
        snprintf(name, sizeof name, "q%u", i);
        claim_from(world, greedy, 1000 + i, name, 1, 60000);
    }
    claim_from(world, greedy, 10, "q5", 1, 60000); /* no other list */
    claim_from(world, greedy, 11, "other", 1, 60000);
    assert_null(answer_to(world, 1, 10));
    expect_no_room(world, 11,
                   "claims of this session wait for 128 different lists of queues already");
    claim_from(world, neighbour, 10, "other", 1, 60000);
    assert_null(answer_to(world, 2, 10));
    broker_end_claims(&world->core.broker, session_of(&world->core.sessions, greedy));
    claim_from(world, greedy, 12, "other", 1, 60000);
    assert_null(answer_to(world, 1, 12));
    world_end(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_read_fails_and_its_neighbours_are_handed_out),
        cmocka_unit_test(what_cannot_be_read_fails_however_long_it_takes),
        cmocka_unit_test(what_cannot_be_read_fails_although_nobody_waits),
        cmocka_unit_test(what_the_storage_will_not_fail_is_let_go),
        cmocka_unit_test(so_many_that_cannot_be_read_and_no_more),
        cmocka_unit_test(a_failed_claim_says_what_can_be_done),
        cmocka_unit_test(one_session_has_an_eighth_of_all_attempts_at_most),
        cmocka_unit_test(one_session_waits_for_an_eighth_of_all_lists_at_most),
        cmocka_unit_test(who_does_not_read_is_dealt_no_more),
        cmocka_unit_test(what_was_claimed_for_who_stopped_reading_is_for_others),
        cmocka_unit_test(work_announced_to_who_does_not_read_is_found_afterwards),
        cmocka_unit_test(who_does_not_read_waits_no_longer_than_it_asked_to),
        cmocka_unit_test(an_overdue_claim_leaves_when_its_client_stops_reading),
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
