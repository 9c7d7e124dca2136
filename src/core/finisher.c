/* finisher: see finisher.h. */
#include "core/finisher.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "core/session.h"

enum { OFFER_PAUSE_US = 1000 * US_PER_MS, CALM_US = 10 * US_PER_S };

struct finish_work;

struct finish_item {
    struct batch_item batch;
    struct finish_work *work;
    const struct finish_order *order;
    size_t at;          /* in the request */
    bool from_stranger; /* nobody here holds what it ends */
};

/* What a request needs until it is answered; lives in its arena. */
struct finish_work {
    struct finisher *finisher;
    struct request *request;
    struct finish_item *items;
    struct finish_result *results;
    size_t missing; /* items without a result */
    /* Set: some item is not known yet, and the request as a whole is answered so. */
    const struct err *unknown;
    struct hand_back back;
    bool is_hand_back; /* the proxy's own request: nobody is answered, but back.told */
};

struct finish_flush {
    struct flush flush;
    const struct finish_order *orders[FLUSH_ITEMS_MAX]; /* distinct receipts */
    uint16_t order_of[FLUSH_ITEMS_MAX];                 /* of each item */
};

/* Attempts that the storage did not take back: offered again, for as long as it takes. */
struct offer {
    struct list_node node; /* finisher->offers */
    struct timer again;
    struct finisher *finisher;
    struct hand_back back;
    size_t count;
    struct receipt receipts[];
};

static struct finish_item *item_of(struct batch_item *item)
{
    return CONTAINER_OF(item, struct finish_item, batch);
}

static const struct receipt *receipt_of(const struct batch_item *item)
{
    return &CONTAINER_OF(item, const struct finish_item, batch)->order->receipt;
}

static struct finish_flush *flush_of(struct flush *flush)
{
    return CONTAINER_OF(flush, struct finish_flush, flush);
}

/* ---- answering ---- */

static size_t count_status(const struct finish_work *work, enum finish_status status)
{
    size_t count = 0;
    for (size_t i = 0; i < work->request->in.finish.count; i++)
        count += work->results[i].status == status;
    return count;
}

static void answer_session(struct finish_work *work)
{
    struct answer answer = {.kind = work->request->kind == REQUEST_RELEASE ? ANSWER_RELEASE
                                                                           : ANSWER_FINISH};

    answer.of.finish.results = work->results;
    answer.of.finish.count = work->request->in.finish.count;
    if (work->unknown != NULL) {
        answer.kind = ANSWER_ERROR;
        answer.of.err = work->unknown;
    }
    sessions_answer(work->finisher->sessions, work->request, &answer);
}

static void on_offer(struct timer *timer, uint64_t now)
{
    struct offer *offer = CONTAINER_OF(timer, struct offer, again);
    struct finisher *finisher = offer->finisher;

    (void)now;
    list_remove(&finisher->offers, &offer->node);
    finisher_hand_back(finisher, offer->receipts, offer->count, offer->back);
    mem_free(offer);
}

/* Nobody else knows of what we could not hand back: it would stay running for ever. */
static void offer_again(const struct finish_work *work, size_t count)
{
    struct finisher *finisher = work->finisher;
    struct offer *offer = mem_zalloc(sizeof *offer + count * sizeof offer->receipts[0]);

    offer->finisher = finisher;
    offer->back = work->back;
    offer->back.told = NULL;
    offer->back.is_repeat = true;
    offer->again.fire = on_offer;
    for (size_t i = 0; i < work->request->in.finish.count; i++)
        if (work->results[i].status == FINISH_ABORTED)
            offer->receipts[offer->count++] = work->request->in.finish.inputs[i].order.receipt;
    list_push_back(&finisher->offers, &offer->node);
    timer_set(finisher->timers, &offer->again,
              finisher->env->now_us(finisher->env->ctx) + OFFER_PAUSE_US);
}

/* Asking again would not help: these stay open. */
static void log_refused(const struct finish_work *work)
{
    size_t count = count_status(work, FINISH_INVALID);
    char text[ERR_MESSAGE_BYTES];
    size_t first = 0;

    if (count == 0)
        return;
    while (work->results[first].status != FINISH_INVALID)
        first++;
    log_event(LOG_ERROR, "hand_back_refused", "attempts=%zu job=%llu reason=\"%s\"", count,
              (unsigned long long)work->request->in.finish.inputs[first].order.receipt.job_id,
              log_text(text, sizeof text, work->results[first].err->message));
}

