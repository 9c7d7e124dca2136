/* The place of a proxy among others: every transition of core/leader, the order of the leader's
 * duties, and news of work to and from other proxies. */
#include <stdio.h>

#include "core_world.h"

#define MS UINT64_C(1000) /* in us, like all times here */
#define S  (1000 * MS)

static const uint64_t pause_max_us = 5 * S; /* a control session has to say something */

/* ---- what is asked on the control session, at most one call of each kind at a time ---- */

static struct db_call *membership_call(const struct world *world, enum membership what)
{
    struct db_call *call = call_of(world, DB_MEMBERSHIP);
    return call != NULL && call->args.membership == what ? call : NULL;
}

static struct db_call *task_call(const struct world *world, enum maintenance_task task)
{
    struct db_call *call = call_of(world, DB_MAINTENANCE);
    return call != NULL && call->args.task == task ? call : NULL;
}

static void grant(struct world *world, enum membership what, bool granted)
{
    struct db_call *call = membership_call(world, what);
    struct db_reply with = {.outcome = OUTCOME_DONE, .rows.granted = granted};
    assert_non_null(call);
    reply(world, call, &with);
}

static void moved(struct world *world, int64_t rows)
{
    struct db_call *call = call_of(world, DB_MAINTENANCE);
    struct db_reply with = {.outcome = OUTCOME_DONE, .rows.maintenance = rows};
    assert_non_null(call);
    reply(world, call, &with);
}

static size_t control_calls(const struct world *world)
{
    return calls_of(world, DB_MEMBERSHIP) + calls_of(world, DB_MAINTENANCE) +
           calls_of(world, DB_ANNOUNCE);
}

/* As the pool does it: first the loss is told, then each call under way fails. */
static void lose(struct world *world)
{
    static const enum db_op ops[] = {DB_MEMBERSHIP, DB_MAINTENANCE, DB_ANNOUNCE};

    unsigned dropped = world->dropped;
    core_control_lost(&world->core);
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        while (call_of(world, ops[i]) != NULL)
            fail_call(world, call_of(world, ops[i]), OUTCOME_UNKNOWN, "");
    turn(world);
    assert_int_equal(world->dropped, dropped); /* it is gone already */
}

/* Moves time in small steps until something is asked on the control session. */
static uint64_t until_asked(struct world *world, uint64_t most_us)
{
    uint64_t waited_us = 0;

    while (control_calls(world) == 0) {
        assert_true(waited_us <= most_us);
        wait_us(world, 10 * MS);
        waited_us += 10 * MS;
    }
    return waited_us;
}

static struct world *known_world(void)
{
    struct world *world = world_new();
    core_control_up(&world->core);
    grant(world, MEMBER_REGISTER, true);
    return world;
}

static struct world *following_world(void)
{
    struct world *world = known_world();
    grant(world, MEMBER_TRY_LEAD, false);
    moved(world, 0); /* looked for stuck backends */
    assert_int_equal(control_calls(world), 0);
    return world;
}

static struct world *looking_world(void)
{
    struct world *world = known_world();
    grant(world, MEMBER_TRY_LEAD, false);
    return world;
}

static struct world *leading_world(void)
{
    struct world *world = known_world();
    grant(world, MEMBER_TRY_LEAD, true);
    return world;
}

static enum leader_state state_of(const struct world *world)
{
    return world->core.leader.state;
}

static void end(struct world *world)
{
    if (state_of(world) != LEADER_DOWN)
        lose(world);
    world_end(world);
}

/* ---- joining ---- */

static void test_registers_then_tries_at_once(void **state)
{
    (void)state;
    struct world *world = world_new();

    wait_us(world, 10 * S);
    assert_int_equal(control_calls(world), 0);
    core_control_up(&world->core);
    assert_non_null(membership_call(world, MEMBER_REGISTER));
    assert_int_equal(world->joined, 0);
    grant(world, MEMBER_REGISTER, true);
    assert_int_equal(world->joined, 1);
    assert_int_equal(leader_unknown_us(&world->core.leader), 0);
    grant(world, MEMBER_TRY_LEAD, true);
    assert_int_equal(state_of(world), LEADER_LEADING);
    end(world);
}

