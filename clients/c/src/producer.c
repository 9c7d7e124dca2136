// producer.c: enqueues jobs, splitting what is too much for one request.
//
// A request with an idempotency key is sent again, with growing pauses, until
// its outcome is known or its time is over. One without is sent once: sent
// again, its jobs might exist twice.
// Invariant: every element of the caller's results is filled, whatever
// happens, so nobody has to guess which jobs are stored.
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

// More than the fixed parts, names and lengths of one job can take on the wire.
enum { JOB_OVERHEAD_BYTES = 1024 };

enum { RANDOM_BYTES = 16, RANDOM_KEY_BYTES = 2 * RANDOM_BYTES + 1 };

static ProtobufCBinaryData text_bytes(const char *text)
{
    return (ProtobufCBinaryData){
        .len = text != NULL ? strlen(text) : 0,
        .data = (uint8_t *)text,
    };
}

static Awa__V1__NewJob job_to_wire(const struct awa_new_job *job)
{
    Awa__V1__NewJob wire = AWA__V1__NEW_JOB__INIT;
    wire.queue = (char *)job->queue;
    wire.kind = (char *)job->kind;
    wire.args = text_bytes(job->args);
    wire.priority = job->priority;
    wire.max_attempts = job->max_attempts;
    wire.run_at_us = job->run_at_us;
    wire.ordering_key = (char *)job->ordering_key;
    wire.metadata = text_bytes(job->metadata);
    wire.traceparent = (char *)job->traceparent;
    return wire;
}

// How many of the first jobs fit one request; at least one.
static size_t fitting(const struct awa_limits *limits, const struct awa_new_job *jobs, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += JOB_OVERHEAD_BYTES + text_bytes(jobs[i].args).len;
        bytes += text_bytes(jobs[i].metadata).len;
        if (i > 0 && (i == limits->max_jobs_per_enqueue || bytes > limits->max_frame_bytes))
            return i;
    }
    return count;
}

static void take_results(const Awa__V1__EnqueueOk *ok, struct awa_enqueue_result *results)
{
    for (size_t i = 0; i < ok->n_results; i++) {
        const Awa__V1__EnqueueResult *wire = ok->results[i];
        results[i] = (struct awa_enqueue_result){.job_id = wire->job_id > 0 ? wire->job_id : 0};
        if (wire->error != NULL)
            awai_fail_from_wire(&results[i].error, wire->error);
        else if (wire->job_id <= 0)
            awai_fail(&results[i].error, AWA_INTERNAL, "the proxy said neither an id nor an error");
    }
}

static enum awa_code send_once(awa_connection *connection, Awa__V1__Enqueue *enqueue,
                               int64_t deadline_ms, struct awa_enqueue_result *results,
                               struct awa_error *error)
{
    Awa__V1__ServerFrame *answer;
    enum awa_code code = awai_call_until(connection, AWA__V1__CLIENT_FRAME__REQUEST_ENQUEUE,
                                         enqueue, deadline_ms, &answer, error);
    if (code != AWA_OK)
        return code;
    if (answer->enqueue_ok->n_results == enqueue->n_jobs) {
        take_results(answer->enqueue_ok, results);
    } else {
        code = AWA_INTERNAL;
        awai_fail(error, code, "the proxy answered %zu of %zu jobs", answer->enqueue_ok->n_results,
                  enqueue->n_jobs);
    }
    awa__v1__server_frame__free_unpacked(answer, NULL);
    return code;
}

// What another attempt might mend, or NULL. The jobs under one key are stored
// together, so the first such error stands for all.
static const struct awa_error *first_retryable(const struct awa_enqueue_result *results,
                                               size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (results[i].job_id == 0 && results[i].error.retryable)
            return &results[i].error;
    return NULL;
}

// An attempt that came to nothing does not say that an earlier one did: once
// unknown, the outcome stays so until it is told.
static enum awa_code send_until_known(awa_connection *connection, Awa__V1__Enqueue *enqueue,
                                      struct awa_enqueue_result *results, struct awa_error *error)
{
    int64_t deadline_ms = awai_now_ms() + connection->request_timeout_ms;
    bool unknown = false;
    for (int backoff_ms = 0;;) {
        enum awa_code code = send_once(connection, enqueue, deadline_ms, results, error);
        if (code == AWA_OK) {
            const struct awa_error *why = first_retryable(results, enqueue->n_jobs);
            if (why == NULL)
                return AWA_OK;
            *error = *why;
        }
        unknown = unknown || error->code == AWA_DEADLINE_EXCEEDED;
        if (error->retryable && awai_back_off(&backoff_ms, deadline_ms))
            continue;
        if (unknown)
            error->code = AWA_DEADLINE_EXCEEDED;
        return error->code;
    }
}

