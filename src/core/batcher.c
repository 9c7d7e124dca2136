/* batcher: see batcher.h. */
#include "core/batcher.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/retry.h"

enum {
    BUSY_PAUSE_MIN_US = 2 * US_PER_MS,
    BUSY_PAUSE_MAX_US = 100 * US_PER_MS,
    BUSY_AGE_PER_PAUSE = 8, /* who has waited long can wait a little longer */
    DEADLOCK_SAY_US = 10 * US_PER_S,
};

static struct batch_item *item_of(struct list_node *node)
{
    return CONTAINER_OF(node, struct batch_item, node);
}

static uint64_t now_us(const struct batcher *batcher)
{
    return batcher->env->now_us(batcher->env->ctx);
}

static void on_flush_timer(struct timer *timer, uint64_t now)
{
    (void)timer; /* it only makes the loop turn: batcher_turn does the rest */
    (void)now;
}

static void on_later(struct timer *timer, uint64_t now)
{
    struct batcher *batcher = CONTAINER_OF(timer, struct batcher, later_timer);

    (void)now;
    while (batcher->later.last != NULL) {
        struct list_node *node = batcher->later.last;
        list_remove(&batcher->later, node);
        list_push_front(&batcher->pending, node);
    }
}

void batcher_init(struct batcher *batcher, const struct batcher_setup *setup)
{
    *batcher = (struct batcher){.ops = setup->ops,
                                .name = setup->name,
                                .env = setup->env,
                                .timers = setup->timers,
                                .owner = setup->owner,
                                .items_max = setup->items_max,
                                .flush_us = setup->flush_us};
    batcher->flush_timer.fire = on_flush_timer;
    batcher->later_timer.fire = on_later;
}

void batcher_configure(struct batcher *batcher, size_t items_max, uint64_t flush_us)
{
    batcher->items_max = items_max;
    batcher->flush_us = flush_us;
}

void batcher_free(struct batcher *batcher)
{
    CHECK(batcher_is_idle(batcher));
    timer_stop(batcher->timers, &batcher->flush_timer);
    for (struct list_node *node; (node = list_pop_front(&batcher->spare)) != NULL;)
        batcher->ops->flush_free(CONTAINER_OF(node, struct flush, node));
}

bool batcher_is_idle(const struct batcher *batcher)
{
    return batcher->pending.count == 0 && batcher->later.count == 0 &&
           batcher->spare.count == batcher->flush_count;
}

void batcher_add(struct batcher *batcher, struct batch_item *item)
{
    item->since_us = now_us(batcher);
    item->mates_max = FLUSH_ITEMS_MAX;
    item->uncertain = false;
    list_push_back(&batcher->pending, &item->node);
}

bool batcher_forget(struct batcher *batcher, struct batch_item *item)
{
    struct list *list = item->node.head;

    if (list != &batcher->pending && list != &batcher->later)
        return false;
    list_remove(list, &item->node);
    return true;
}

void batcher_put_back(struct flush *flush, size_t keep)
{
    while (flush->count > keep)
        list_push_front(&flush->batcher->pending, &flush->items[--flush->count]->node);
}

/* Isolated items stand at the front and are not mixed with others. */
static void fill(struct batcher *batcher, struct flush *flush)
{
    size_t mates_max = item_of(batcher->pending.first)->mates_max;
    size_t max = mates_max < batcher->items_max ? mates_max : batcher->items_max;

    while (flush->count < max && batcher->pending.count > 0) {
        struct batch_item *item = item_of(batcher->pending.first);
        if (item->mates_max != mates_max)
            break;
        list_remove(&batcher->pending, &item->node);
        flush->items[flush->count++] = item;
    }
}

static void rest(struct flush *flush)
{
    CHECK(flush->count == 0);
    flush->repeats = 0;
    list_push_back(&flush->batcher->spare, &flush->node);
}

static void send(struct flush *flush)
{
    struct batcher *batcher = flush->batcher;

    if (!batcher->ops->prepare(flush)) {
        CHECK(flush->count == 0);
        rest(flush);
        return;
    }
    batcher->in_flight++;
    batcher->env->submit(batcher->env->ctx, &flush->call);
}

