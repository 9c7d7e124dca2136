/* session: states, request ids, credit, silence, and every way to leave. */
#include <time.h>

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

/* ---- without a connection ---- */

/* A session on this connection that holds `count` attempts (job ids from `first` on). */
static handle join_holding(struct world *world, handle connection, size_t count)
{
    handle session = join(world, connection);

    claim(world, session, 10, (uint32_t)count, 1000);
    turn(world);
    reply_claimed(world, count, CLAIM_FILLED);
    assert_int_equal(answer_to(world, connection, 10)->count, count);
    return session;
}

static void vanish(struct world *world, handle session)
{
    session_vanished(&world->core.sessions, session);
    turn(world);
}

/* Sends Hello on this connection with the id that the session of `before` was told. held_count < 0:
 * without saying what is held; held are indexes of jobs in their claim. */
static handle resume_holding(struct world *world, handle connection, handle before, int held_count,
                             const struct receipt *held)
{
    handle session = session_open(&world->core.sessions, connection);
    struct request *request = request_of(REQUEST_HELLO, 1);
    size_t count = held_count > 0 ? (size_t)held_count : 0;
    struct held_receipt *items = request_alloc(request, count * sizeof *items);

    for (size_t i = 0; i < count; i++)
        items[i] = (struct held_receipt){.receipt = held[i], .valid = true};
    request->in.hello.session_id = bytes_of(world->session_ids[before], SESSION_ID_BYTES);
    request->in.hello.says_held = held_count >= 0;
    request->in.hello.held = items;
    request->in.hello.held_count = count;
    sessions_take_request(&world->core.sessions, session, request);
    return session;
}

static handle resume(struct world *world, handle connection, handle before)
{
    return resume_holding(world, connection, before, -1, NULL);
}

static bool is_resumed(const struct world *world, handle connection)
{
    return answer_to(world, connection, 1)->flag;
}

static size_t held_by(const struct world *world, handle session)
{
    return session_of(&world->core.sessions, session)->attempts.count;
}

static size_t notices_to(const struct world *world, handle connection, enum notice_kind kind)
{
    size_t count = 0;
    for (size_t i = 0; i < world->sent_count; i++)
        count += world->sent[i].connection == connection && world->sent[i].kind == ANSWER_NOTICE &&
                 world->sent[i].notice == kind;
    return count;
}

static struct receipt receipt_of(struct world *world, handle session, size_t at)
{
    struct list_node *node = session_of(&world->core.sessions, session)->attempts.first;
    while (at-- > 0)
        node = node->next;
    return CONTAINER_OF(node, struct attempt, node)->receipt;
}

/* Completes that attempt as this session's request. */
static void complete(struct world *world, handle session, uint64_t id,
                     const struct receipt *receipt)
{
    struct request *request = request_of(REQUEST_FINISH, id);
    struct finish_input *input = request_alloc(request, sizeof *input);

    input->order.outcome = JOB_COMPLETE;
    input->order.receipt = *receipt;
    request->in.finish.inputs = input;
    request->in.finish.count = 1;
    sessions_take_request(&world->core.sessions, session, request);
    turn(world);
}

static void reply_status(struct world *world, enum db_op op, enum finish_status status)
{
    int16_t statuses[] = {(int16_t)status};
    reply_finished(world, call_of(world, op), statuses);
}

static void attempts_of_a_vanished_session_are_lost_after_the_grace(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 5);

    vanish(world, session);
    vanish(world, session); /* a no-op */
    wait_us(world, GRACE_US - 1);
    assert_null(call_of(world, DB_FINISH));
    assert_int_equal(world->core.attempts.owned, 5);
    wait_us(world, 1);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 5);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_WORKER_LOST);
    assert_int_equal(world->core.attempts.owned, 0);
    assert_int_equal(world->core.sessions.table.count, 0);
    resume(world, 2, 1);
    assert_false(is_resumed(world, 2)); /* too late */
    assert_memory_not_equal(world->session_ids[1], world->session_ids[2], SESSION_ID_BYTES);
    world_end(world);
}

