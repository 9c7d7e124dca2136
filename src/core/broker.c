/* broker: see broker.h. */
#include "core/broker.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "core/doubt.h"
#include "core/retry.h"

enum {
    BUSY_PAUSE_US = 1 * US_PER_MS,
    BUSY_JITTER_US = 2 * US_PER_MS,
    FAILED_PAUSE_US = 20 * US_PER_MS,
    FAILED_DOUBLINGS_MAX = 6,
    KEY_BYTES_MAX = CLAIM_QUEUES_MAX * (NAME_BYTES_MAX + 1),
};

static uint64_t now_us(const struct broker *broker)
{
    return broker->with.env->now_us(broker->with.env->ctx);
}

static uint64_t random_below(const struct broker *broker, uint64_t bound)
{
    return broker->with.env->random_u64(broker->with.env->ctx) % bound;
}

/* A claim call that may have committed. */
struct claim_doubt {
    struct doubt doubt;
    struct group *group;
    uint64_t nonce;
    uint64_t above;
};

/* ---- where a group stands ---- */

/* Too much of it is in doubt, or is still to fail: no call before some of that is over. */
static bool is_stuck(const struct group *group)
{
    return group->doubts >= CLAIM_DOUBTS_PER_GROUP_MAX ||
           group->unreadable >= UNREADABLE_PER_GROUP_MAX;
}

/* Something that it waits for will call back. */
static bool is_awaited(const struct group *group)
{
    return group->doubts > 0 || group->unreadable > 0;
}

/* Nobody asks for its claims any more, if it has some: those that are overdue have waited enough.
 */
static void rest(struct group *group)
{
    struct broker *broker = group->broker;

    if (group->overdue.count > 0)
        timer_set(broker->with.timers, &group->poll, now_us(broker));
}

/* Puts the group on the list that its state names, and sets its timer. */
static void place(struct group *group)
{
    struct broker *broker = group->broker;
    struct list *list = &broker->waiting;

    timer_stop(broker->with.timers, &group->poll);
    if (group->in_flight || is_stuck(group))
        list = &broker->waiting;
    else if (group->demand == 0 && group_has_claims(group))
        rest(group);
    else if (group->demand == 0)
        list = is_awaited(group) ? &broker->waiting : &broker->idle;
    else if (group->next_us <= now_us(broker))
        list = &broker->ready;
    else
        timer_set(broker->with.timers, &group->poll, group->next_us);
    if (list_has(list, &group->node))
        return; /* keeps its turn */
    if (group->node.head != NULL)
        list_remove(group->node.head, &group->node);
    list_push_back(list, &group->node);
}

static void wake(struct group *group)
{
    if (group->in_flight) {
        group->woken = true;
    } else {
        group->next_us = 0;
        group->polling = false;
    }
    place(group);
}

void broker_wake_all(struct broker *broker)
{
    struct list *lists[] = {&broker->waiting, &broker->idle};

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (struct list_node *node = lists[i]->first, *next; node != NULL; node = next) {
            next = node->next;
            wake(CONTAINER_OF(node, struct group, node));
        }
    }
}

void broker_wake(struct broker *broker, struct bytes queue)
{
    struct list *lists[] = {&broker->waiting, &broker->idle};

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (struct list_node *node = lists[i]->first, *next; node != NULL; node = next) {
            struct group *group = CONTAINER_OF(node, struct group, node);
            next = node->next;
            if (group_has_queue(group, queue))
                wake(group);
        }
    }
}

void broker_configure(struct broker *broker, const struct broker_setup *setup)
{
    struct list *lists[] = {&broker->waiting, &broker->idle, &broker->ready};

    broker->with.jobs_max = setup->jobs_max;
    broker->with.poll_min_us = setup->poll_min_us;
    broker->with.poll_max_us = setup->poll_max_us;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        for (struct list_node *node = lists[i]->first; node != NULL; node = node->next)
            CONTAINER_OF(node, struct group, node)->pause_us = setup->poll_min_us;
    broker_wake_all(broker);
}

/* ---- answering claims ---- */

/* Ends the claim; its jobs, if any, become attempts of the session. */
static void answer_claim(struct broker *broker, struct claim *claim)
{
    struct session *session = claim->seat->session;
    struct answer answer = {.kind = ANSWER_CLAIM};

    for (const struct claimed_job *job = claim->first; job != NULL; job = job->next)
        attempts_add(broker->with.attempts, &session->attempts, &job->receipt);
    attempts_unreserve(broker->with.attempts, claim->wanted - claim->got);
    timer_stop(broker->with.timers, &claim->deadline);
    group_remove_claim(claim);
    answer.of.claim.first = claim->first;
    answer.of.claim.count = claim->got;
    sessions_answer(broker->with.sessions, claim->request, &answer);
}

