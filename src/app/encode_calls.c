/* encode_calls: see encode_calls.h. An optional array is NULL as a whole when no item uses it. */
#include "app/encode_calls.h"

#include "base/check.h"
#include "core/maintenance.h"

static enum statement_id task_statement(enum maintenance_task task)
{
    switch (task) {
    case TASK_SYNC_RING_POINTERS: return STATEMENT_SYNC_RING_POINTERS;
    case TASK_PROMOTE_DUE: return STATEMENT_PROMOTE_DUE;
    case TASK_ROTATE_RINGS: return STATEMENT_ROTATE_RINGS;
    case TASK_CARRY_LANES: return STATEMENT_CARRY_LANES;
    case TASK_CLOSE_SLOTS: return STATEMENT_CLOSE_SLOTS;
    case TASK_PRUNE_SLOTS: return STATEMENT_PRUNE_SLOTS;
    case TASK_RESCUE_INSTANCES: return STATEMENT_RESCUE_INSTANCES;
    case TASK_END_STUCK_BACKENDS: return STATEMENT_END_STUCK_BACKENDS;
    case TASK_PURGE_IDEMPOTENCY_KEYS: return STATEMENT_PURGE_IDEMPOTENCY_KEYS;
    case TASK_COUNT: break;
    }
    UNREACHABLE("a task");
}

static enum statement_id membership_statement(enum membership membership)
{
    switch (membership) {
    case MEMBER_REGISTER: return STATEMENT_REGISTER_INSTANCE;
    case MEMBER_TRY_LEAD: return STATEMENT_TRY_LEAD;
    case MEMBER_RESIGN: return STATEMENT_RESIGN;
    }
    UNREACHABLE("a membership call");
}

enum statement_id call_statement(const struct db_call *call)
{
    switch (call->op) {
    case DB_RESERVE_IDS: return STATEMENT_RESERVE_JOB_IDS;
    case DB_ENQUEUE: return STATEMENT_ENQUEUE_BATCH;
    case DB_ENQUEUE_ONCE: return STATEMENT_ENQUEUE_ONCE;
    case DB_JOBS_EXIST: return STATEMENT_JOBS_EXIST;
    case DB_CLAIM: return STATEMENT_CLAIM;
    case DB_CLAIM_RESULT: return STATEMENT_CLAIM_RESULT;
    case DB_BACKEND_GONE: return STATEMENT_BACKEND_IS_GONE;
    case DB_COMPLETE: return STATEMENT_COMPLETE_BATCH;
    case DB_FINISH: return STATEMENT_FINISH_ITEMS;
    case DB_COUNTS: return STATEMENT_QUEUE_COUNTS;
    case DB_ANNOUNCE: return STATEMENT_WAKE_QUEUES;
    case DB_MEMBERSHIP: return membership_statement(call->args.membership);
    case DB_MAINTENANCE: return task_statement(call->args.task);
    }
    UNREACHABLE("a call");
}

static void put_texts(struct params *params, const struct bytes *texts, size_t count)
{
    params_array_open(params, PG_TEXT, count);
    for (size_t i = 0; i < count; i++)
        params_item_bytes(params, texts[i]);
    params_array_close(params);
}

/* ---- enqueue ---- */

#define PUT_JOBS_INT(params, args, type, width, expression)                                        \
    do {                                                                                           \
        params_array_open(params, type, (args)->count);                                            \
        for (size_t i = 0; i < (args)->count; i++)                                                 \
            params_item_int(params, (expression), width);                                          \
        params_array_close(params);                                                                \
    } while (0)

static void put_run_ats(struct params *params, const struct db_enqueue *args)
{
    bool any = false;

    for (size_t i = 0; i < args->count && !any; i++)
        any = args->jobs[i]->run_at_us != 0;
    if (!any) {
        params_null(params);
        return;
    }
    params_array_open(params, PG_TIMESTAMPTZ, args->count);
    for (size_t i = 0; i < args->count; i++) {
        if (args->jobs[i]->run_at_us == 0)
            params_item_bytes(params, (struct bytes){NULL, 0});
        else
            params_item_int(params, args->jobs[i]->run_at_us - PG_EPOCH_US, 8);
    }
    params_array_close(params);
}

static struct bytes job_text(const struct new_job *job, size_t member_offset)
{
    struct bytes text;
    memcpy(&text, (const char *)job + member_offset, sizeof text);
    return text;
}