static void a_session_without_attempts_ends_with_its_connection(void **state)
{
    (void)state;
    struct world *world = world_new();

    vanish(world, join(world, 1));
    assert_int_equal(world->core.sessions.table.count, 0);
    resume(world, 2, 1);
    assert_false(is_resumed(world, 2));
    world_end(world);
}

static void within_the_grace_a_session_is_resumed(void **state)
{
    (void)state;
    struct world *world = world_new();

    vanish(world, join_holding(world, 1, 3));
    wait_us(world, GRACE_US - 1);
    handle back = resume(world, 2, 1);
    assert_true(is_resumed(world, 2));
    assert_memory_equal(world->session_ids[1], world->session_ids[2], SESSION_ID_BYTES);
    assert_int_equal(held_by(world, back), 3);
    assert_int_equal(world->core.sessions.table.count, 1);
    wait_us(world, (uint64_t)3 * GRACE_US);
    assert_null(call_of(world, DB_FINISH)); /* the old grace is over, and is no more */
    struct receipt receipt = receipt_of(world, back, 0);
    complete(world, back, 11, &receipt);
    reply_status(world, DB_COMPLETE, FINISH_DONE);
    assert_int_equal(held_by(world, back), 2);
    vanish(world, back);
    wait_us(world, GRACE_US - 1);
    handle again = resume(world, 3, 2); /* any number of times */
    assert_int_equal(held_by(world, again), 2);
    world_end(world);
}

static void an_unknown_id_opens_a_new_session(void **state)
{
    (void)state;
    struct world *world = world_new();

    memset(world->session_ids[5], 7, SESSION_ID_BYTES);
    handle session = resume(world, 1, 5);
    assert_false(is_resumed(world, 1));
    assert_memory_not_equal(world->session_ids[1], world->session_ids[5], SESSION_ID_BYTES);
    take(world, session, REQUEST_PING, 11);
    assert_int_equal(answer_to(world, 1, 11)->kind, ANSWER_PONG);
    world_end(world);
}

static void a_session_that_said_goodbye_is_gone(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 2);

    take(world, session, REQUEST_GOODBYE, 11);
    vanish(world, session); /* before GoodbyeOk */
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 2);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_RELEASE);
    resume(world, 2, 1);
    assert_false(is_resumed(world, 2));
    world_end(world);
}

static void a_hello_takes_over_from_a_connection_that_seems_to_live(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle old = join_holding(world, 1, 2);

    claim(world, old, 11, 4, 60000);
    turn(world);
    handle back = resume(world, 2, 1);
    assert_true(is_resumed(world, 2));
    assert_int_equal(answer_to(world, 1, 0)->code, CODE_FAILED_PRECONDITION);
    assert_true(world->closed[1]);
    assert_null(answer_to(world, 1, 11)); /* to nobody */
    assert_int_equal(held_by(world, back), 2);
    vanish(world, old); /* the old connection has closed at last */
    take(world, old, REQUEST_PING, 12);
    assert_null(answer_to(world, 1, 12));
    assert_int_equal(held_by(world, back), 2);
    reply_claimed(world, 4, CLAIM_FILLED); /* for the old connection's claim */
    assert_int_equal(held_by(world, back), 2);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 4);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_RELEASE);
    world_end(world);
}

static void of_two_that_resume_at_once_the_second_has_it(void **state)
{
    (void)state;
    struct world *world = world_new();

    vanish(world, join_holding(world, 1, 2));
    handle first = resume(world, 2, 1);
    handle second = resume(world, 3, 1);
    assert_true(is_resumed(world, 2) && is_resumed(world, 3));
    assert_true(world->closed[2]);
    assert_null(session_of(&world->core.sessions, first));
    assert_int_equal(held_by(world, second), 2);
    wait_us(world, (uint64_t)3 * GRACE_US);
    assert_null(call_of(world, DB_FINISH));
    world_end(world);
}

