/* core: other limits while it runs (core_configure). */
#include "core_world.h"

static const struct core_setup other = {.claim_batch_size = 3,
                                        .enqueue_batch_size = 2,
                                        .completion_batch_size = 2,
                                        .flush_us = 7000,
                                        .poll_min_us = 1000,
                                        .poll_max_us = 2000};

static void a_group_that_rests_asks_at_once_and_polls_as_told(void **state)
{
    (void)state;
    struct world *world = world_new();

    claim(world, join(world, 1), 10, 512, 60000);
    turn(world);
    assert_int_equal(call_of(world, DB_CLAIM)->args.claim.limit, 512);
    for (uint64_t pause_us = 5000; pause_us < 250000; pause_us *= 2) {
        reply_claimed(world, 0, CLAIM_EMPTY);
        wait_us(world, pause_us);
    }
    reply_claimed(world, 0, CLAIM_EMPTY); /* from now on it rests for 250 ms */
    turn(world);
    assert_null(call_of(world, DB_CLAIM));
    core_configure(&world->core, &other);
    turn(world);
    assert_int_equal(call_of(world, DB_CLAIM)->args.claim.limit, 3);
    for (int i = 0; i < 3; i++) {
        uint64_t pause_us = i == 0 ? 1000 : 2000;
        reply_claimed(world, 0, CLAIM_EMPTY);
        wait_us(world, pause_us - 1);
        assert_null(call_of(world, DB_CLAIM));
        wait_us(world, 1);
        assert_non_null(call_of(world, DB_CLAIM));
    }
    world_end(world);
}

static void a_call_in_flight_is_not_disturbed(void **state)
{
    (void)state;
    struct world *world = world_new();

    claim(world, join(world, 1), 10, 5, 60000);
    turn(world);
    core_configure(&world->core, &other);
    turn(world);
    assert_int_equal(calls_of(world, DB_CLAIM), 1);
    reply_claimed(world, 5, CLAIM_FILLED); /* more than a call may ask for by now */
    assert_int_equal(answer_to(world, 1, 10)->count, 5);
    world_end(world);
}

static void the_next_flush_has_the_new_size(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 5, 60000);
    turn(world);
    reply_claimed(world, 5, CLAIM_FILLED);
    core_configure(&world->core, &other);
    finish(world, session, 11, 1, 1, 5, JOB_COMPLETE);
    enqueue(world, session, 12, 5);
    turn(world);
    assert_int_equal(call_of(world, DB_COMPLETE)->args.finish.count, 2);
    reply_ids(world, 1000, 10000);
    turn(world);
    assert_int_equal(call_of(world, DB_ENQUEUE)->args.enqueue.count, 2);
    world_end(world);
}

static void requests_with_a_key_wait_as_told(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    enqueue_keyed(world, session, 10, 1, "one");
    turn(world);
    reply_ids(world, 1000, 10000);
    turn(world);
    world->idle = 4;
    core_configure(&world->core, &other);
    enqueue_keyed(world, session, 11, 1, "two");
    turn(world);
    wait_us(world, 6999);
    assert_int_equal(calls_of(world, DB_ENQUEUE_ONCE), 1);
    wait_us(world, 1);
    assert_int_equal(calls_of(world, DB_ENQUEUE_ONCE), 2);
    world_end(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_that_rests_asks_at_once_and_polls_as_told),
        cmocka_unit_test(a_call_in_flight_is_not_disturbed),
        cmocka_unit_test(the_next_flush_has_the_new_size),
        cmocka_unit_test(requests_with_a_key_wait_as_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