/* Puts the items back in front, in order, to be sent in flushes of at most mates_max. */
static void isolate(struct flush *flush, size_t mates_max)
{
    for (size_t i = 0; i < flush->count; i++)
        flush->items[i]->mates_max = (uint16_t)mates_max;
    batcher_put_back(flush, 0);
    rest(flush);
}

static uint64_t deadline_us(const struct batch_item *item)
{
    return item->since_us + (uint64_t)REQUEST_MS * US_PER_MS;
}

static bool is_overdue(const struct batcher *batcher, const struct batch_item *item)
{
    return now_us(batcher) > deadline_us(item);
}

/* The storage contradicts itself in this item: somebody has to look at it. */
static void report_inconsistent(const struct batcher *batcher, const struct err *err)
{
    char text[ERR_MESSAGE_BYTES];

    log_event(LOG_ERROR, "item_inconsistent", "flush=%s sqlstate=%s reason=\"%s\"", batcher->name,
              err->sqlstate, log_text(text, sizeof text, err->message));
}

static void fail(struct batcher *batcher, struct batch_item *item, const struct err *cause,
                 enum outcome outcome)
{
    struct err err;

    retry_final_err(cause, outcome, item->uncertain, &err);
    if (err.code == CODE_INTERNAL)
        report_inconsistent(batcher, &err);
    batcher->ops->fail(item, &err);
}

/* What is wrong with one item is nobody else's trouble. */
static void note_trouble(struct batcher *batcher, const struct err *err)
{
    if (err->code == CODE_OK || retry_trouble(err) != TROUBLE_ITEM)
        batcher->trouble = *err;
}

void batcher_give_up(struct batcher *batcher, const struct err *cause, bool all)
{
    note_trouble(batcher, cause);
    for (struct list_node *node = batcher->pending.first, *next; node != NULL; node = next) {
        struct batch_item *item = item_of(node);
        next = node->next;
        if (!all && !is_overdue(batcher, item))
            continue;
        list_remove(&batcher->pending, node);
        fail(batcher, item, cause, OUTCOME_NOT_DONE);
    }
}

static void give_up(struct flush *flush, const struct db_reply *reply)
{
    for (size_t i = 0; i < flush->count; i++)
        fail(flush->batcher, flush->items[i], &reply->err, reply->outcome);
    flush->count = 0;
    rest(flush);
}

static void give_up_busy(struct batcher *batcher, struct batch_item *item)
{
    struct err err;

    err_set(&err, item->uncertain ? CODE_DEADLINE_EXCEEDED : CODE_ABORTED,
            "another transaction has been at it for %d ms", REQUEST_MS);
    batcher->ops->fail(item, &err);
}

/* The storage was busy with it: again after a pause that grows with its age, but not for ever. */
static void postpone(struct batcher *batcher, struct batch_item *item)
{
    uint64_t now = now_us(batcher);
    uint64_t age_us = now - item->since_us;
    uint64_t pause_us = age_us / BUSY_AGE_PER_PAUSE;

    if (is_overdue(batcher, item)) {
        give_up_busy(batcher, item);
        return;
    }
    if (pause_us < BUSY_PAUSE_MIN_US)
        pause_us = BUSY_PAUSE_MIN_US;
    if (pause_us > BUSY_PAUSE_MAX_US)
        pause_us = BUSY_PAUSE_MAX_US;
    list_push_back(&batcher->later, &item->node);
    if (!timer_is_set(&batcher->later_timer) || batcher->later_timer.at_us > now + pause_us)
        timer_set(batcher->timers, &batcher->later_timer, now + pause_us);
}

static void settle(struct flush *flush, const struct db_reply *reply)
{
    for (size_t i = 0; i < flush->count; i++) {
        struct batch_item *item = flush->items[i];
        if (flush->batcher->ops->settle(flush, i, reply) == SETTLE_LATER)
            postpone(flush->batcher, item);
    }
    flush->count = 0;
    rest(flush);
}

/* ---- doubt ---- */

/* Answers what has waited too long, and comes again for the next one. */
static void give_up_doubted(struct flush *flush)
{
    struct batcher *batcher = flush->batcher;
    uint64_t next_us = TIMER_NEVER;

    for (size_t i = 0; i < flush->count; i++) {
        struct batch_item *item = flush->items[i];
        if (item == NULL)
            continue;
        if (is_overdue(batcher, item)) {
            flush->items[i] = NULL;
            fail(batcher, item, &flush->cause, OUTCOME_UNKNOWN);
        } else if (deadline_us(item) < next_us) {
            next_us = deadline_us(item);
        }
    }
    if (next_us != TIMER_NEVER)
        timer_set(batcher->timers, &flush->again, next_us + 1);
}