static void test_refused_registration_is_repeated(void **state)
{
    (void)state;
    struct world *world = world_new();

    core_control_up(&world->core);
    for (int i = 0; i < 5; i++) {
        grant(world, MEMBER_REGISTER, false);
        assert_true(until_asked(world, 1 * S) >= 400 * MS);
    }
    assert_int_equal(world->joined, 0);
    grant(world, MEMBER_REGISTER, true);
    assert_int_equal(world->joined, 1);
    end(world);
}

static void test_follower_tries_again_and_never_falls_silent(void **state)
{
    (void)state;
    struct world *world = following_world();
    uint64_t shortest = UINT64_MAX;
    uint64_t longest = 0;

    for (int i = 0; i < 20; i++) {
        uint64_t waited_us = until_asked(world, pause_max_us);
        shortest = waited_us < shortest ? waited_us : shortest;
        longest = waited_us > longest ? waited_us : longest;
        grant(world, MEMBER_TRY_LEAD, false);
        assert_non_null(task_call(world, TASK_END_STUCK_BACKENDS)); /* the leader's, say */
        moved(world, i % 2);
        assert_int_equal(control_calls(world), 0); /* no other duty */
    }
    assert_true(longest > shortest + 100 * MS); /* jitter: two proxies drift apart */
    until_asked(world, pause_max_us);
    grant(world, MEMBER_TRY_LEAD, true);
    assert_int_equal(state_of(world), LEADER_LEADING);
    end(world);
}

/* ---- losing the session ---- */

static void test_lost_session_ends_leadership_at_once(void **state)
{
    (void)state;
    struct world *world = leading_world();

    moved(world, 0);
    assert_int_equal(calls_of(world, DB_MAINTENANCE), 1); /* one is under way */
    lose(world);
    assert_int_equal(state_of(world), LEADER_DOWN);
    wait_us(world, 60 * S);
    assert_int_equal(control_calls(world), 0);
    core_control_up(&world->core);
    assert_non_null(membership_call(world, MEMBER_REGISTER)); /* known first, then the lead */
    grant(world, MEMBER_REGISTER, true);
    assert_int_equal(world->joined, 2);
    grant(world, MEMBER_TRY_LEAD, false);
    moved(world, 0);
    assert_int_equal(state_of(world), LEADER_FOLLOWING);
    end(world);
}

/* A call that went with its session must not be taken for one of the next. */
static void test_lost_in_every_state(void **state)
{
    (void)state;
    struct world *(*const worlds[])(void) = {known_world, looking_world, following_world,
                                             leading_world};

    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        struct world *world = worlds[i]();
        lose(world);
        wait_us(world, 10 * S);
        core_control_up(&world->core);
        lose(world); /* while registering */
        core_control_up(&world->core);
        grant(world, MEMBER_REGISTER, true);
        assert_non_null(membership_call(world, MEMBER_TRY_LEAD));
        end(world);
    }
    struct world *world = leading_world();
    leader_drain(&world->core.leader);
    assert_int_equal(state_of(world), LEADER_RESIGNING);
    lose(world);
    end(world);
}

static void test_failed_membership_call_drops_the_session(void **state)
{
    (void)state;
    struct world *world = world_new();

    core_control_up(&world->core);
    fail_call(world, membership_call(world, MEMBER_REGISTER), OUTCOME_NOT_DONE, "42501");
    assert_int_equal(world->dropped, 1);
    lose(world);
    core_control_up(&world->core);
    grant(world, MEMBER_REGISTER, true);
    fail_call(world, membership_call(world, MEMBER_TRY_LEAD), OUTCOME_NOT_DONE, "57014");
    assert_int_equal(world->dropped, 2);
    lose(world);
    core_control_up(&world->core);
    grant(world, MEMBER_REGISTER, true);
    grant(world, MEMBER_TRY_LEAD, true);
    moved(world, 0);
    leader_drain(&world->core.leader);
    fail_call(world, membership_call(world, MEMBER_RESIGN), OUTCOME_NOT_DONE, "42501");
    assert_int_equal(world->dropped, 3);
    wait_us(world, 60 * S);
    assert_null(call_of(world, DB_MEMBERSHIP)); /* until the session is gone: nothing */
    end(world);
}

/* ---- drain ---- */

