/* keyed: see keyed.h. */
#include "core/keyed.h"

#include <string.h>

#include "base/mem.h"
#include "core/layout.h"
#include "core/session.h"

/* One request until it is answered; lives in its arena. */
struct keyed_work {
    struct batch_item batch;
    struct keyed *keyed;
    struct request *request;
    struct enqueue_result *results;
    struct layout layout; /* of the valid jobs */
    size_t *places;       /* of each valid job in the request */
};

static struct keyed_work *work_of(struct batch_item *item)
{
    return CONTAINER_OF(item, struct keyed_work, batch);
}

static void answer(struct keyed_work *work)
{
    struct answer answer = {.kind = ANSWER_ENQUEUE};

    answer.of.enqueue.results = work->results;
    answer.of.enqueue.count = work->request->in.enqueue.count;
    sessions_answer(work->keyed->sessions, work->request, &answer);
}

static void set_error(struct keyed_work *work, size_t at, const struct err *err)
{
    work->results[work->places[at]].err = request_keep_err(work->request, err);
}

/* ---- flushes of one request ---- */

static struct flush *flush_new(struct batcher *batcher)
{
    (void)batcher;
    return mem_zalloc(sizeof(struct flush));
}

static void flush_free(struct flush *flush)
{
    mem_free(flush);
}

static bool prepare(struct flush *flush)
{
    struct keyed *keyed = flush->batcher->owner;
    struct keyed_work *work = work_of(flush->items[0]);

    if (layout_take_ids(&work->layout, keyed->ids) < work->layout.count) {
        batcher_put_back(flush, 0);
        return false;
    }
    flush->call.op = DB_ENQUEUE_ONCE;
    flush->call.args.enqueue =
        layout_args(&work->layout, keyed->ids, work->request->in.enqueue.key);
    return true;
}

static void tell_queues(const struct keyed_work *work)
{
    const struct keyed *keyed = work->keyed;

    for (size_t i = 0; i < work->layout.queue_count; i++)
        if (work->layout.queue_has_work[i])
            keyed->committed(keyed->committed_ctx, work->layout.queues[i]);
}

static void take_stored(struct keyed_work *work, const struct db_reply *reply)
{
    struct err err;

    for (size_t i = 0; i < work->layout.count; i++)
        work->results[work->places[i]].job_id = work->layout.ids[i];
    for (size_t i = 0; i < reply->rows.enqueue.count; i++) {
        const struct db_failed_item *failed = &reply->rows.enqueue.failed[i];
        layout_refusal(failed, &err);
        work->results[work->places[failed->item]].job_id = 0;
        set_error(work, failed->item, &err);
    }
    tell_queues(work);
}

/* The key was used before: the same answer again. The queues are told, too: whoever stored the jobs
 * may not have learned of it, and one call for nothing is cheap. */
static void take_known(struct keyed_work *work, const int64_t *ids)
{
    struct err err;

    err_set(&err, CODE_INVALID_ARGUMENT,
            "the job was refused when its idempotency key was first used");
    for (size_t i = 0; i < work->layout.count; i++) {
        work->results[work->places[i]].job_id = ids[i];
        if (ids[i] == 0)
            set_error(work, i, &err);
    }
    tell_queues(work);
}

static enum settled settle(struct flush *flush, size_t at, const struct db_reply *reply)
{
    struct keyed_work *work = work_of(flush->items[at]);

    if (reply->rows.enqueue.known_ids != NULL)
        take_known(work, reply->rows.enqueue.known_ids);
    else
        take_stored(work, reply);
    answer(work);
    return SETTLED;
}

/* The key is the one lock of that call that is waited for; Postgres only says that a lock was. */
static void explain(const struct err *cause, struct err *out)
{
    *out = *cause;
    if (strcmp(cause->sqlstate, "55P03") != 0)
        return;
    err_set(out, cause->code, "another request with this idempotency_key is under way");
    err_set_sqlstate(out, cause->sqlstate);
}

static void fail(struct batch_item *item, const struct err *cause)
{
    struct keyed_work *work = work_of(item);
    struct err err;

    explain(cause, &err);
    for (size_t i = 0; i < work->layout.count; i++)
        set_error(work, i, &err);
    answer(work);
}

static const struct batcher_ops ops = {
    .flush_new = flush_new,
    .flush_free = flush_free,
    .prepare = prepare,
    .settle = settle,
    .fail = fail,
};

/* ---- the module ---- */

void keyed_init(struct keyed *keyed, const struct keyed_setup *setup)
{
    struct batcher_setup batching = {.ops = &ops,
                                     .name = "enqueue_once",
                                     .env = setup->env,
                                     .timers = setup->timers,
                                     .owner = keyed,
                                     .items_max = 1,
                                     .flush_us = setup->flush_us};

    *keyed = (struct keyed){.ids = setup->ids,
                            .sessions = setup->sessions,
                            .committed = setup->committed,
                            .committed_ctx = setup->committed_ctx};
    batcher_init(&keyed->batcher, &batching);
}

void keyed_free(struct keyed *keyed)
{
    batcher_free(&keyed->batcher);
}

static void allot(struct keyed_work *work, size_t count)
{
    struct request *request = work->request;

    work->results = request_alloc(request, count * sizeof *work->results);
    work->places = request_alloc(request, count * sizeof *work->places);
    work->layout =
        (struct layout){.jobs = request_alloc(request, count * sizeof *work->layout.jobs),
                        .queues = request_alloc(request, count * sizeof *work->layout.queues),
                        .queue_has_work = request_alloc(request, count * sizeof(bool)),
                        .queue_of = request_alloc(request, count * sizeof *work->layout.queue_of),
                        .ids = request_alloc(request, count * sizeof *work->layout.ids)};
}

void keyed_take(struct keyed *keyed, struct request *request)
{
    const struct enqueue_order *orders = request->in.enqueue.orders;
    struct keyed_work *work = request_alloc(request, sizeof *work);

    work->keyed = keyed;
    work->request = request;
    request->work = work;
    allot(work, request->in.enqueue.count);
    for (size_t i = 0; i < request->in.enqueue.count; i++) {
        work->results[i].err = orders[i].invalid;
        if (orders[i].invalid != NULL)
            continue;
        work->places[work->layout.count] = i;
        work->layout.jobs[work->layout.count++] = &orders[i].job;
    }
    if (work->layout.count == 0) {
        answer(work);
        return;
    }
    layout_queues(&work->layout);
    batcher_add(&keyed->batcher, &work->batch);
}

void keyed_forget(struct keyed *keyed, struct request *request)
{
    struct keyed_work *work = request->work;

    if (batcher_forget(&keyed->batcher, &work->batch))
        answer(work);
}

void keyed_turn(struct keyed *keyed)
{
    batcher_turn(&keyed->batcher);
}

bool keyed_is_idle(const struct keyed *keyed)
{
    return batcher_is_idle(&keyed->batcher);
}