static void end_hand_back(struct finish_work *work)
{
    struct hand_back back = work->back;
    size_t count = work->request->in.finish.count;
    size_t ended = count_status(work, FINISH_DONE);
    size_t given_up = count_status(work, FINISH_ABORTED);

    log_refused(work);
    if (ended < count && (!back.is_repeat || given_up == 0)) /* the others ended otherwise */
        log_event(LOG_INFO, "hand_back", "attempts=%zu ended=%zu to_repeat=%zu", count, ended,
                  given_up);
    if (given_up > 0)
        offer_again(work, given_up);
    request_free(work->request);
    if (back.told != NULL)
        back.told(back.ctx, back.session, ended);
    if (back.over != NULL && given_up < count)
        back.over(back.ctx, count - given_up);
}

static void work_count_down(struct finish_work *work)
{
    if (--work->missing > 0)
        return;
    if (work->is_hand_back)
        end_hand_back(work);
    else
        answer_session(work);
}

/* Whether the session that holds the attempt learns from no answer that it is over: another's
 * request ended it or found it ended, or its own, whose connection is gone, found it ended
 * otherwise. */
static bool must_be_told(const struct attempt *attempt, const struct finish_item *item,
                         enum finish_status status)
{
    if (attempt->owner == NULL || sessions_owner(attempt->owner) == item->work->request->session)
        return false;
    bool ended_as_asked = status == FINISH_DONE || status == FINISH_ALREADY_DONE;
    return item->work->request->session != HANDLE_NONE || !ended_as_asked;
}

/* Forgets an attempt that is over. One that is not over but whose session is gone goes back. */
static void update_attempt(struct finisher *finisher, const struct finish_item *item,
                           enum finish_status status)
{
    const struct finish_order *order = item->order;
    struct attempt *attempt = attempts_find(finisher->attempts, &order->receipt);
    bool over = status != FINISH_ABORTED && status != FINISH_INVALID;

    if (attempt == NULL)
        return;
    if (over && must_be_told(attempt, item, status))
        sessions_tell_lost(finisher->sessions, attempt);
    if (attempt->endings > 0)
        attempt->endings--;
    bool orphaned = attempt->owner == NULL && attempt->endings == 0;
    enum job_outcome leave_as = attempt->leave_as;
    if (over || orphaned)
        attempts_end(finisher->attempts, attempt);
    if (!over && orphaned)
        finisher_hand_back(finisher, &order->receipt, 1, (struct hand_back){.as = leave_as});
}

/* The storage (or our patience) has decided one item. */
static void item_decided(struct finish_item *item, enum finish_status status, const struct err *err)
{
    struct finish_work *work = item->work;
    struct finisher *finisher = work->finisher;

    work->results[item->at].status = status;
    if (err != NULL)
        work->results[item->at].err = request_keep_err(work->request, err);
    update_attempt(finisher, item, status);
    if (status == FINISH_DONE && item->order->outcome == JOB_RELEASE)
        finisher->some_released = true;
    work_count_down(work);
}

/* ---- flushes ---- */

static struct flush *flush_new(struct batcher *batcher)
{
    struct finish_flush *flush = mem_zalloc(sizeof *flush);
    (void)batcher;
    return &flush->flush;
}

static void flush_free(struct flush *flush)
{
    mem_free(flush_of(flush));
}

static enum job_outcome outcome_of(const struct batch_item *item)
{
    return CONTAINER_OF(item, const struct finish_item, batch)->order->outcome;
}

/* By receipt; twins next to each other. */
static int compare_items(const void *a, const void *b)
{
    const struct batch_item *left = *(struct batch_item *const *)a;
    const struct batch_item *right = *(struct batch_item *const *)b;
    int order = receipt_compare(receipt_of(left), receipt_of(right));

    return order != 0
               ? order
               : (outcome_of(left) > outcome_of(right)) - (outcome_of(left) < outcome_of(right));
}