static void raise_doubt(struct flush *flush, const struct db_reply *reply)
{
    flush->in_doubt = true;
    flush->cause = reply->err;
    for (size_t i = 0; i < flush->count; i++)
        flush->items[i]->uncertain = true;
    give_up_doubted(flush);
    doubt_raise(&flush->doubt, &reply->backend, flush->batcher->name);
}

static bool ask(struct doubt *doubt, struct db_call *call)
{
    struct flush *flush = CONTAINER_OF(doubt, struct flush, doubt);

    if (flush->batcher->ops->ask == NULL)
        return false;
    flush->batcher->ops->ask(flush, call);
    return true;
}

/* Takes out the items that were given up meanwhile. */
static void close_gaps(struct flush *flush)
{
    size_t kept = 0;

    for (size_t i = 0; i < flush->count; i++)
        if (flush->items[i] != NULL)
            flush->items[kept++] = flush->items[i];
    flush->count = kept;
}

/* From the last, so that what is put back in front keeps its order. */
static void resolve(struct flush *flush, const struct db_reply *reply)
{
    struct batcher *batcher = flush->batcher;

    for (size_t i = flush->count; i-- > 0;) {
        struct batch_item *item = flush->items[i];
        if (item == NULL)
            continue;
        switch (batcher->ops->resolve(flush, i, reply)) {
        case RESOLVED_DONE: break;
        case RESOLVED_NEVER: fail(batcher, item, &flush->cause, OUTCOME_UNKNOWN); break;
        case RESOLVED_NOT_DONE:
            item->uncertain = false;
            list_push_front(&batcher->pending, &item->node);
            break;
        }
    }
    flush->count = 0;
    rest(flush);
}

static bool on_known(struct doubt *doubt, const struct db_reply *reply)
{
    struct flush *flush = CONTAINER_OF(doubt, struct flush, doubt);

    flush->in_doubt = false;
    timer_stop(flush->batcher->timers, &flush->again);
    if (reply != NULL) {
        resolve(flush, reply);
        return true;
    }
    close_gaps(flush);
    if (flush->count > 0)
        send(flush);
    else
        rest(flush);
    return true;
}

/* ---- what comes back ---- */

static void on_again(struct timer *timer, uint64_t now)
{
    struct flush *flush = CONTAINER_OF(timer, struct flush, again);

    (void)now;
    if (flush->in_doubt)
        give_up_doubted(flush);
    else
        send(flush);
}

/* Counted, and said now and then: a flood of deadlocks must not become a flood of lines. */
static void note_deadlock(struct batcher *batcher)
{
    uint64_t now = now_us(batcher);

    batcher->deadlock_retries++;
    if (batcher->deadlock_said_us != 0 && now < batcher->deadlock_said_us + DEADLOCK_SAY_US)
        return;
    batcher->deadlock_said_us = now;
    log_event(LOG_WARN, "deadlock_retry", "flush=%s total=%llu", batcher->name,
              (unsigned long long)batcher->deadlock_retries);
}

static void repeat(struct flush *flush, uint64_t delay_us)
{
    flush->repeats++;
    timer_set(flush->batcher->timers, &flush->again, now_us(flush->batcher) + delay_us);
}

static void recover(struct flush *flush, const struct db_reply *reply)
{
    struct batcher *batcher = flush->batcher;
    const struct env *env = batcher->env;
    uint64_t oldest_us = UINT64_MAX;

    for (size_t i = 0; i < flush->count; i++) {
        struct batch_item *item = flush->items[i];
        item->uncertain = item->uncertain || reply->outcome == OUTCOME_UNKNOWN;
        oldest_us = item->since_us < oldest_us ? item->since_us : oldest_us;
    }
    struct retry_case failed = {.outcome = reply->outcome,
                                .err = &reply->err,
                                .idempotent = batcher->ops->ask == NULL,
                                .items = flush->count,
                                .repeats = flush->repeats,
                                .overdue =
                                    now_us(batcher) > oldest_us + (uint64_t)REQUEST_MS * US_PER_MS,
                                .random = env->random_u64(env->ctx)};
    struct retry_plan plan = retry_decide(&failed);
    if (strcmp(reply->err.sqlstate, "40P01") == 0 && plan.step != RETRY_GIVE_UP)
        note_deadlock(batcher);
    if (retry_trouble(&reply->err) == TROUBLE_CROWDED && batcher->ops->crowded != NULL)
        batcher->ops->crowded(batcher);
    switch (plan.step) {
    case RETRY_SAME: repeat(flush, plan.delay_us); return;
    case RETRY_HALVES: isolate(flush, (flush->count + 1) / 2); return;
    case RETRY_SINGLY: isolate(flush, 1); return;
    case RETRY_GIVE_UP: give_up(flush, reply); return;
    }
}

