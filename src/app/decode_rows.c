/* decode_rows: see decode_rows.h. */
#include "app/decode_rows.h"

#include <stdlib.h>

#include "base/limits.h"
#include "base/utf8.h"
#include "pg/rows.h"

static struct bytes field(const PGresult *rows, int row, int column)
{
    if (PQgetisnull(rows, row, column))
        return (struct bytes){NULL, 0};
    return bytes_of(PQgetvalue(rows, row, column), (size_t)PQgetlength(rows, row, column));
}

static bool field_int(const PGresult *rows, int row, int column, size_t width, int64_t *out)
{
    return column < PQnfields(rows) && value_int(field(rows, row, column), width, out);
}

/* A field that libpq has terminated with a NUL. */
static const char *field_text(const PGresult *rows, int row, int column)
{
    return PQgetisnull(rows, row, column) ? "" : PQgetvalue(rows, row, column);
}

static bool decode_ids(const PGresult *rows, struct arena *arena, struct db_reply *reply)
{
    size_t count = (size_t)PQntuples(rows);
    struct id_run *runs = arena_alloc(arena, count * sizeof *runs);

    if (runs == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!field_int(rows, (int)i, 0, 8, &runs[i].first) ||
            !field_int(rows, (int)i, 1, 8, &runs[i].last))
            return false;
    reply->rows.ids.runs = runs;
    reply->rows.ids.count = count;
    return true;
}

static bool decode_enqueue(const struct db_enqueue *args, const PGresult *rows, struct arena *arena,
                           struct db_reply *reply)
{
    size_t count = (size_t)PQntuples(rows);
    struct db_failed_item *failed = arena_alloc(arena, count * sizeof *failed);

    if (failed == NULL || PQnfields(rows) < 3)
        return false;
    for (size_t i = 0; i < count; i++) {
        int64_t item = 0;
        if (!field_int(rows, (int)i, 0, 4, &item) || item < 1 || (size_t)item > args->count)
            return false;
        failed[i] = (struct db_failed_item){.item = (size_t)item - 1,
                                            .sqlstate = field_text(rows, (int)i, 1),
                                            .message = field_text(rows, (int)i, 2)};
    }
    reply->rows.enqueue.failed = failed;
    reply->rows.enqueue.count = count;
    return true;
}

/* One row an item where the key was known (a NULL id: that job was refused then), otherwise one for
 * each refused item; mixed never. */
static bool decode_enqueue_once(const struct db_enqueue *args, const PGresult *rows,
                                struct arena *arena, struct db_reply *reply)
{
    enum { ITEM_COLUMN, KNOWN_COLUMN = 3, ID_COLUMN, COLUMNS };
    int64_t *ids = NULL;
    int64_t known = 0;

    if (PQnfields(rows) != COLUMNS)
        return false;
    if (PQntuples(rows) == 0 || !field_int(rows, 0, KNOWN_COLUMN, 1, &known) || known == 0)
        return decode_enqueue(args, rows, arena, reply);
    ids = arena_zalloc(arena, args->count * sizeof *ids);
    if (ids == NULL || (size_t)PQntuples(rows) != args->count)
        return false;
    for (size_t i = 0; i < args->count; i++) {
        int64_t item = 0;
        if (!field_int(rows, (int)i, ITEM_COLUMN, 4, &item) || item != (int64_t)i + 1)
            return false;
        if (!PQgetisnull(rows, (int)i, ID_COLUMN) &&
            !field_int(rows, (int)i, ID_COLUMN, 8, &ids[i]))
            return false;
    }
    reply->rows.enqueue.known_ids = ids;
    return true;
}

static bool decode_exist(const struct db_jobs_exist *args, const PGresult *rows,
                         struct arena *arena, struct db_reply *reply)
{
    bool *exist = arena_alloc(arena, args->count * sizeof *exist);
    struct array_reader array;

    if (exist == NULL || PQntuples(rows) != 1 || PQnfields(rows) != 1 ||
        !array_open(&array, field(rows, 0, 0), PG_BOOL) || array.count != args->count)
        return false;
    for (size_t i = 0; i < args->count; i++) {
        int64_t value = 0;
        if (!array_next_int(&array, 1, &value))
            return false;
        exist[i] = value != 0;
    }
    reply->rows.exist = exist;
    return true;
}

static bool decode_gone(const PGresult *rows, struct db_reply *reply)
{
    int64_t gone = 0;

    if (PQntuples(rows) != 1 || !field_int(rows, 0, 0, 1, &gone))
        return false;
    reply->rows.gone = gone != 0;
    return true;
}