/* They ask for the same: one answer of the storage is good for both. */
static bool are_twins(const struct batch_item *a, const struct batch_item *b)
{
    return receipt_equal(receipt_of(a), receipt_of(b)) && outcome_of(a) == outcome_of(b);
}

static bool same_batch(const struct receipt *a, const struct receipt *b)
{
    return a->claim_slot == b->claim_slot && a->batch_id == b->batch_id && a->nonce == b->nonce;
}

/* Moves items that want something else of a receipt that is there already to the end, keeping the
 * order of the others; returns how many stay. Needs sorted items. */
static size_t part_rivals(struct flush *flush)
{
    struct batch_item *rivals[FLUSH_ITEMS_MAX];
    size_t kept = 0;
    size_t rival_count = 0;

    for (size_t i = 0; i < flush->count; i++) {
        struct batch_item *item = flush->items[i];
        const struct batch_item *last = kept > 0 ? flush->items[kept - 1] : NULL;
        if (last != NULL && receipt_compare(receipt_of(last), receipt_of(item)) == 0 &&
            !are_twins(last, item))
            rivals[rival_count++] = item;
        else
            flush->items[kept++] = item;
    }
    for (size_t i = 0; i < rival_count; i++)
        flush->items[kept + i] = rivals[i];
    return kept;
}

/* Whether the claim batch of the receipt is among the `count` there. */
static bool has_batch(const struct receipt *const *batches, size_t count,
                      const struct receipt *receipt)
{
    for (size_t i = count; i-- > 0;) /* items of one batch tend to come together */
        if (same_batch(batches[i], receipt))
            return true;
    return false;
}

/* How many items, from the oldest on, stay within the number of claim batches a call. By age and
 * not by receipt: whoever sends many receipts that sort low would keep all others waiting. */
static size_t count_within_batches(const struct flush *flush)
{
    const struct finisher *finisher = flush->batcher->owner;
    const struct receipt *batches[COMPLETE_BATCHES_PER_CALL_MAX];
    size_t count = 0;

    CHECK(finisher->batches_max <= COMPLETE_BATCHES_PER_CALL_MAX);
    for (size_t i = 0; i < flush->count; i++) {
        const struct receipt *receipt = receipt_of(flush->items[i]);
        if (has_batch(batches, count, receipt))
            continue;
        if (count == finisher->batches_max)
            return i;
        batches[count++] = receipt;
    }
    return flush->count;
}

static bool is_twin(const struct flush *flush, size_t at)
{
    return at > 0 && are_twins(flush->items[at - 1], flush->items[at]);
}

/* One order for all twins; returns how many orders. */
static size_t lay_out(struct finish_flush *flush)
{
    const struct flush *base = &flush->flush;
    size_t count = 0;

    for (size_t i = 0; i < base->count; i++) {
        if (!is_twin(base, i))
            flush->orders[count++] = item_of(base->items[i])->order;
        flush->order_of[i] = (uint16_t)(count - 1);
    }
    return count;
}

static bool prepare(struct flush *base, enum db_op op)
{
    struct finish_flush *flush = flush_of(base);

    batcher_put_back(base, count_within_batches(base));
    qsort(base->items, base->count, sizeof base->items[0], compare_items);
    batcher_put_back(base, part_rivals(base));
    base->call.op = op;
    base->call.args.finish.orders = flush->orders;
    base->call.args.finish.count = lay_out(flush);
    return base->count > 0;
}

static bool prepare_completes(struct flush *flush)
{
    return prepare(flush, DB_COMPLETE);
}

static bool prepare_others(struct flush *flush)
{
    return prepare(flush, DB_FINISH);
}

static enum settled settle(struct flush *flush, size_t at, const struct db_reply *reply)
{
    const uint16_t *order_of = flush_of(flush)->order_of;
    int16_t status = reply->rows.finish.statuses[order_of[at]];
    struct finish_item *item = item_of(flush->items[at]);
    struct err err;