static void test_drain_resigns_and_stays_known(void **state)
{
    (void)state;
    struct world *world = leading_world();

    leader_drain(&world->core.leader);
    assert_non_null(membership_call(world, MEMBER_RESIGN));
    moved(world, 0); /* the step that was under way ends, and no other begins */
    assert_int_equal(calls_of(world, DB_MAINTENANCE), 0);
    grant(world, MEMBER_RESIGN, true);
    assert_int_equal(state_of(world), LEADER_FOLLOWING);
    for (int i = 0; i < 10; i++) {
        until_asked(world, pause_max_us);
        assert_non_null(task_call(world, TASK_END_STUCK_BACKENDS)); /* a sign of life */
        moved(world, 0);
    }
    assert_int_equal(leader_unknown_us(&world->core.leader), 0);
    end(world);
}

static void test_drain_while_trying(void **state)
{
    (void)state;
    struct world *world = known_world();

    leader_drain(&world->core.leader);
    grant(world, MEMBER_TRY_LEAD, true);
    assert_int_equal(calls_of(world, DB_MAINTENANCE), 0);
    grant(world, MEMBER_RESIGN, true);
    assert_int_equal(state_of(world), LEADER_FOLLOWING);
    end(world);
}

/* ---- duties: all or none ---- */

static void test_new_leader_synchronises_first(void **state)
{
    (void)state;
    struct world *world = leading_world();
    bool ran[TASK_COUNT] = {false};

    assert_non_null(task_call(world, TASK_SYNC_RING_POINTERS));
    fail_call(world, call_of(world, DB_MAINTENANCE), OUTCOME_NOT_DONE, "57014");
    assert_int_equal(control_calls(world), 0);
    until_asked(world, 2 * S);
    assert_non_null(task_call(world, TASK_SYNC_RING_POINTERS)); /* and nothing before it */
    for (int i = 0; i < TASK_COUNT; i++) {
        ran[call_of(world, DB_MAINTENANCE)->args.task] = true;
        moved(world, 0);
    }
    for (int i = 0; i < TASK_COUNT; i++)
        assert_true(ran[i]);
    end(world);
}

static void test_rotation_is_followed_by_the_pointers(void **state)
{
    (void)state;
    struct world *world = leading_world();

    while (task_call(world, TASK_ROTATE_RINGS) == NULL)
        moved(world, 0);
    moved(world, 1);
    assert_non_null(task_call(world, TASK_SYNC_RING_POINTERS));
    end(world);
}

/* Answers every duty but `broken`, which fails, until it was resigned or `us` have passed. */
static bool resigns(struct world *world, enum maintenance_task broken, unsigned failures,
                    uint64_t us)
{
    for (uint64_t waited_us = 0; waited_us < us; waited_us += 10 * MS) {
        while (call_of(world, DB_MAINTENANCE) != NULL) {
            if (task_call(world, broken) != NULL && failures > 0) {
                failures--;
                fail_call(world, call_of(world, DB_MAINTENANCE), OUTCOME_NOT_DONE, "XX000");
            } else {
                moved(world, 0);
            }
        }
        if (membership_call(world, MEMBER_RESIGN) != NULL)
            return true;
        wait_us(world, 10 * MS);
    }
    return false;
}

static void test_ptrap_10_no_half_working_leader(void **state)
{
    (void)state;
    for (enum maintenance_task task = 0; task < TASK_COUNT; task++) {
        struct world *world = leading_world();
        assert_true(resigns(world, task, UINT32_MAX, 5 * S));
        assert_int_equal(calls_of(world, DB_MAINTENANCE), 0); /* it does nothing any more */
        grant(world, MEMBER_RESIGN, true);
        uint64_t away_us = 0;
        while (membership_call(world, MEMBER_TRY_LEAD) == NULL) { /* others come first */
            away_us += until_asked(world, pause_max_us);
            if (task_call(world, TASK_END_STUCK_BACKENDS) != NULL)
                moved(world, 0);
        }
        assert_in_range(away_us, 5 * S, 15 * S);
        grant(world, MEMBER_TRY_LEAD, true);
        assert_false(resigns(world, task, 0, 20 * S));
        end(world);
    }
}