static void what_never_left_for_the_client_goes_back_untouched(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 2);

    world->stuck[1] = true;
    claim(world, session, 11, 3, 1000);
    turn(world);
    reply_claimed(world, 3, CLAIM_FILLED);
    world->written[1]++; /* the first byte of it has left: still not readable */
    vanish(world, session);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 3);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_RELEASE);
    reply_all_done(world, call_of(world, DB_FINISH));
    world->stuck[2] = true;
    handle back = resume(world, 2, 1);
    assert_int_equal(held_by(world, back), 2);
    vanish(world, back); /* not even HelloOk has left: what the old connection brought is held */
    assert_null(call_of(world, DB_FINISH));
    world_end(world);
}

static void what_comes_for_a_connection_that_has_just_gone_goes_back_untouched(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 3, 1000);
    turn(world);
    world->gone[1] = true;
    reply_claimed(world, 3, CLAIM_FILLED);
    vanish(world, session);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 3);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_RELEASE);
    world_end(world);
}

static void what_the_client_does_not_list_goes_back_and_what_is_gone_is_told(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 3);
    struct receipt held[] = {receipt_of(world, session, 0),
                             receipt_of(world, session, 2),
                             {.batch_id = 99, .job_id = 99, .index = 1}};

    vanish(world, session);
    handle back = resume_holding(world, 2, 1, 3, held);
    turn(world);
    assert_int_equal(held_by(world, back), 2);
    assert_int_equal(notices_to(world, 2, NOTICE_ATTEMPT_LOST), 1);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 1);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_RELEASE);
    reply_all_done(world, call_of(world, DB_FINISH));
    vanish(world, back);
    handle empty = resume_holding(world, 3, 2, 0, NULL); /* says that it holds nothing */
    turn(world);
    assert_true(is_resumed(world, 3));
    assert_int_equal(held_by(world, empty), 0);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 2);
    world_end(world);
}

/* The answer goes nowhere; the outcome counts. */
static void a_finish_whose_connection_is_gone_still_counts(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 2);
    struct receipt receipt = receipt_of(world, session, 0);

    complete(world, session, 11, &receipt);
    vanish(world, session);
    handle back = resume(world, 2, 1);
    assert_int_equal(held_by(world, back), 2);
    reply_status(world, DB_COMPLETE, FINISH_DONE);
    assert_null(answer_to(world, 1, 11));
    assert_int_equal(held_by(world, back), 1);
    assert_int_equal(notices_to(world, 2, NOTICE_ATTEMPT_LOST), 0); /* it ended as it was told */
    complete(world, back, 11, &receipt);
    reply_status(world, DB_COMPLETE, FINISH_ALREADY_DONE);
    assert_int_equal(answer_to(world, 2, 11)->statuses[0], FINISH_ALREADY_DONE);
    world_end(world);
}

static void an_attempt_that_is_being_ended_when_the_grace_ends(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 1);
    struct receipt receipt = receipt_of(world, session, 0);

    complete(world, session, 11, &receipt);
    vanish(world, session);
    wait_us(world, GRACE_US);
    assert_null(call_of(world, DB_FINISH)); /* its own outcome decides */
    reply_status(world, DB_COMPLETE, FINISH_INVALID);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_WORKER_LOST);
    world_end(world);
}

static void silence_leaves_the_grace(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 1);

    wait_us(world, (uint64_t)IDLE_TIMEOUT_MS * US_PER_MS);
    assert_true(world->closed[1]);
    vanish(world, session); /* when the close is through: no new grace */
    wait_us(world, GRACE_US - 1);
    assert_null(call_of(world, DB_FINISH));
    wait_us(world, 1);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_WORKER_LOST);
    world_end(world);
}

static void a_broken_stream_can_be_resumed_at_once(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 1);
    struct err err;

    err_set(&err, CODE_INVALID_ARGUMENT, "nonsense");
    session_refuse(&world->core.sessions, session, 0, &err);
    assert_int_equal(answer_to(world, 1, 0)->code, CODE_INVALID_ARGUMENT);
    assert_true(world->closed[1]);
    assert_int_equal(held_by(world, resume(world, 2, 1)), 1);
    vanish(world, session);
    assert_null(call_of(world, DB_FINISH));
    world_end(world);
}