static void put_job_texts(struct params *params, const struct db_enqueue *args,
                          size_t member_offset)
{
    params_array_open(params, PG_TEXT, args->count);
    for (size_t i = 0; i < args->count; i++)
        params_item_bytes(params, job_text(args->jobs[i], member_offset));
    params_array_close(params);
}

static void put_optional_job_texts(struct params *params, const struct db_enqueue *args,
                                   size_t member_offset)
{
    bool any = false;

    for (size_t i = 0; i < args->count && !any; i++)
        any = job_text(args->jobs[i], member_offset).data != NULL;
    if (any)
        put_job_texts(params, args, member_offset);
    else
        params_null(params);
}

static void put_enqueue(struct params *params, const struct db_enqueue *args)
{
    put_texts(params, args->queues, args->queue_count);
    PUT_JOBS_INT(params, args, PG_INT2, 2, args->queue_of[i]);
    PUT_JOBS_INT(params, args, PG_INT8, 8, args->ids[i]);
    PUT_JOBS_INT(params, args, PG_INT2, 2, args->jobs[i]->priority);
    put_job_texts(params, args, offsetof(struct new_job, kind));
    put_job_texts(params, args, offsetof(struct new_job, args));
    PUT_JOBS_INT(params, args, PG_INT2, 2, args->jobs[i]->max_attempts);
    put_run_ats(params, args);
    put_optional_job_texts(params, args, offsetof(struct new_job, ordering_key));
    put_optional_job_texts(params, args, offsetof(struct new_job, metadata));
    put_optional_job_texts(params, args, offsetof(struct new_job, traceparent));
}

static void put_ids(struct params *params, const struct db_jobs_exist *args)
{
    PUT_JOBS_INT(params, args, PG_INT8, 8, args->ids[i]);
}

/* ---- claim, complete, finish ---- */

static void put_claim(struct params *params, const struct db_claim *args, int64_t instance)
{
    params_int(params, instance, 8);
    params_int(params, (int64_t)args->nonce, 8);
    put_texts(params, args->queues, args->queue_count);
    params_int(params, args->limit, 4);
    params_int(params, args->bytes_max, 4);
}

static const struct receipt *receipt_at(const struct db_finish *args, size_t i)
{
    return &args->orders[i]->receipt;
}

static bool starts_batch(const struct db_finish *args, size_t i)
{
    if (i == 0)
        return true;
    const struct receipt *before = receipt_at(args, i - 1);
    const struct receipt *here = receipt_at(args, i);
    return before->claim_slot != here->claim_slot || before->batch_id != here->batch_id ||
           before->nonce != here->nonce;
}

static size_t batch_count(const struct db_finish *args)
{
    size_t count = 0;
    for (size_t i = 0; i < args->count; i++)
        count += starts_batch(args, i);
    return count;
}

/* One array with one item per claim batch. */
#define PUT_BATCHES_INT(params, args, type, width, expression)                                     \
    do {                                                                                           \
        params_array_open(params, type, batch_count(args));                                        \
        for (size_t i = 0; i < (args)->count; i++)                                                 \
            if (starts_batch(args, i))                                                             \
                params_item_int(params, (expression), width);                                      \
        params_array_close(params);                                                                \
    } while (0)

/* How many items of the batch that starts at `from`. */
static int64_t batch_size(const struct db_finish *args, size_t from)
{
    size_t to = from + 1;
    while (to < args->count && !starts_batch(args, to))
        to++;
    return (int64_t)(to - from);
}

static void put_complete(struct params *params, const struct db_finish *args)
{
    PUT_BATCHES_INT(params, args, PG_INT2, 2, receipt_at(args, i)->claim_slot);
    PUT_BATCHES_INT(params, args, PG_INT8, 8, (int64_t)receipt_at(args, i)->batch_id);
    PUT_BATCHES_INT(params, args, PG_INT8, 8, (int64_t)receipt_at(args, i)->nonce);
    PUT_BATCHES_INT(params, args, PG_INT4, 4, batch_size(args, i));
    PUT_JOBS_INT(params, args, PG_INT2, 2, receipt_at(args, i)->index);
    PUT_JOBS_INT(params, args, PG_INT8, 8, (int64_t)receipt_at(args, i)->job_id);
    PUT_JOBS_INT(params, args, PG_INT4, 4, receipt_at(args, i)->run_lease);
}