/* ---- claim ---- */

enum claim_column {
    CLAIM_STATUS,
    CLAIM_QUEUE,
    CLAIM_PRIORITY,
    CLAIM_SLOT,
    CLAIM_BATCH_ID,
    CLAIM_JOB_IDS,
    CLAIM_RUN_LEASES,
    CLAIM_ATTEMPTS,
    CLAIM_MAX_ATTEMPTS,
    CLAIM_CREATED_ATS,
    CLAIM_KINDS,
    CLAIM_ARGS,
    CLAIM_METADATA,
    CLAIM_TRACEPARENTS,
    CLAIM_PLACES,
    CLAIM_COLUMNS,
};

enum { ROW_BATCH = 1, ROW_EMPTY = 2, ROW_BUSY = 7 };

/* A NULL, where a number has to be; no column has it (a time: -infinity). */
#define NO_NUMBER INT64_MIN

struct placed_job {
    struct claimed_job job;
    int64_t place;
};

struct claim_rows { /* each has room for as many as were asked for */
    struct placed_job *jobs;
    size_t count;
    struct unreadable_job *unreadable; /* NULL: none so far */
    size_t unreadable_count;
};

/* As it is stored. */
struct stored_body {
    int64_t attempt;
    int64_t max_attempts;
    int64_t created_at;
    struct bytes kind;
    struct bytes args;
    struct bytes metadata;
    struct bytes traceparent;
};

struct claim_arrays {
    struct array_reader job_ids, run_leases, attempts, max_attempts, created_ats, kinds, args,
        metadata, traceparents, places;
    bool has_metadata, has_traceparents, has_places;
};

static bool open_column(struct array_reader *array, const PGresult *rows, int row,
                        enum claim_column column, enum pg_type type, size_t count)
{
    return array_open(array, field(rows, row, (int)column), type) && array->count == count;
}

static bool open_optional(struct array_reader *array, bool *has, const PGresult *rows, int row,
                          enum claim_column column, enum pg_type type, size_t count)
{
    *has = !PQgetisnull(rows, row, (int)column);
    return !*has || open_column(array, rows, row, column, type, count);
}

static bool open_arrays(struct claim_arrays *a, const PGresult *rows, int row)
{
    if (!array_open(&a->job_ids, field(rows, row, CLAIM_JOB_IDS), PG_INT8))
        return false;
    size_t n = a->job_ids.count;
    return open_column(&a->run_leases, rows, row, CLAIM_RUN_LEASES, PG_INT4, n) &&
           open_column(&a->attempts, rows, row, CLAIM_ATTEMPTS, PG_INT2, n) &&
           open_column(&a->max_attempts, rows, row, CLAIM_MAX_ATTEMPTS, PG_INT2, n) &&
           open_column(&a->created_ats, rows, row, CLAIM_CREATED_ATS, PG_TIMESTAMPTZ, n) &&
           open_column(&a->kinds, rows, row, CLAIM_KINDS, PG_TEXT, n) &&
           open_column(&a->args, rows, row, CLAIM_ARGS, PG_JSON, n) &&
           open_optional(&a->metadata, &a->has_metadata, rows, row, CLAIM_METADATA, PG_JSON, n) &&
           open_optional(&a->traceparents, &a->has_traceparents, rows, row, CLAIM_TRACEPARENTS,
                         PG_TEXT, n) &&
           open_optional(&a->places, &a->has_places, rows, row, CLAIM_PLACES, PG_INT4, n);
}

static bool next_number(struct array_reader *array, size_t width, int64_t *out)
{
    struct bytes item;

    *out = NO_NUMBER;
    return array_next(array, &item) && (item.data == NULL || value_int(item, width, out));
}

/* False: it is not even known which attempt this is, so nobody can end it. */
static bool read_receipt(struct claim_arrays *a, struct placed_job *out)
{
    int64_t job_id = 0;
    int64_t run_lease = 0;

    if (!array_next_int(&a->job_ids, 8, &job_id) || job_id <= 0 ||
        !array_next_int(&a->run_leases, 4, &run_lease) ||
        (a->has_places && !array_next_int(&a->places, 4, &out->place)))
        return false;
    out->job.receipt.job_id = (uint64_t)job_id;
    out->job.receipt.run_lease = (uint32_t)run_lease;
    return true;
}

static bool read_body(struct claim_arrays *a, struct stored_body *body)
{
    return next_number(&a->attempts, 2, &body->attempt) &&
           next_number(&a->max_attempts, 2, &body->max_attempts) &&
           next_number(&a->created_ats, 8, &body->created_at) &&
           array_next(&a->kinds, &body->kind) && array_next(&a->args, &body->args) &&
           (!a->has_metadata || array_next(&a->metadata, &body->metadata)) &&
           (!a->has_traceparents || array_next(&a->traceparents, &body->traceparent));
}