/* Nothing was found for it: empty, or why the storage could not be asked. */
static void answer_claim_empty(struct broker *broker, struct claim *claim)
{
    struct err err = claim->seat->group->last_err;
    struct request *request = claim->request;

    if (claim->seat->group->failures == 0) {
        answer_claim(broker, claim);
        return;
    }
    attempts_unreserve(broker->with.attempts, claim->wanted);
    timer_stop(broker->with.timers, &claim->deadline);
    group_remove_claim(claim);
    sessions_answer_err(broker->with.sessions, request, &err);
}

/* Whether its wait may end: something was asked for it, or nothing will be. */
static bool may_leave(const struct claim *claim)
{
    return claim_was_tried(claim) || is_stuck(claim->seat->group) || claim->seat->session->behind;
}

/* A claim leaves no earlier than a call that could have served it has ended: then none of its jobs
 * get lost on the way, and an empty answer is true even with wait_ms 0. */
static void on_deadline(struct timer *timer, uint64_t now)
{
    struct claim *claim = CONTAINER_OF(timer, struct claim, deadline);
    struct group *group = claim->seat->group;

    (void)now;
    if (!group->in_flight && may_leave(claim)) {
        struct broker *broker = group->broker;
        answer_claim_empty(broker, claim);
        place(group);
        return;
    }
    list_push_back(&group->overdue, &claim->overdue);
    if (!group->in_flight && group->failures == 0)
        group->next_us = 0;
    place(group);
}

static void answer_overdue(struct group *group)
{
    for (struct list_node *node = group->overdue.first, *next; node != NULL; node = next) {
        struct claim *claim = CONTAINER_OF(node, struct claim, overdue);
        next = node->next;
        if (may_leave(claim))
            answer_claim_empty(group->broker, claim);
        else
            group->next_us = 0;
    }
}

static void on_poll(struct timer *timer, uint64_t now)
{
    struct group *group = CONTAINER_OF(timer, struct group, poll);

    (void)now;
    if (group->demand == 0)
        answer_overdue(group);
    place(group);
}

/* ---- calls ---- */

static void hand_back(struct broker *broker, const struct claimed_job *jobs, size_t count)
{
    struct receipt receipts[CLAIM_JOBS_MAX];

    CHECK(count <= CLAIM_JOBS_MAX);
    for (size_t i = 0; i < count; i++)
        receipts[i] = jobs[i].receipt;
    if (count > 0)
        finisher_hand_back(broker->with.finisher, receipts, count,
                           (struct hand_back){.as = JOB_RELEASE});
}

/* Work that a poll found came without a wake-up, so more of its kind may follow: poll often. What a
 * wake-up announced says nothing of the kind. */
static void pause_empty(struct group *group, bool found_some)
{
    struct broker *broker = group->broker;

    if (found_some && group->polling)
        group->pause_us = broker->with.poll_min_us;
    group->polling = !group->woken;
    group->next_us = group->woken ? 0 : now_us(broker) + group->pause_us;
    group->pause_us *= 2;
    if (group->pause_us > broker->with.poll_max_us)
        group->pause_us = broker->with.poll_max_us;
}

static void answer_served(struct group *group)
{
    for (struct list_node *node = group->seats.last, *prev; node != NULL; node = prev) {
        struct seat *seat = CONTAINER_OF(node, struct seat, in_group);
        size_t served = seat_served(seat);
        prev = node->prev;
        if (served == 0)
            return;
        for (; served > 0; served--) /* the seat goes with its last claim */
            answer_claim(group->broker, CONTAINER_OF(seat->claims.first, struct claim, node));
    }
}

static void on_failed(void *ctx, size_t count)
{
    struct group *group = ctx;

    CHECK(group->unreadable >= count);
    group->unreadable -= count;
    place(group);
}

static void log_unreadable(const struct unreadable_job *job)
{
    char queue[NAME_BYTES_MAX + 1];
    char text[NAME_BYTES_MAX + 1];

    snprintf(queue, sizeof queue, "%.*s", (int)job->queue.len, (const char *)job->queue.data);
    log_event(LOG_ERROR, "job_unreadable", "queue=\"%s\" job=%llu reason=\"%s\"",
              log_text(text, sizeof text, queue), (unsigned long long)job->receipt.job_id,
              job->why);
}