static void test_single_failures_do_not_end_it(void **state)
{
    (void)state;
    for (enum maintenance_task task = 0; task < TASK_COUNT; task++) {
        struct world *world = leading_world();
        for (int i = 0; i < 3; i++)
            assert_false(resigns(world, task, TASK_FAILURES_MAX - 1, 70 * S));
        end(world);
    }
}

/* Promotion always finds a full portion and takes longer than every period. */
static void test_trap_31_slow_task_starves_nobody(void **state)
{
    (void)state;
    struct world *world = leading_world();
    unsigned ran[TASK_COUNT] = {0};

    for (int step = 0; step < 200; step++) {
        enum maintenance_task task = call_of(world, DB_MAINTENANCE)->args.task;
        ran[task]++;
        if (task == TASK_PROMOTE_DUE)
            wait_us(world, 3 * S);
        moved(world, task == TASK_PROMOTE_DUE ? maintenance_portion(task) : 0);
    }
    assert_true(ran[TASK_PROMOTE_DUE] >= 20);
    assert_true(ran[TASK_SYNC_RING_POINTERS] >= 2); /* every 60 s */
    for (int i = 0; i < TASK_COUNT; i++)
        if (i != TASK_SYNC_RING_POINTERS && i != TASK_PURGE_IDEMPOTENCY_KEYS)
            assert_true(ran[i] >= 20);
    assert_true(ran[TASK_PURGE_IDEMPOTENCY_KEYS] >= 5);
    end(world);
}

/* ---- claims of an instance that others can not see ---- */

static void test_unknown_instance_claims_nothing(void **state)
{
    (void)state;
    struct world *world = following_world();
    handle session = join(world, 1);

    claim(world, session, 2, 1, 20000);
    turn(world);
    reply_claimed(world, 0, CLAIM_EMPTY);
    lose(world);
    wait_us(world, 1 * S);
    assert_non_null(call_of(world, DB_CLAIM)); /* for a while nobody minds */
    reply_claimed(world, 0, CLAIM_EMPTY);
    for (uint64_t i = 0; i < 25; i++) {
        wait_us(world, 1 * S);
        if (i >= UNKNOWN_MAX_US / S)
            assert_null(call_of(world, DB_CLAIM));
        else if (call_of(world, DB_CLAIM) != NULL)
            reply_claimed(world, 0, CLAIM_EMPTY);
    }
    const struct sent *refused = answer_to(world, 1, 2); /* its wait is over */
    assert_true(refused->kind == ANSWER_ERROR && refused->code == CODE_UNAVAILABLE);
    claim(world, session, 3, 1, 60000);
    wait_us(world, 10 * S);
    assert_null(call_of(world, DB_CLAIM));
    core_control_up(&world->core);
    grant(world, MEMBER_REGISTER, true);
    turn(world);
    reply_claimed(world, 1, CLAIM_FILLED);
    assert_int_equal(answer_to(world, 1, 3)->count, 1);
    end(world);
}

/* ---- news ---- */

static size_t asked_for(struct world *world, const char *queue)
{
    const struct db_call *call = call_of(world, DB_ANNOUNCE);
    size_t count = 0;

    for (size_t i = 0; call != NULL && i < call->args.announce.queue_count; i++)
        count += bytes_equal(call->args.announce.queues[i], bytes_of_text(queue));
    return count;
}

static void told(struct world *world)
{
    struct db_reply with = {.outcome = OUTCOME_DONE};
    reply(world, call_of(world, DB_ANNOUNCE), &with);
}

/* A group whose poll has become slow. */
static handle sleeping_claim(struct world *world)
{
    handle session = join(world, 1);

    claim(world, session, 2, 1, 60000);
    turn(world);
    for (int i = 0; i < 12; i++) {
        reply_claimed(world, 0, CLAIM_EMPTY);
        wait_us(world, 250 * MS);
    }
    reply_claimed(world, 0, CLAIM_EMPTY);
    assert_null(call_of(world, DB_CLAIM));
    return session;
}