static void draining_ends_what_nobody_can_come_back_for(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle holds = join_holding(world, 1, 1);

    vanish(world, join_holding(world, 2, 2));
    sessions_drain(&world->core.sessions, false);
    turn(world);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 2);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_RELEASE);
    reply_all_done(world, call_of(world, DB_FINISH));
    vanish(world, holds); /* while the proxy drains */
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.orders[0]->outcome, JOB_RELEASE);
    world_end(world);
}

static void sessions_in_grace_count(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 1);

    vanish(world, session);
    world->core.sessions.in_state[SESSION_AWAY] += SESSIONS_MAX - 1; /* and so many others */
    handle refused = session_open(&world->core.sessions, 2);
    take(world, refused, REQUEST_HELLO, 1);
    assert_int_equal(answer_to(world, 2, 1)->code, CODE_RESOURCE_EXHAUSTED);
    assert_true(world->closed[2]);
    assert_int_equal(held_by(world, resume(world, 3, 1)), 1); /* takes no more room */
    world->core.sessions.in_state[SESSION_AWAY] -= SESSIONS_MAX - 1;
    world_end(world);
}

/* ---- notices, Heartbeat, CancelRequest ---- */

static void a_session_is_told_what_others_ended(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 3);
    handle other = join(world, 2);
    struct receipt receipts[] = {receipt_of(world, session, 0), receipt_of(world, session, 1),
                                 receipt_of(world, session, 2)};

    complete(world, other, 20, &receipts[0]);
    reply_status(world, DB_COMPLETE, FINISH_STALE);
    assert_int_equal(notices_to(world, 1, NOTICE_ATTEMPT_LOST), 1);
    assert_int_equal(notices_to(world, 2, NOTICE_ATTEMPT_LOST), 0);
    complete(world, other, 21, &receipts[1]);
    reply_status(world, DB_COMPLETE, FINISH_DONE);
    assert_int_equal(notices_to(world, 1, NOTICE_ATTEMPT_LOST), 2);
    complete(world, session, 22, &receipts[2]); /* the answer says it */
    reply_status(world, DB_COMPLETE, FINISH_NOT_FOUND);
    assert_int_equal(notices_to(world, 1, NOTICE_ATTEMPT_LOST), 2);
    assert_int_equal(held_by(world, session), 0);
    world_end(world);
}

static void a_heartbeat_compares_what_is_held(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 1);
    handle other = join(world, 2);
    struct receipt receipt = receipt_of(world, session, 0);
    handle who[] = {session, other};

    for (size_t i = 0; i < 2; i++) {
        struct request *request = request_of(REQUEST_HEARTBEAT, 30);
        struct held_receipt *items = request_alloc(request, 2 * sizeof *items);
        items[0] = (struct held_receipt){.receipt = receipt, .valid = true};
        request->in.heartbeat.items = items;
        request->in.heartbeat.count = 2; /* the second is no receipt at all */
        sessions_take_request(&world->core.sessions, who[i], request);
    }
    assert_int_equal(answer_to(world, 1, 30)->count, 2);
    assert_int_equal(answer_to(world, 1, 30)->held[0], HEARTBEAT_OK);
    assert_int_equal(answer_to(world, 1, 30)->held[1], HEARTBEAT_LOST);
    assert_int_equal(answer_to(world, 2, 30)->held[0], HEARTBEAT_LOST); /* another's */
    assert_int_equal(world->call_count, 0);                             /* nothing is asked */
    world_end(world);
}

static void cancel(struct world *world, handle session, uint64_t id, uint64_t which)
{
    struct request *request = request_of(REQUEST_CANCEL, id);
    request->in.cancel_id = which;
    sessions_take_request(&world->core.sessions, session, request);
    turn(world);
}