/* Whoever waits for jobs has nothing to do with these, nor can a worker end them. */
static void fail_unreadable(struct group *group, const struct unreadable_job *jobs, size_t count)
{
    struct receipt receipts[CLAIM_JOBS_MAX];

    CHECK(count <= CLAIM_JOBS_MAX);
    group->unreadable += count;
    group->broker->unreadable_jobs += count;
    for (size_t i = 0; i < count;) {
        struct hand_back back = {
            .as = JOB_FAIL, .error = jobs[i].why, .over = on_failed, .ctx = group};
        size_t same = 0;
        while (i < count && strcmp(jobs[i].why, back.error) == 0) {
            log_unreadable(&jobs[i]);
            receipts[same++] = jobs[i++].receipt;
        }
        finisher_hand_back(group->broker->with.finisher, receipts, same, back);
    }
}

static void deal_out(struct group *group, const struct db_reply *reply)
{
    size_t count = reply->rows.claim.count;
    size_t dealt = group_deal(group, reply->rows.claim.jobs, count);

    answer_served(group);
    hand_back(group->broker, reply->rows.claim.jobs + dealt, count - dealt);
    fail_unreadable(group, reply->rows.claim.unreadable, reply->rows.claim.unreadable_count);
}

static void serve(struct group *group, const struct db_reply *reply)
{
    struct broker *broker = group->broker;

    group->failures = 0;
    switch (reply->rows.claim.end) {
    case CLAIM_FILLED: group->next_us = 0; break;
    case CLAIM_EMPTY:
        pause_empty(group, reply->rows.claim.count + reply->rows.claim.unreadable_count > 0);
        break;
    case CLAIM_BUSY:
        group->next_us = now_us(broker) + BUSY_PAUSE_US + random_below(broker, BUSY_JITTER_US);
        break;
    }
    deal_out(group, reply);
}

/* ---- doubt ---- */

static struct claim_mark *find_mark(struct broker *broker, const struct backend *backend)
{
    for (size_t i = 0; i < CLAIM_MARKS_MAX; i++)
        if (backend_equal(&broker->marks[i].backend, backend))
            return &broker->marks[i];
    return NULL;
}

static uint64_t newest_batch(const struct db_reply *reply)
{
    uint64_t newest = 0;

    for (size_t i = 0; i < reply->rows.claim.count; i++)
        if (reply->rows.claim.jobs[i].receipt.batch_id > newest)
            newest = reply->rows.claim.jobs[i].receipt.batch_id;
    for (size_t i = 0; i < reply->rows.claim.unreadable_count; i++)
        if (reply->rows.claim.unreadable[i].receipt.batch_id > newest)
            newest = reply->rows.claim.unreadable[i].receipt.batch_id;
    return newest;
}

static void move_mark(struct broker *broker, const struct db_reply *reply)
{
    uint64_t newest = newest_batch(reply);
    struct claim_mark *mark = find_mark(broker, &reply->backend);

    if (newest == 0)
        return;
    if (mark == NULL) {
        mark = &broker->marks[broker->next_mark];
        broker->next_mark = (broker->next_mark + 1) % CLAIM_MARKS_MAX;
        mark->backend = reply->backend;
    }
    mark->batch_id = newest;
}

static bool ask_result(struct doubt *doubt, struct db_call *call)
{
    const struct claim_doubt *claimed = CONTAINER_OF(doubt, struct claim_doubt, doubt);

    call->op = DB_CLAIM_RESULT;
    call->args.claim = (struct db_claim){
        .nonce = claimed->nonce, .above = claimed->above, .limit = CLAIM_JOBS_MAX};
    return true;
}

static bool on_result(struct doubt *doubt, const struct db_reply *reply)
{
    struct claim_doubt *claimed = CONTAINER_OF(doubt, struct claim_doubt, doubt);
    struct group *group = claimed->group;

    if (reply->rows.claim.end == CLAIM_BUSY)
        return false;
    mem_free(claimed);
    group->doubts--;
    deal_out(group, reply);
    place(group);
    return true;
}

