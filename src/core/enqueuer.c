/* enqueuer: see enqueuer.h. */
#include "core/enqueuer.h"

#include "base/mem.h"
#include "core/layout.h"
#include "core/retry.h"
#include "core/session.h"

struct enqueue_item {
    struct batch_item batch;
    struct enqueue_work *work;
    size_t at; /* in the request */
};

/* What an Enqueue request needs until it is answered; lives in its arena. */
struct enqueue_work {
    struct enqueuer *enqueuer;
    struct request *request;
    struct enqueue_item *items;
    struct enqueue_result *results;
    size_t missing; /* jobs without a result */
};

struct enqueue_flush {
    struct flush flush;
    const struct new_job *jobs[FLUSH_ITEMS_MAX];
    struct bytes queues[FLUSH_ITEMS_MAX];
    bool queue_has_work[FLUSH_ITEMS_MAX]; /* at once, not scheduled for later */
    uint16_t queue_of[FLUSH_ITEMS_MAX];
    int64_t ids[FLUSH_ITEMS_MAX];
};

static struct enqueue_item *item_of(struct batch_item *item)
{
    return CONTAINER_OF(item, struct enqueue_item, batch);
}

static const struct new_job *job_of(const struct enqueue_item *item)
{
    return &item->work->request->in.enqueue.orders[item->at].job;
}

static struct enqueue_flush *flush_of(struct flush *flush)
{
    return CONTAINER_OF(flush, struct enqueue_flush, flush);
}

static void work_count_down(struct enqueue_work *work)
{
    if (--work->missing > 0)
        return;
    struct answer answer = {.kind = ANSWER_ENQUEUE};
    answer.of.enqueue.results = work->results;
    answer.of.enqueue.count = work->request->in.enqueue.count;
    sessions_answer(work->enqueuer->sessions, work->request, &answer);
}

static struct flush *flush_new(struct batcher *batcher)
{
    struct enqueue_flush *flush = mem_zalloc(sizeof *flush);
    (void)batcher;
    return &flush->flush;
}

static void flush_free(struct flush *flush)
{
    mem_free(flush_of(flush));
}

static size_t job_bytes(const struct new_job *job)
{
    return job->args.len + job->metadata.len + job->kind.len + job->ordering_key.len +
           job->traceparent.len + 64;
}

/* How many of the items fit the byte bound: at least one. */
static size_t count_within_bytes(const struct flush *flush)
{
    size_t bytes = 0;

    for (size_t i = 0; i < flush->count; i++) {
        bytes += job_bytes(job_of(item_of(flush->items[i])));
        if (bytes > FLUSH_BYTES_MAX && i > 0)
            return i;
    }
    return flush->count;
}

static struct layout layout_of(struct enqueue_flush *flush, size_t count)
{
    for (size_t i = 0; i < count; i++)
        flush->jobs[i] = job_of(item_of(flush->flush.items[i]));
    return (struct layout){.jobs = flush->jobs,
                           .queues = flush->queues,
                           .queue_has_work = flush->queue_has_work,
                           .queue_of = flush->queue_of,
                           .ids = flush->ids,
                           .count = count};
}

static bool prepare(struct flush *base)
{
    struct enqueue_flush *flush = flush_of(base);
    struct enqueuer *enqueuer = base->batcher->owner;
    struct layout layout = layout_of(flush, count_within_bytes(base));

    layout.count = layout_take_ids(&layout, &enqueuer->ids);
    batcher_put_back(base, layout.count);
    if (layout.count == 0)
        return false;
    layout_queues(&layout);
    base->call.op = DB_ENQUEUE;
    base->call.args.enqueue = layout_args(&layout, &enqueuer->ids, (struct bytes){NULL, 0});
    return true;
}

static const struct db_failed_item *failure_of(const struct db_reply *reply, size_t at)
{
    for (size_t i = 0; i < reply->rows.enqueue.count; i++)
        if (reply->rows.enqueue.failed[i].item == at)
            return &reply->rows.enqueue.failed[i];
    return NULL;
}

static void store_failure(struct enqueue_item *item, const struct err *err)
{
    struct enqueue_work *work = item->work;

    work->results[item->at].err = request_keep_err(work->request, err);
    work_count_down(work);
}

static void tell_queues(struct enqueue_flush *flush)
{
    struct enqueuer *enqueuer = flush->flush.batcher->owner;
    const struct db_enqueue *args = &flush->flush.call.args.enqueue;

    for (size_t i = 0; i < args->queue_count; i++)
        if (flush->queue_has_work[i])
            enqueuer->committed(enqueuer->committed_ctx, args->queues[i]);
}

static enum settled settle(struct flush *base, size_t at, const struct db_reply *reply)
{
    struct enqueue_flush *flush = flush_of(base);
    struct enqueue_item *item = item_of(base->items[at]);
    const struct db_failed_item *failed = failure_of(reply, at);

    if (at == 0)
        tell_queues(flush); /* while the first item's request still keeps the queue names alive */
    if (failed != NULL) {
        struct err err;
        layout_refusal(failed, &err);
        store_failure(item, &err);
        return SETTLED;
    }
    item->work->results[item->at].job_id = flush->ids[at];
    work_count_down(item->work);
    return SETTLED;
}

static void fail(struct batch_item *item, const struct err *err)
{
    store_failure(item_of(item), err);
}

/* ---- doubt: by its id a job tells whether it was stored ---- */

static void ask(struct flush *flush, struct db_call *call)
{
    call->op = DB_JOBS_EXIST;
    call->args.jobs_exist =
        (struct db_jobs_exist){.ids = flush_of(flush)->ids, .count = flush->count};
}

/* Another run of the server, or another server, may have given out the same id again, or may never
 * have seen ours. What does not exist was not stored, or was refused: the next try tells. */