    if (status == STORAGE_BUSY)
        return SETTLE_LATER;
    if (status == FINISH_DONE && at > 0 && order_of[at] == order_of[at - 1])
        status = FINISH_ALREADY_DONE; /* its twin did it */
    if (status != FINISH_INVALID) {
        item_decided(item, (enum finish_status)status, NULL);
        return SETTLED;
    }
    err_set(&err, CODE_INVALID_ARGUMENT, "the storage refused this outcome for this attempt");
    item_decided(item, FINISH_INVALID, &err);
    return SETTLED;
}

static void fail(struct batch_item *base, const struct err *err)
{
    struct finish_item *item = item_of(base);

    if (err->code == CODE_DEADLINE_EXCEEDED)
        item->work->unknown = request_keep_err(item->work->request, err);
    item_decided(item, err->code == CODE_INVALID_ARGUMENT ? FINISH_INVALID : FINISH_ABORTED, err);
}

static void set_calm(struct finisher *finisher)
{
    timer_set(finisher->timers, &finisher->calm,
              finisher->env->now_us(finisher->env->ctx) + (uint64_t)CALM_US);
}

/* Each claim batch of a flush takes its place in the server's lock table. */
static void crowded(struct batcher *batcher)
{
    struct finisher *finisher = batcher->owner;

    if (finisher->batches_max > 1)
        finisher->batches_max /= 2;
    log_event(LOG_WARN, "lock_table_full", "batches_max=%zu", finisher->batches_max);
    set_calm(finisher);
}

static void on_calm(struct timer *timer, uint64_t now)
{
    struct finisher *finisher = CONTAINER_OF(timer, struct finisher, calm);

    (void)now;
    finisher->batches_max *= 2;
    if (finisher->batches_max < COMPLETE_BATCHES_PER_CALL_MAX)
        set_calm(finisher);
    else
        finisher->batches_max = COMPLETE_BATCHES_PER_CALL_MAX;
}

static const struct batcher_ops complete_ops = {
    .flush_new = flush_new,
    .flush_free = flush_free,
    .prepare = prepare_completes,
    .settle = settle,
    .fail = fail,
    .crowded = crowded,
};

static const struct batcher_ops other_ops = {
    .flush_new = flush_new,
    .flush_free = flush_free,
    .prepare = prepare_others,
    .settle = settle,
    .fail = fail,
    .crowded = crowded,
};

/* ---- the module ---- */

void finisher_init(struct finisher *finisher, const struct finisher_setup *setup)
{
    CHECK(setup->shard_count >= 1 && setup->shard_count <= FINISHER_SHARDS_MAX);
    *finisher = (struct finisher){.env = setup->env,
                                  .timers = setup->timers,
                                  .shard_count = setup->shard_count,
                                  .attempts = setup->attempts,
                                  .sessions = setup->sessions,
                                  .released = setup->released,
                                  .released_ctx = setup->released_ctx,
                                  .batches_max = COMPLETE_BATCHES_PER_CALL_MAX,
                                  .calm = {.fire = on_calm}};
    for (size_t i = 0; i <= setup->shard_count; i++) {
        struct batcher_setup batching = {.ops = &complete_ops,
                                         .name = "complete",
                                         .env = setup->env,
                                         .timers = setup->timers,
                                         .owner = finisher,
                                         .items_max = setup->items_max,
                                         .flush_us = setup->flush_us};
        batcher_init(&finisher->shards[i].completes, &batching);
        batching.ops = &other_ops;
        batching.name = "finish";
        batching.items_max = FINISH_ITEMS_PER_CALL_MAX;
        batcher_init(&finisher->shards[i].others, &batching);
    }
}

void finisher_configure(struct finisher *finisher, size_t items_max, uint64_t flush_us)
{
    for (size_t i = 0; i <= finisher->shard_count; i++) {
        struct finisher_shard *shard = &finisher->shards[i];
        batcher_configure(&shard->completes, items_max, flush_us);
        batcher_configure(&shard->others, shard->others.items_max, flush_us);
    }
}

void finisher_free(struct finisher *finisher)
{
    CHECK(finisher->offers.count == 0);
    timer_stop(finisher->timers, &finisher->calm);
    for (size_t i = 0; i <= finisher->shard_count; i++) {
        batcher_free(&finisher->shards[i].completes);
        batcher_free(&finisher->shards[i].others);
    }
}