static void put_errors(struct params *params, const struct db_finish *args)
{
    params_array_open(params, PG_TEXT, args->count);
    for (size_t i = 0; i < args->count; i++)
        params_item_bytes(params, args->orders[i]->error);
    params_array_close(params);
}

static void put_finish(struct params *params, const struct db_finish *args)
{
    PUT_JOBS_INT(params, args, PG_INT2, 2, receipt_at(args, i)->claim_slot);
    PUT_JOBS_INT(params, args, PG_INT8, 8, (int64_t)receipt_at(args, i)->batch_id);
    PUT_JOBS_INT(params, args, PG_INT8, 8, (int64_t)receipt_at(args, i)->nonce);
    PUT_JOBS_INT(params, args, PG_INT2, 2, receipt_at(args, i)->index);
    PUT_JOBS_INT(params, args, PG_INT8, 8, (int64_t)receipt_at(args, i)->job_id);
    PUT_JOBS_INT(params, args, PG_INT4, 4, receipt_at(args, i)->run_lease);
    PUT_JOBS_INT(params, args, PG_INT2, 2, (int64_t)args->orders[i]->outcome);
    PUT_JOBS_INT(params, args, PG_INT8, 8, args->orders[i]->delay_ms);
    put_errors(params, args);
}

static void put_task(struct params *params, enum maintenance_task task,
                     const struct call_settings *settings)
{
    switch (task) {
    case TASK_PROMOTE_DUE:
    case TASK_CARRY_LANES:
    case TASK_PURGE_IDEMPOTENCY_KEYS: params_int(params, maintenance_portion(task), 4); return;
    case TASK_RESCUE_INSTANCES:
        params_int(params, maintenance_portion(task), 4);
        params_int(params, settings->instance_missing_ms, 4);
        return;
    case TASK_ROTATE_RINGS:
        params_int(params, settings->queue_lap_ms, 4);
        params_int(params, settings->claim_lap_ms, 4);
        return;
    case TASK_PRUNE_SLOTS:
        params_int(params, settings->completed_retention_ms, 8);
        params_int(params, settings->closed_ms, 4);
        return;
    case TASK_SYNC_RING_POINTERS:
    case TASK_CLOSE_SLOTS:
    case TASK_END_STUCK_BACKENDS:
    case TASK_COUNT: return; /* no parameters */
    }
}

static void put_membership(struct params *params, enum membership membership,
                           const struct call_settings *settings)
{
    switch (membership) {
    case MEMBER_REGISTER:
        params_int(params, settings->instance, 8);
        params_text(params, bytes_of_text(settings->name));
        return;
    case MEMBER_TRY_LEAD:
    case MEMBER_RESIGN: return; /* no parameters */
    }
}

void encode_call(const struct db_call *call, const struct call_settings *settings,
                 struct params *params)
{
    switch (call->op) {
    case DB_RESERVE_IDS: params_int(params, call->args.id_count, 4); return;
    case DB_ENQUEUE: put_enqueue(params, &call->args.enqueue); return;
    case DB_ENQUEUE_ONCE:
        params_text(params, call->args.enqueue.key);
        put_enqueue(params, &call->args.enqueue);
        return;
    case DB_JOBS_EXIST: put_ids(params, &call->args.jobs_exist); return;
    case DB_CLAIM: put_claim(params, &call->args.claim, settings->instance); return;
    case DB_CLAIM_RESULT:
        params_int(params, settings->instance, 8);
        params_int(params, (int64_t)call->args.claim.nonce, 8);
        params_int(params, (int64_t)call->args.claim.above, 8);
        return;
    case DB_BACKEND_GONE:
        params_int(params, call->args.backend.pid, 4);
        params_int(params, call->args.backend.started, 8);
        return;
    case DB_COMPLETE: put_complete(params, &call->args.finish); return;
    case DB_FINISH: put_finish(params, &call->args.finish); return;
    case DB_COUNTS: params_text(params, call->args.counts_queue); return;
    case DB_ANNOUNCE:
        put_texts(params, call->args.announce.queues, call->args.announce.queue_count);
        return;
    case DB_MEMBERSHIP: put_membership(params, call->args.membership, settings); return;
    case DB_MAINTENANCE: put_task(params, call->args.task, settings); return;
    }
}