/* Why nobody can work on it; NULL: it is good. */
static const char *why_unreadable(const struct receipt *receipt, const struct stored_body *body)
{
    if (body->kind.data == NULL)
        return "unreadable job: its stored body cannot be read";
    if (body->args.data == NULL)
        return "unreadable job: it has no args";
    if (!utf8_valid(body->kind) || !utf8_valid(body->traceparent))
        return "unreadable job: its kind or traceparent is not UTF-8";
    if (receipt->run_lease > INT32_MAX)
        return "unreadable job: its run lease is negative";
    if (body->attempt < 1)
        return "unreadable job: the number of its attempt is below 1";
    if (body->max_attempts < 1)
        return "unreadable job: its max_attempts is below 1";
    if (body->created_at == NO_NUMBER || body->created_at > INT64_MAX - PG_EPOCH_US)
        return "unreadable job: the time of its creation is not finite";
    return NULL;
}

static void fill_job(struct claimed_job *job, const struct stored_body *body)
{
    job->kind = body->kind;
    job->args = body->args;
    job->metadata = body->metadata;
    job->traceparent = body->traceparent;
    job->created_at_us = body->created_at + PG_EPOCH_US;
    job->attempt = (uint16_t)body->attempt;
    job->max_attempts = (uint16_t)body->max_attempts;
}

static bool add_unreadable(struct claim_rows *out, const struct db_claim *args, struct arena *arena,
                           const struct claimed_job *job, const char *why)
{
    if (out->unreadable == NULL)
        out->unreadable = arena_alloc(arena, args->limit * sizeof *out->unreadable);
    if (out->unreadable == NULL)
        return false;
    out->unreadable[out->unreadable_count++] =
        (struct unreadable_job){.receipt = job->receipt, .queue = job->queue, .why = why};
    return true;
}

/* The next job of the batch, to one of the two lists. */
static bool read_job(struct claim_arrays *arrays, const struct db_claim *args,
                     const struct placed_job *model, struct arena *arena, struct claim_rows *out)
{
    struct placed_job placed = *model;
    struct stored_body body = {.attempt = 0};

    if (!read_receipt(arrays, &placed) || !read_body(arrays, &body))
        return false;
    const char *why = why_unreadable(&placed.job.receipt, &body);
    if (why != NULL)
        return add_unreadable(out, args, arena, &placed.job, why);
    fill_job(&placed.job, &body);
    out->jobs[out->count++] = placed;
    return true;
}

/* One row is one claim batch; all together hold args->limit jobs at most. */
static bool read_batch(const struct db_claim *args, const PGresult *rows, int row,
                       struct arena *arena, struct claim_rows *out)
{
    struct claim_arrays arrays;
    int64_t priority = 0;
    int64_t claim_slot = 0;
    int64_t batch_id = 0;

    if (!field_int(rows, row, CLAIM_PRIORITY, 2, &priority) ||
        !field_int(rows, row, CLAIM_SLOT, 2, &claim_slot) ||
        !field_int(rows, row, CLAIM_BATCH_ID, 8, &batch_id) || !open_arrays(&arrays, rows, row))
        return false;
    size_t before = out->count + out->unreadable_count;
    size_t size = arrays.job_ids.count;
    if (size > args->limit - before || claim_slot < 0 || claim_slot > UINT8_MAX || batch_id < 0)
        return false;
    for (size_t i = 0; i < size; i++) {
        struct placed_job model = {.place = (int64_t)(before + i) + 1};
        model.job.queue = field(rows, row, CLAIM_QUEUE);
        model.job.priority = (uint8_t)priority;
        model.job.receipt.claim_slot = (uint8_t)claim_slot;
        model.job.receipt.batch_id = (uint64_t)batch_id;
        model.job.receipt.nonce = args->nonce;
        model.job.receipt.index = (uint16_t)(i + 1);
        if (!read_job(&arrays, args, &model, arena, out))
            return false;
    }
    return true;
}

static int compare_places(const void *a, const void *b)
{
    const struct placed_job *left = a;
    const struct placed_job *right = b;
    return (left->place > right->place) - (left->place < right->place);
}

/* The jobs in the order of their places, as core takes them. */
static bool put_in_order(struct placed_job *placed, size_t count, struct arena *arena,
                         struct db_reply *reply)
{
    struct claimed_job *jobs = arena_alloc(arena, count * sizeof *jobs);
    bool ordered = true;