static void on_done(struct db_call *call, const struct db_reply *reply)
{
    struct flush *flush = CONTAINER_OF(call, struct flush, call);

    flush->batcher->in_flight--;
    note_trouble(flush->batcher, &reply->err);
    switch (reply->outcome) {
    case OUTCOME_DONE: settle(flush, reply); return;
    case OUTCOME_NOT_DONE: recover(flush, reply); return;
    case OUTCOME_UNKNOWN: break;
    }
    if (reply->backend.pid != 0)
        raise_doubt(flush, reply);
    else
        recover(flush, reply);
}

static struct flush *flush_get(struct batcher *batcher)
{
    struct list_node *node = list_pop_front(&batcher->spare);

    if (node != NULL)
        return CONTAINER_OF(node, struct flush, node);
    if (batcher->flush_count == FLUSHES_PER_BATCHER_MAX)
        return NULL;
    struct flush *flush = batcher->ops->flush_new(batcher);
    flush->batcher = batcher;
    flush->call.done = on_done;
    flush->again.fire = on_again;
    flush->doubt.env = batcher->env;
    flush->doubt.timers = batcher->timers;
    flush->doubt.ask = ask;
    flush->doubt.known = on_known;
    batcher->flush_count++;
    return flush;
}

/* However slowly the database goes on, or whatever else is sent to it: what was not sent in time is
 * answered. The oldest are in front. Before them are suspects, which are still taken apart. Returns
 * when the next one is too late. */
static uint64_t give_up_overdue(struct batcher *batcher)
{
    struct err err = batcher->trouble;

    if (err.code == CODE_OK)
        err_set(&err, CODE_UNAVAILABLE, "the database has not come to it for %d ms", REQUEST_MS);
    for (struct list_node *node = batcher->pending.first, *next; node != NULL; node = next) {
        struct batch_item *item = item_of(node);
        next = node->next;
        if (item->mates_max < FLUSH_ITEMS_MAX)
            continue;
        if (!is_overdue(batcher, item))
            return deadline_us(item) + 1;
        list_remove(&batcher->pending, node);
        fail(batcher, item, &err, OUTCOME_NOT_DONE);
    }
    return TIMER_NEVER;
}

/* So that a turn comes by then. */
static void look_again(struct batcher *batcher, uint64_t at_us)
{
    if (at_us != TIMER_NEVER &&
        (!timer_is_set(&batcher->flush_timer) || batcher->flush_timer.at_us > at_us))
        timer_set(batcher->timers, &batcher->flush_timer, at_us);
}

/* Whether pending items may be sent now. If not, a turn comes when they may, or when the first of
 * them is too late. */
static bool is_time(struct batcher *batcher, uint64_t late_us)
{
    uint64_t due_us = item_of(batcher->pending.first)->since_us + batcher->flush_us;
    bool is_due = due_us <= now_us(batcher);

    if (batcher->in_flight == 0 ||
        (is_due && batcher->env->idle_connections(batcher->env->ctx) > 0))
        return true;
    look_again(batcher, is_due ? late_us : due_us);
    return false;
}

void batcher_turn(struct batcher *batcher)
{
    uint64_t late_us = give_up_overdue(batcher);

    while (batcher->pending.count > 0 && is_time(batcher, late_us)) {
        struct flush *flush = flush_get(batcher);
        if (flush == NULL) { /* all are under way or in doubt; one will end */
            look_again(batcher, late_us);
            return;
        }
        fill(batcher, flush);
        unsigned before = batcher->in_flight;
        send(flush);
        if (batcher->in_flight == before)
            return; /* held back by its owner, who knows when to go on */
    }
}