static enum resolved resolve(struct flush *flush, size_t at, const struct db_reply *reply)
{
    struct enqueue_item *item = item_of(flush->items[at]);
    struct enqueuer *enqueuer = flush->batcher->owner;
    const struct new_job *job = job_of(item);

    if (!server_run_equal(&flush->doubt.backend.server, &reply->backend.server))
        return RESOLVED_NEVER;
    if (!reply->rows.exist[at])
        return RESOLVED_NOT_DONE;
    if (job->run_at_us == 0)
        enqueuer->committed(enqueuer->committed_ctx, job->queue);
    item->work->results[item->at].job_id = flush_of(flush)->ids[at];
    work_count_down(item->work);
    return RESOLVED_DONE;
}

static const struct batcher_ops ops = {
    .flush_new = flush_new,
    .flush_free = flush_free,
    .prepare = prepare,
    .settle = settle,
    .ask = ask,
    .resolve = resolve,
    .fail = fail,
};

static void give_up(struct enqueuer *enqueuer, const struct err *err, bool all)
{
    batcher_give_up(&enqueuer->batcher, err, all);
    batcher_give_up(&enqueuer->keyed.batcher, err, all);
}

/* Jobs that wait for ids are not in any flush, so nobody else would answer them. */
static void on_no_ids(struct ids *ids, const struct err *err)
{
    struct enqueuer *enqueuer = CONTAINER_OF(ids, struct enqueuer, ids);

    switch (retry_trouble(err)) {
    case TROUBLE_ABORTED:
    case TROUBLE_CROWDED:
    case TROUBLE_CONNECTION: give_up(enqueuer, err, false); return;
    case TROUBLE_ITEM:
    case TROUBLE_REFUSED: give_up(enqueuer, err, true); return;
    }
}

void enqueuer_init(struct enqueuer *enqueuer, const struct enqueuer_setup *setup)
{
    struct batcher_setup batching = {.ops = &ops,
                                     .name = "enqueue",
                                     .env = setup->env,
                                     .timers = setup->timers,
                                     .owner = enqueuer,
                                     .items_max = setup->items_max,
                                     .flush_us = setup->flush_us};
    struct keyed_setup keyed = {.env = setup->env,
                                .timers = setup->timers,
                                .sessions = setup->sessions,
                                .ids = &enqueuer->ids,
                                .flush_us = setup->flush_us,
                                .committed = setup->committed,
                                .committed_ctx = setup->committed_ctx};

    *enqueuer = (struct enqueuer){.sessions = setup->sessions,
                                  .committed = setup->committed,
                                  .committed_ctx = setup->committed_ctx};
    batcher_init(&enqueuer->batcher, &batching);
    keyed_init(&enqueuer->keyed, &keyed);
    ids_init(&enqueuer->ids, setup->env, setup->timers, on_no_ids);
}

void enqueuer_configure(struct enqueuer *enqueuer, size_t items_max, uint64_t flush_us)
{
    batcher_configure(&enqueuer->batcher, items_max, flush_us);
    batcher_configure(&enqueuer->keyed.batcher, enqueuer->keyed.batcher.items_max, flush_us);
}

void enqueuer_free(struct enqueuer *enqueuer)
{
    ids_stop(&enqueuer->ids);
    keyed_free(&enqueuer->keyed);
    batcher_free(&enqueuer->batcher);
}

static void take_jobs(struct enqueuer *enqueuer, struct request *request)
{
    size_t count = request->in.enqueue.count;
    struct enqueue_work *work = request_alloc(request, sizeof *work);
    struct enqueue_item *items = request_alloc(request, count * sizeof *items);

    work->enqueuer = enqueuer;
    work->request = request;
    work->items = items;
    request->work = work;
    work->results = request_alloc(request, count * sizeof *work->results);
    work->missing = count + 1; /* one more for this function: no answer under its feet */
    for (size_t i = 0; i < count; i++) {
        const struct err *invalid = request->in.enqueue.orders[i].invalid;
        items[i].work = work;
        items[i].at = i;
        if (invalid == NULL) {
            batcher_add(&enqueuer->batcher, &items[i].batch);
            continue;
        }
        work->results[i].err = invalid;
        work->missing--;
    }
    work_count_down(work);
}

void enqueuer_take(struct enqueuer *enqueuer, struct request *request)
{
    if (request->in.enqueue.key.data != NULL)
        keyed_take(&enqueuer->keyed, request);
    else
        take_jobs(enqueuer, request);
}

void enqueuer_forget(struct enqueuer *enqueuer, struct request *request)
{
    struct enqueue_work *work = request->work;
    size_t count = request->in.enqueue.count;

    if (request->in.enqueue.key.data != NULL) {
        keyed_forget(&enqueuer->keyed, request);
        return;
    }
    work->missing++; /* for this function */
    for (size_t i = 0; i < count; i++)
        work->missing -= batcher_forget(&enqueuer->batcher, &work->items[i].batch);
    work_count_down(work);
}

void enqueuer_forget_ids(struct enqueuer *enqueuer)
{
    ids_forget(&enqueuer->ids);
}

void enqueuer_turn(struct enqueuer *enqueuer)
{
    batcher_turn(&enqueuer->batcher);
    keyed_turn(&enqueuer->keyed);
}

uint64_t enqueuer_deadlock_retries(const struct enqueuer *enqueuer)
{
    return enqueuer->batcher.deadlock_retries + enqueuer->keyed.batcher.deadlock_retries;
}

bool enqueuer_is_idle(const struct enqueuer *enqueuer)
{
    return batcher_is_idle(&enqueuer->batcher) && keyed_is_idle(&enqueuer->keyed);
}