    if (jobs == NULL)
        return false;
    for (size_t i = 1; i < count; i++)
        ordered = ordered && placed[i - 1].place <= placed[i].place;
    if (!ordered)
        qsort(placed, count, sizeof *placed, compare_places);
    for (size_t i = 0; i < count; i++)
        jobs[i] = placed[i].job;
    reply->rows.claim.jobs = jobs;
    reply->rows.claim.count = count;
    return true;
}

static bool decode_claim(const struct db_claim *args, const PGresult *rows, struct arena *arena,
                         struct db_reply *reply)
{
    struct claim_rows out = {.jobs = arena_alloc(arena, args->limit * sizeof *out.jobs)};

    if (out.jobs == NULL || PQnfields(rows) < CLAIM_COLUMNS)
        return false;
    reply->rows.claim.end = CLAIM_FILLED;
    for (int row = 0; row < PQntuples(rows); row++) {
        int64_t status = 0;
        if (!field_int(rows, row, CLAIM_STATUS, 2, &status))
            return false;
        if (status == ROW_EMPTY)
            reply->rows.claim.end = CLAIM_EMPTY;
        else if (status == ROW_BUSY)
            reply->rows.claim.end = CLAIM_BUSY;
        else if (status != ROW_BATCH || !read_batch(args, rows, row, arena, &out))
            return false;
    }
    reply->rows.claim.unreadable = out.unreadable;
    reply->rows.claim.unreadable_count = out.unreadable_count;
    return put_in_order(out.jobs, out.count, arena, reply);
}

/* ---- the others ---- */

static bool decode_statuses(const struct db_finish *args, const PGresult *rows, struct arena *arena,
                            struct db_reply *reply)
{
    int16_t *statuses = arena_alloc(arena, args->count * sizeof *statuses);
    struct array_reader array;

    if (statuses == NULL || PQntuples(rows) != 1 || PQnfields(rows) != 1 ||
        !array_open(&array, field(rows, 0, 0), PG_INT2) || array.count != args->count)
        return false;
    for (size_t i = 0; i < args->count; i++) {
        int64_t status = 0;
        if (!array_next_int(&array, 2, &status))
            return false;
        if ((status < FINISH_DONE || status > FINISH_INVALID) && status != STORAGE_BUSY)
            return false;
        statuses[i] = (int16_t)status;
    }
    reply->rows.finish.statuses = statuses;
    reply->rows.finish.count = args->count;
    return true;
}

static bool decode_counts(const PGresult *rows, struct db_reply *reply)
{
    struct queue_counts *counts = &reply->rows.counts;
    int64_t *const members[] = {&counts->scheduled,        &counts->available, &counts->running,
                                &counts->waiting_external, &counts->retryable, &counts->completed,
                                &counts->failed,           &counts->cancelled};

    if (PQntuples(rows) != 1)
        return false;
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
        if (!field_int(rows, 0, (int)i, 8, members[i]))
            return false;
    return true;
}

static bool decode_granted(const PGresult *rows, struct db_reply *reply)
{
    int64_t value = 0;

    if (PQntuples(rows) != 1 || !field_int(rows, 0, 0, 1, &value))
        return false;
    reply->rows.granted = value != 0;
    return true;
}

bool decode_rows(const struct db_call *call, const PGresult *rows, struct arena *arena,
                 struct db_reply *reply)
{
    switch (call->op) {
    case DB_RESERVE_IDS: return decode_ids(rows, arena, reply);
    case DB_ENQUEUE: return decode_enqueue(&call->args.enqueue, rows, arena, reply);
    case DB_ENQUEUE_ONCE: return decode_enqueue_once(&call->args.enqueue, rows, arena, reply);
    case DB_JOBS_EXIST: return decode_exist(&call->args.jobs_exist, rows, arena, reply);
    case DB_CLAIM:
    case DB_CLAIM_RESULT: return decode_claim(&call->args.claim, rows, arena, reply);
    case DB_BACKEND_GONE: return decode_gone(rows, reply);
    case DB_COMPLETE:
    case DB_FINISH: return decode_statuses(&call->args.finish, rows, arena, reply);
    case DB_COUNTS: return decode_counts(rows, reply);
    case DB_ANNOUNCE: return true; /* it says nothing */
    case DB_MEMBERSHIP: return decode_granted(rows, reply);
    case DB_MAINTENANCE:
        return PQntuples(rows) == 1 && field_int(rows, 0, 0, 8, &reply->rows.maintenance);
    }
    return false;
}