/* Its jobs, if it got some, are running for us, and nobody else will ever see to them. */
static void raise_doubt(struct group *group, const struct db_reply *reply)
{
    struct claim_doubt *claimed = mem_zalloc(sizeof *claimed);
    const struct claim_mark *mark = find_mark(group->broker, &reply->backend);

    group->doubts++;
    claimed->group = group;
    claimed->nonce = group->call.args.claim.nonce;
    claimed->above = mark != NULL ? mark->batch_id : 0;
    claimed->doubt.env = group->broker->with.env;
    claimed->doubt.timers = group->broker->with.timers;
    claimed->doubt.ask = ask_result;
    claimed->doubt.known = on_result;
    doubt_raise(&claimed->doubt, &reply->backend, "claim");
}

static void note_failure(struct group *group, const struct err *err)
{
    struct broker *broker = group->broker;
    unsigned doublings =
        group->failures < FAILED_DOUBLINGS_MAX ? group->failures : FAILED_DOUBLINGS_MAX;
    uint64_t pause_us = (uint64_t)FAILED_PAUSE_US << doublings;
    char text[ERR_MESSAGE_BYTES];

    /* To the client a claim is never unsure. */
    retry_final_err(err, OUTCOME_NOT_DONE, false, &group->last_err);
    if (group->failures++ == 0)
        log_event(LOG_WARN, "claim_failed", "sqlstate=%s reason=\"%s\"", err->sqlstate,
                  log_text(text, sizeof text, err->message));
    group->next_us = now_us(broker) + pause_us / 2 + random_below(broker, pause_us);
}

static void on_claimed(struct db_call *call, const struct db_reply *reply)
{
    struct group *group = CONTAINER_OF(call, struct group, call);

    group->in_flight = false;
    group->calls_ended++;
    group->broker->calls_in_flight--;
    switch (reply->outcome) {
    case OUTCOME_DONE:
        move_mark(group->broker, reply);
        serve(group, reply);
        break;
    case OUTCOME_NOT_DONE: note_failure(group, &reply->err); break;
    case OUTCOME_UNKNOWN:
        note_failure(group, &reply->err);
        if (reply->backend.pid != 0)
            raise_doubt(group, reply);
        break;
    }
    group->woken = false;
    answer_overdue(group);
    place(group);
}

static void call(struct group *group)
{
    struct broker *broker = group->broker;
    const struct env *env = broker->with.env;
    uint32_t jobs_max = broker->with.jobs_max;

    group->in_flight = true;
    group->calls_started++;
    broker->calls_in_flight++;
    group->call.op = DB_CLAIM;
    group->call.args.claim =
        (struct db_claim){.queues = group->queues,
                          .queue_count = group->queue_count,
                          .nonce = env->random_u64(env->ctx),
                          .limit = group->demand < jobs_max ? (uint32_t)group->demand : jobs_max,
                          .bytes_max = CLAIM_BYTES_MAX};
    place(group);
    env->submit(env->ctx, &group->call);
}

void broker_turn(struct broker *broker)
{
    while (broker->ready.count > 0 && broker->calls_in_flight < broker->with.calls_max)
        call(CONTAINER_OF(broker->ready.first, struct group, node));
}

void broker_refuse(struct broker *broker, const struct err *why)
{
    while (broker->ready.count > 0) {
        struct group *group = CONTAINER_OF(broker->ready.first, struct group, node);
        group->calls_started++;
        group->calls_ended++;
        note_failure(group, why);
        answer_overdue(group);
        place(group);
    }
}

/* ---- claims come and go ---- */

static struct bytes make_key(const struct bytes *queues, size_t count, uint8_t key[KEY_BYTES_MAX])
{
    size_t len = 0;

    for (size_t i = 0; i < count; i++) {
        key[len++] = (uint8_t)queues[i].len;
        memcpy(key + len, queues[i].data, queues[i].len);
        len += queues[i].len;
    }
    return bytes_of(key, len);
}

static void forget(struct broker *broker, struct group *group)
{
    hash_remove(&broker->groups, &group->by_queues);
    list_remove(group->node.head, &group->node);
    group_free(group);
}

/* The group of this list of queues; NULL when GROUPS_MAX others are in use. */
static struct group *find_group(struct broker *broker, const struct bytes *queues, size_t count)
{
    uint8_t memory[KEY_BYTES_MAX];
    struct bytes key = make_key(queues, count, memory);
    uint64_t hash = hash_of_bytes(&broker->groups, key);