static void test_news_wake_once_a_turn(void **state)
{
    (void)state;
    struct world *world = following_world();

    sleeping_claim(world);
    core_notified(&world->core, bytes_of_text("other"));
    turn(world);
    assert_null(call_of(world, DB_CLAIM));
    for (int i = 0; i < 1000; i++)
        core_notified(&world->core, bytes_of_text("q"));
    turn(world);
    assert_int_equal(calls_of(world, DB_CLAIM), 1);
    reply_claimed(world, 0, CLAIM_EMPTY);
    turn(world);
    assert_null(call_of(world, DB_CLAIM)); /* the burst was one wake-up */
    end(world);
}

static void test_too_many_queues_wake_all(void **state)
{
    (void)state;
    struct world *world = following_world();
    char name[16];

    sleeping_claim(world);
    for (int i = 0; i < QUEUE_SET_MAX + 1; i++) {
        snprintf(name, sizeof name, "other%d", i);
        core_notified(&world->core, bytes_of_text(name));
    }
    turn(world);
    assert_non_null(call_of(world, DB_CLAIM));
    end(world);
}

static void test_foreign_payload_is_harmless(void **state)
{
    (void)state;
    struct world *world = following_world();
    char name[NAME_BYTES_MAX + 2];

    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    core_notified(&world->core, bytes_of_text(name));
    core_notified(&world->core, bytes_of_text(""));
    turn(world);
    end(world);
}

static void test_ptrap_12_back_again_asks_at_once(void **state)
{
    (void)state;
    struct world *world = following_world();

    sleeping_claim(world);
    lose(world);
    core_control_up(&world->core);
    assert_null(call_of(world, DB_CLAIM));
    grant(world, MEMBER_REGISTER, true);
    assert_non_null(call_of(world, DB_CLAIM)); /* what was announced meanwhile */
    end(world);
}

static void store(struct world *world, handle session, uint64_t id)
{
    enqueue(world, session, id, 1);
    turn(world);
    if (call_of(world, DB_RESERVE_IDS) != NULL)
        reply_ids(world, 1, 10000);
    turn(world);
    reply_enqueued(world, call_of(world, DB_ENQUEUE));
}

static void test_commits_are_announced_together(void **state)
{
    (void)state;
    struct world *world = following_world();
    handle session = join(world, 1);

    store(world, session, 2);
    assert_int_equal(asked_for(world, "q"), 1); /* the first at once */
    store(world, session, 3);
    assert_int_equal(calls_of(world, DB_ANNOUNCE), 1);
    told(world);
    for (uint64_t id = 4; id < 10; id++)
        store(world, session, id);
    assert_null(call_of(world, DB_ANNOUNCE));
    wait_us(world, ANNOUNCE_MS * MS);
    assert_int_equal(asked_for(world, "q"), 1);
    fail_call(world, call_of(world, DB_ANNOUNCE), OUTCOME_NOT_DONE, "57014");
    wait_us(world, 10 * MS * ANNOUNCE_MS);
    assert_null(call_of(world, DB_ANNOUNCE)); /* a hint is not repeated */
    lose(world);
    store(world, session, 20);
    wait_us(world, ANNOUNCE_MS * MS);
    assert_null(call_of(world, DB_ANNOUNCE));
    end(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registers_then_tries_at_once),
        cmocka_unit_test(test_refused_registration_is_repeated),
        cmocka_unit_test(test_follower_tries_again_and_never_falls_silent),
        cmocka_unit_test(test_lost_session_ends_leadership_at_once),
        cmocka_unit_test(test_lost_in_every_state),
        cmocka_unit_test(test_failed_membership_call_drops_the_session),
        cmocka_unit_test(test_drain_resigns_and_stays_known),
        cmocka_unit_test(test_drain_while_trying),
        cmocka_unit_test(test_new_leader_synchronises_first),
        cmocka_unit_test(test_rotation_is_followed_by_the_pointers),
        cmocka_unit_test(test_ptrap_10_no_half_working_leader),
        cmocka_unit_test(test_single_failures_do_not_end_it),
        cmocka_unit_test(test_trap_31_slow_task_starves_nobody),
        cmocka_unit_test(test_unknown_instance_claims_nothing),
        cmocka_unit_test(test_news_wake_once_a_turn),
        cmocka_unit_test(test_too_many_queues_wake_all),
        cmocka_unit_test(test_foreign_payload_is_harmless),
        cmocka_unit_test(test_ptrap_12_back_again_asks_at_once),
        cmocka_unit_test(test_commits_are_announced_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