static struct batcher *batcher_of(struct finisher *finisher, const struct finish_item *item)
{
    uint64_t batch_id = item->order->receipt.batch_id;
    struct finisher_shard *shard =
        &finisher->shards[item->from_stranger ? finisher->shard_count
                                              : batch_id % finisher->shard_count];

    return item->order->outcome == JOB_COMPLETE ? &shard->completes : &shard->others;
}

static void add_item(struct finisher *finisher, struct finish_item *item)
{
    struct attempt *attempt = attempts_find(finisher->attempts, &item->order->receipt);

    if (attempt != NULL)
        attempt->endings++;
    item->from_stranger = attempt == NULL && !item->work->is_hand_back;
    batcher_add(batcher_of(finisher, item), &item->batch);
}

static void start_work(struct finisher *finisher, struct request *request,
                       const struct hand_back *back)
{
    size_t count = request->in.finish.count;
    struct finish_work *work = request_alloc(request, sizeof *work);
    struct finish_item *items = request_alloc(request, count * sizeof *items);

    work->finisher = finisher;
    work->request = request;
    work->items = items;
    request->work = work;
    work->is_hand_back = back != NULL;
    if (back != NULL)
        work->back = *back;
    work->results = request_alloc(request, count * sizeof *work->results);
    work->missing = count + 1; /* one more for this function: no answer under its feet */
    for (size_t i = 0; i < count; i++) {
        const struct finish_input *input = &request->in.finish.inputs[i];
        items[i].work = work;
        items[i].at = i;
        items[i].order = &input->order;
        if (input->invalid == NULL) {
            add_item(finisher, &items[i]);
            continue;
        }
        work->results[i] = (struct finish_result){.status = FINISH_INVALID, .err = input->invalid};
        work->missing--;
    }
    work_count_down(work);
}

void finisher_take(struct finisher *finisher, struct request *request)
{
    start_work(finisher, request, NULL);
}

void finisher_forget(struct finisher *finisher, struct request *request)
{
    struct finish_work *work = request->work;
    size_t count = request->in.finish.count;

    work->missing++; /* for this function */
    for (size_t i = 0; i < count; i++) {
        struct finish_item *item = &work->items[i];
        if (batcher_forget(batcher_of(finisher, item), &item->batch))
            item_decided(item, FINISH_ABORTED, NULL);
    }
    work_count_down(work);
}

void finisher_hand_back(struct finisher *finisher, const struct receipt *receipts, size_t count,
                        struct hand_back back)
{
    struct arena arena;

    arena_init(&arena, sizeof(struct request) + 256 +
                           count * (sizeof(struct finish_input) + CORE_ITEM_BYTES));
    struct request *request = request_new_take(&arena, REQUEST_RELEASE, 0, 0);
    struct finish_input *inputs = request_alloc(request, count * sizeof *inputs);
    for (size_t i = 0; i < count; i++) {
        inputs[i].order.receipt = receipts[i];
        inputs[i].order.outcome = back.as;
        if (back.error != NULL)
            inputs[i].order.error = bytes_of_text(back.error);
    }
    request->in.finish.inputs = inputs;
    request->in.finish.count = count;
    start_work(finisher, request, &back);
}

void finisher_turn(struct finisher *finisher)
{
    if (finisher->some_released) { /* told once for all of them */
        finisher->some_released = false;
        finisher->released(finisher->released_ctx);
    }
    for (size_t i = 0; i <= finisher->shard_count; i++) {
        batcher_turn(&finisher->shards[i].completes);
        batcher_turn(&finisher->shards[i].others);
    }
}

uint64_t finisher_deadlock_retries(const struct finisher *finisher)
{
    uint64_t total = 0;

    for (size_t i = 0; i <= finisher->shard_count; i++)
        total += finisher->shards[i].completes.deadlock_retries +
                 finisher->shards[i].others.deadlock_retries;
    return total;
}

bool finisher_is_idle(const struct finisher *finisher)
{
    if (finisher->offers.count > 0)
        return false;
    for (size_t i = 0; i <= finisher->shard_count; i++)
        if (!batcher_is_idle(&finisher->shards[i].completes) ||
            !batcher_is_idle(&finisher->shards[i].others))
            return false;
    return true;
}