// key: NULL for none.
static enum awa_code enqueue_part(awa_connection *connection, const char *key,
                                  const struct awa_new_job *jobs, size_t count,
                                  struct awa_enqueue_result *results, struct awa_error *error)
{
    Awa__V1__NewJob *wire = calloc(count, sizeof *wire + sizeof(Awa__V1__NewJob *));
    if (wire == NULL)
        return awai_out_of_memory(error);
    Awa__V1__Enqueue enqueue = AWA__V1__ENQUEUE__INIT;
    enqueue.idempotency_key = (char *)key;
    enqueue.n_jobs = count;
    enqueue.jobs = (Awa__V1__NewJob **)(wire + count);
    for (size_t i = 0; i < count; i++) {
        wire[i] = job_to_wire(&jobs[i]);
        enqueue.jobs[i] = &wire[i];
    }
    enum awa_code code;
    if (key != NULL)
        code = send_until_known(connection, &enqueue, results, error);
    else
        code = send_once(connection, &enqueue, awai_now_ms() + connection->request_timeout_ms,
                         results, error);
    free(wire);
    if (code == AWA_DEADLINE_EXCEEDED) {
        struct awa_error why = *error;
        snprintf(error->message, sizeof error->message,
                 "it is unknown whether the jobs are stored: %.200s", why.message);
    }
    return code;
}

static enum awa_code make_key(char key[RANDOM_KEY_BYTES], struct awa_error *error)
{
    uint8_t bytes[RANDOM_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return awai_fail(error, AWA_INTERNAL, "no random bytes for an idempotency key");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(key + 2 * i, 3, "%02x", bytes[i]);
    return AWA_OK;
}

// Every result says why.
static enum awa_code all_failed(struct awa_enqueue_result *results, size_t count,
                                const struct awa_error *failure, struct awa_error *error)
{
    for (size_t i = 0; i < count; i++)
        results[i] = (struct awa_enqueue_result){.error = *failure};
    if (error != NULL)
        *error = *failure;
    return failure->code;
}

enum awa_code awa_enqueue_many(awa_connection *connection, const struct awa_new_job *jobs,
                               size_t count, struct awa_enqueue_result *results,
                               struct awa_error *error)
{
    struct awa_error failure = {0};
    for (size_t done = 0; done < count;) {
        size_t part = fitting(&connection->limits, jobs + done, count - done);
        char key[RANDOM_KEY_BYTES];
        enum awa_code code = connection->safe ? make_key(key, &failure) : AWA_OK;
        if (code == AWA_OK)
            code = enqueue_part(connection, connection->safe ? key : NULL, jobs + done, part,
                                results + done, &failure);
        if (code != AWA_OK)
            return all_failed(results + done, count - done, &failure, error);
        done += part;
    }
    return AWA_OK;
}

enum awa_code awa_enqueue_with_key(awa_connection *connection, const char *idempotency_key,
                                   const struct awa_new_job *jobs, size_t count,
                                   struct awa_enqueue_result *results, struct awa_error *error)
{
    const struct awa_limits *limits = &connection->limits;
    struct awa_error failure;
    enum awa_code code;
    if (idempotency_key == NULL || *idempotency_key == '\0')
        code = awai_fail(&failure, AWA_INVALID_ARGUMENT, "idempotency_key: empty, at least 1 byte");
    else if (count == 0 || fitting(limits, jobs, count) < count)
        code = awai_fail(&failure, AWA_INVALID_ARGUMENT,
                         "%zu jobs under one key: one request holds 1 to %u, of %u bytes in all",
                         count, limits->max_jobs_per_enqueue, limits->max_frame_bytes);
    else
        code = enqueue_part(connection, idempotency_key, jobs, count, results, &failure);
    return code == AWA_OK ? AWA_OK : all_failed(results, count, &failure, error);
}

enum awa_code awa_enqueue(awa_connection *connection, const struct awa_new_job *job,
                          int64_t *job_id, struct awa_error *error)
{
    struct awa_enqueue_result result = {.job_id = 0};
    enum awa_code code = awa_enqueue_many(connection, job, 1, &result, error);
    if (code != AWA_OK)
        return code;
    if (job_id != NULL)
        *job_id = result.job_id;
    if (result.job_id == 0 && error != NULL)
        *error = result.error;
    return result.job_id == 0 ? result.error.code : AWA_OK;
}
