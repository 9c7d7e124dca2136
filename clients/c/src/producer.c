// producer.c: enqueues jobs, splitting what is too much for one request.
//
// Invariant: every element of the caller's results is filled, whatever
// happens, so nobody has to guess which jobs are stored.
#include "internal.h"

#include <stdlib.h>
#include <string.h>

// More than the fixed parts, names and lengths of one job can take on the wire.
enum { JOB_OVERHEAD_BYTES = 1024 };

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
        results[i] = (struct awa_enqueue_result){.job_id = wire->job_id};
        if (wire->error != NULL)
            awai_fail_from_wire(&results[i].error, wire->error);
    }
}

static enum awa_code enqueue_once(awa_connection *connection, const struct awa_new_job *jobs,
                                  size_t count, struct awa_enqueue_result *results,
                                  struct awa_error *error)
{
    Awa__V1__NewJob *wire = calloc(count, sizeof *wire + sizeof(Awa__V1__NewJob *));
    if (wire == NULL)
        return awai_out_of_memory(error);
    Awa__V1__Enqueue enqueue = AWA__V1__ENQUEUE__INIT;
    enqueue.n_jobs = count;
    enqueue.jobs = (Awa__V1__NewJob **)(wire + count);
    for (size_t i = 0; i < count; i++) {
        wire[i] = job_to_wire(&jobs[i]);
        enqueue.jobs[i] = &wire[i];
    }
    Awa__V1__ServerFrame *answer;
    enum awa_code code =
        awai_call(connection, AWA__V1__CLIENT_FRAME__REQUEST_ENQUEUE, &enqueue, 0, &answer, error);
    free(wire);
    if (code != AWA_OK)
        return code;
    if (answer->enqueue_ok->n_results == count)
        take_results(answer->enqueue_ok, results);
    else
        code = awai_fail(error, AWA_INTERNAL, "the proxy answered %zu of %zu jobs",
                         answer->enqueue_ok->n_results, count);
    awa__v1__server_frame__free_unpacked(answer, NULL);
    return code;
}

enum awa_code awa_enqueue_many(awa_connection *connection, const struct awa_new_job *jobs,
                               size_t count, struct awa_enqueue_result *results,
                               struct awa_error *error)
{
    struct awa_error failure = {0};
    for (size_t done = 0; done < count;) {
        size_t part = fitting(&connection->limits, jobs + done, count - done);
        if (enqueue_once(connection, jobs + done, part, results + done, &failure) != AWA_OK) {
            for (size_t i = done; i < count; i++)
                results[i] = (struct awa_enqueue_result){.error = failure};
            if (error != NULL)
                *error = failure;
            return failure.code;
        }
        done += part;
    }
    return AWA_OK;
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