static void cancelling_ends_one_waiting_claim(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);
    handle other = join(world, 2);

    claim(world, session, 10, 1, 60000);
    claim(world, session, 11, 1, 60000);
    enqueue(world, session, 12, 1);
    turn(world);
    cancel(world, session, 13, 10);
    assert_true(answer_to(world, 1, 13)->flag);
    assert_int_equal(answer_to(world, 1, 10)->count, 0);
    assert_null(answer_to(world, 1, 11));
    cancel(world, session, 14, 10); /* answered already */
    cancel(world, session, 15, 12); /* no claim */
    cancel(world, session, 16, 77); /* never sent */
    cancel(world, other, 17, 11);   /* another's */
    for (uint64_t id = 14; id <= 16; id++)
        assert_false(answer_to(world, 1, id)->flag);
    assert_false(answer_to(world, 2, 17)->flag);
    assert_false(world->closed[1]);
    reply_claimed(world, 2, CLAIM_FILLED); /* asked for both */
    assert_int_equal(answer_to(world, 1, 11)->count, 1);
    assert_int_equal(call_of(world, DB_FINISH)->args.finish.count, 1); /* the other goes back */
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

static void silence_does_not_end_a_goodbye(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join(world, 1);

    claim(world, session, 10, 1, 1000);
    turn(world);
    reply_claimed(world, 1, CLAIM_FILLED);
    take(world, session, REQUEST_GOODBYE, 11);
    turn(world);
    wait_us(world, (IDLE_TIMEOUT_MS + 1) * (uint64_t)US_PER_MS); /* a slow database */
    assert_false(world->closed[1]);
    reply_all_done(world, call_of(world, DB_FINISH));
    assert_int_equal(answer_to(world, 1, 11)->count, 1);
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
    sessions_drain(&world->core.sessions, false);
    turn(world);
    assert_int_equal(notices_to(world, 1, NOTICE_DRAINING), 1);
    assert_int_equal(notices_to(world, 2, NOTICE_DRAINING), 1);
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

/* Whatever kind of request comes and goes while the database says nothing. */
static void what_vanished_sessions_leave_is_bounded(void **state)
{
    (void)state;
    struct world *world = world_new();
    const struct finisher *finisher = &world->core.finisher;
    const struct finisher_shard *shard = &finisher->shards[finisher->shard_count];
    size_t most = 0;

    for (uint64_t i = 0; i < 600; i++) {
        handle session = join(world, 1);
        enqueue(world, session, 10, JOBS_PER_ENQUEUE_MAX);
        enqueue_keyed(world, session, 11, JOBS_PER_ENQUEUE_MAX, "key");
        finish(world, session, 12, 1 + i, 1, ITEMS_PER_FINISH_MAX, JOB_COMPLETE);
        finish(world, session, 13, 1 + i, 1, ITEMS_PER_FINISH_MAX, JOB_FAIL);
        take(world, session, REQUEST_COUNTS, 14);
        vanish(world, session);
        turn(world);
        assert_true(world->core.sessions.left_bytes <= LEFT_BYTES_MAX);
        if (i == 300)
            most = world->core.enqueuer.batcher.pending.count + shard->completes.pending.count;
    }
    assert_true(most > 0); /* and they are carried out while there is room */
    assert_int_equal(world->core.enqueuer.batcher.pending.count + shard->completes.pending.count,
                     most);
    assert_true(world->core.enqueuer.keyed.batcher.pending.count < 300);
    assert_true(world->core.counter.waiting.count < 600);
    assert_true(shard->others.pending.count < (size_t)300 * ITEMS_PER_FINISH_MAX);
    wait_us(world, (uint64_t)(REQUEST_MS + 1) * US_PER_MS); /* nobody is asked any more */
    for (struct db_call *call; (call = call_of(world, DB_COUNTS)) != NULL;)
        fail_call(world, call, OUTCOME_NOT_DONE, "57P01");
    world_end(world);
}

static void complete_held(struct world *world, handle session, uint64_t id)
{
    const struct list *held = &session_of(&world->core.sessions, session)->attempts;
    struct request *request = request_of(REQUEST_FINISH, id);
    struct finish_input *input = request_alloc(request, sizeof *input);

    input->order.outcome = JOB_COMPLETE;
    input->order.receipt = CONTAINER_OF(held->first, struct attempt, node)->receipt;
    request->in.finish.inputs = input;
    request->in.finish.count = 1;
    sessions_take_request(&world->core.sessions, session, request);
}

/* Its session is back, and holds what it held. */
static void a_forgotten_finish_ends_nothing(void **state)
{
    (void)state;
    struct world *world = world_new();
    handle session = join_holding(world, 1, 1);

    world->core.sessions.left_bytes = LEFT_BYTES_MAX;
    complete_held(world, session, 20);
    vanish(world, session);
    turn(world);
    assert_null(call_of(world, DB_COMPLETE));
    assert_null(call_of(world, DB_FINISH)); /* it waits for its client */
    world->core.sessions.left_bytes = 0;
    handle again = resume(world, 2, 1);
    complete_held(world, again, 21);
    turn(world);
    reply_all_done(world, call_of(world, DB_COMPLETE));
    assert_int_equal(answer_to(world, 2, 21)->statuses[0], FINISH_DONE);
    world_end(world);
}

/* Processor time for so many CancelRequests of no claim at all, while others wait. */
static double cancel_s(size_t claims, size_t cancels)
{
    struct world *world = world_new();
    handle session = join(world, 1);

    for (size_t i = 0; i < claims; i++)
        claim(world, session, 10000 + i, 1, CLAIM_WAIT_MS_MAX);
    clock_t began = clock();
    for (size_t i = 0; i < cancels; i++)
        cancel(world, session, 100 + i, 9);
    double used_s = (double)(clock() - began) / CLOCKS_PER_SEC;
    assert_false(answer_to(world, 1, 100)->flag);
    world_end(world);
    return used_s;
}

static void a_cancel_costs_the_same_however_many_wait(void **state)
{
    (void)state;
    double few_s = cancel_s(1, 1500);
    assert_true(cancel_s(1500, 1500) < 8 * few_s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_is_first_and_only_first),
        cmocka_unit_test(no_hello_in_time),
        cmocka_unit_test(silence_ends_a_session_that_waits_for_nothing),
        cmocka_unit_test(a_request_id_in_use_is_refused),
        cmocka_unit_test(credit_stops_reading_and_answers_start_it_again),
        cmocka_unit_test(attempts_of_a_vanished_session_are_lost_after_the_grace),
        cmocka_unit_test(a_session_without_attempts_ends_with_its_connection),
        cmocka_unit_test(within_the_grace_a_session_is_resumed),
        cmocka_unit_test(an_unknown_id_opens_a_new_session),
        cmocka_unit_test(a_session_that_said_goodbye_is_gone),
        cmocka_unit_test(a_hello_takes_over_from_a_connection_that_seems_to_live),
        cmocka_unit_test(of_two_that_resume_at_once_the_second_has_it),
        cmocka_unit_test(what_never_left_for_the_client_goes_back_untouched),
        cmocka_unit_test(what_comes_for_a_connection_that_has_just_gone_goes_back_untouched),
        cmocka_unit_test(what_the_client_does_not_list_goes_back_and_what_is_gone_is_told),
        cmocka_unit_test(a_finish_whose_connection_is_gone_still_counts),
        cmocka_unit_test(an_attempt_that_is_being_ended_when_the_grace_ends),
        cmocka_unit_test(silence_leaves_the_grace),
        cmocka_unit_test(a_broken_stream_can_be_resumed_at_once),
        cmocka_unit_test(draining_ends_what_nobody_can_come_back_for),
        cmocka_unit_test(sessions_in_grace_count),
        cmocka_unit_test(a_session_is_told_what_others_ended),
        cmocka_unit_test(a_heartbeat_compares_what_is_held),
        cmocka_unit_test(cancelling_ends_one_waiting_claim),
        cmocka_unit_test(goodbye_waits_for_answers_then_hands_back),
        cmocka_unit_test(silence_does_not_end_a_goodbye),
        cmocka_unit_test(draining_lets_workers_finish_what_they_hold),
        cmocka_unit_test(what_vanished_sessions_leave_is_bounded),
        cmocka_unit_test(a_forgotten_finish_ends_nothing),
        cmocka_unit_test(a_cancel_costs_the_same_however_many_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