    for (struct hash_node *node = hash_first(&broker->groups, hash); node != NULL;
         node = hash_next(node)) {
        struct group *group = CONTAINER_OF(node, struct group, by_queues);
        if (bytes_equal(group->key, key))
            return group;
    }
    if (broker->groups.count >= GROUPS_MAX && broker->idle.count == 0)
        return NULL;
    if (broker->groups.count >= GROUPS_MAX)
        forget(broker, CONTAINER_OF(broker->idle.first, struct group, node));
    struct group *group = group_new(broker, queues, count, key);
    group->poll.fire = on_poll;
    group->call.done = on_claimed;
    group->pause_us = broker->with.poll_min_us;
    hash_add(&broker->groups, &group->by_queues, hash);
    return group;
}

/* Room for all jobs that the claim may get, or which bound it would exceed: the session's share, or
 * that of all. */
static enum code make_room(struct broker *broker, const struct session *session,
                           const struct group *group, uint32_t jobs_max, struct err *err)
{
    if (session->seats.count >= GROUPS_PER_SESSION_MAX && group_find_seat(group, session) == NULL)
        return err_set(err, CODE_RESOURCE_EXHAUSTED,
                       "claims of this session wait for %d different lists of queues already",
                       GROUPS_PER_SESSION_MAX);
    if (session->attempts.count + session->jobs_wanted + jobs_max > ATTEMPTS_PER_SESSION_MAX)
        return err_set(err, CODE_RESOURCE_EXHAUSTED,
                       "this session holds %zu jobs and asks for %zu: %u more are beyond %d",
                       session->attempts.count, session->jobs_wanted, jobs_max,
                       ATTEMPTS_PER_SESSION_MAX);
    if (!attempts_reserve(broker->with.attempts, jobs_max))
        return err_set(err, CODE_RESOURCE_EXHAUSTED,
                       "all sessions together hold, or ask for, %d jobs", ATTEMPTS_MAX);
    return CODE_OK;
}

void broker_take(struct broker *broker, struct session *session, struct request *request)
{
    struct group *group =
        find_group(broker, request->in.claim.queues, request->in.claim.queue_count);
    struct err err;

    if (group == NULL) {
        err_set(&err, CODE_RESOURCE_EXHAUSTED, "%d different lists of queues are being waited for",
                GROUPS_MAX);
        sessions_answer_err(broker->with.sessions, request, &err);
        return;
    }
    if (make_room(broker, session, group, request->in.claim.jobs_max, &err) != CODE_OK) {
        sessions_answer_err(broker->with.sessions, request, &err);
        place(group);
        return;
    }
    struct claim *claim = request_alloc(request, sizeof *claim);
    claim->request = request;
    request->work = claim;
    claim->wanted = request->in.claim.jobs_max;
    claim->deadline.fire = on_deadline;
    group_add_claim(group_seat(group, session), claim);
    timer_set(broker->with.timers, &claim->deadline,
              now_us(broker) + (uint64_t)request->in.claim.wait_ms * US_PER_MS);
    place(group);
}

void broker_end_claims(struct broker *broker, struct session *session)
{
    while (session->seats.first != NULL) {
        struct seat *seat = CONTAINER_OF(session->seats.first, struct seat, in_session);
        struct group *group = seat->group;
        answer_claim(broker, CONTAINER_OF(seat->claims.first, struct claim, node));
        place(group);
    }
}

/* May be called while claims of the session are answered: answers none. */
void broker_pace(struct session *session)
{
    for (struct list_node *node = session->seats.first; node != NULL; node = node->next) {
        struct seat *seat = CONTAINER_OF(node, struct seat, in_session);
        group_move_seat(seat);
        place(seat->group);
    }
}

/* What a call in flight brings for it goes to others, or back. */
void broker_end_claim(struct broker *broker, struct request *request)
{
    struct claim *claim = request->work;
    struct group *group = claim->seat->group;

    answer_claim(broker, claim);
    place(group);
}

void broker_init(struct broker *broker, const struct broker_setup *setup)
{
    *broker = (struct broker){.with = *setup};
    hash_init(&broker->groups, setup->env->random_u64(setup->env->ctx));
}

void broker_free(struct broker *broker)
{
    CHECK(broker_is_idle(broker));
    while (broker->idle.first != NULL)
        forget(broker, CONTAINER_OF(broker->idle.first, struct group, node));
    hash_free(&broker->groups);
}

bool broker_is_idle(const struct broker *broker)
{
    return broker->ready.count == 0 && broker->waiting.count == 0;
}
