/* batcher: see batcher.h. */
#include "core/batcher.h"

#include "base/clock.h"
#include "core/retry.h"

enum {
    BUSY_PAUSE_MIN_US = 2 * US_PER_MS,
    BUSY_PAUSE_MAX_US = 100 * US_PER_MS,
    BUSY_AGE_PER_PAUSE = 8, /* who has waited long can wait a little longer */
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
                                .env = setup->env,
                                .timers = setup->timers,
                                .owner = setup->owner,
                                .items_max = setup->items_max,
                                .flush_us = setup->flush_us,
                                .idempotent = setup->idempotent};
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

static bool is_overdue(const struct batcher *batcher, const struct batch_item *item)
{
    return now_us(batcher) > item->since_us + (uint64_t)REQUEST_MS * US_PER_MS;
}

void batcher_give_up(struct batcher *batcher, const struct err *cause, bool all)
{
    for (struct list_node *node = batcher->pending.first, *next; node != NULL; node = next) {
        struct batch_item *item = item_of(node);
        struct err err;
        next = node->next;
        if (!all && !is_overdue(batcher, item))
            continue;
        list_remove(&batcher->pending, node);
        retry_final_err(cause, OUTCOME_NOT_DONE, item->uncertain, &err);
        batcher->ops->fail(item, &err);
    }
}

static void give_up(struct flush *flush, const struct db_reply *reply)
{
    for (size_t i = 0; i < flush->count; i++) {
        struct err err;
        retry_final_err(&reply->err, reply->outcome, flush->items[i]->uncertain, &err);
        flush->batcher->ops->fail(flush->items[i], &err);
    }
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

static void on_again(struct timer *timer, uint64_t now)
{
    (void)now;
    send(CONTAINER_OF(timer, struct flush, again));
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
                                .idempotent = batcher->idempotent,
                                .items = flush->count,
                                .repeats = flush->repeats,
                                .overdue =
                                    now_us(batcher) > oldest_us + (uint64_t)REQUEST_MS * US_PER_MS,
                                .random = env->random_u64(env->ctx)};
    struct retry_plan plan = retry_decide(&failed);
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
    switch (reply->outcome) {
    case OUTCOME_DONE: settle(flush, reply); return;
    case OUTCOME_NOT_DONE:
    case OUTCOME_UNKNOWN: recover(flush, reply); return;
    }
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
    batcher->flush_count++;
    return flush;
}

/* Whether pending items may be sent now; if it is only a matter of time, sets the timer. */
static bool is_time(struct batcher *batcher)
{
    if (batcher->in_flight == 0)
        return true;
    uint64_t due_us = item_of(batcher->pending.first)->since_us + batcher->flush_us;
    if (due_us > now_us(batcher)) {
        if (!timer_is_set(&batcher->flush_timer))
            timer_set(batcher->timers, &batcher->flush_timer, due_us);
        return false;
    }
    return batcher->env->idle_connections(batcher->env->ctx) > 0;
}

void batcher_turn(struct batcher *batcher)
{
    while (batcher->pending.count > 0 && is_time(batcher)) {
        struct flush *flush = flush_get(batcher);
        if (flush == NULL)
            return; /* one will end */
        fill(batcher, flush);
        unsigned before = batcher->in_flight;
        send(flush);
        if (batcher->in_flight == before)
            return; /* held back by its owner, who knows when to go on */
    }
}
