/* answers: see answers.h. protobuf-c knows no const and wants texts that end in NUL: texts are
 * copied to the scratch arena, bytes are borrowed. */
#include "app/answers.h"

#include "base/check.h"
#include "base/limits.h"
#include "wire/reply.h"

static_assert((int)FINISH_ABORTED == (int)AWA__V1__FINISH_STATUS__STATUS_ABORTED, "one numbering");
static_assert((int)FINISH_DONE == (int)AWA__V1__FINISH_STATUS__DONE, "one numbering");
static_assert((int)HEARTBEAT_LOST == (int)AWA__V1__HEARTBEAT_STATUS__HEARTBEAT_LOST,
              "one numbering");
static_assert((int)NOTICE_ATTEMPT_LOST == (int)AWA__V1__NOTICE_KIND__ATTEMPT_LOST, "one numbering");

static void *need(struct arena *scratch, size_t size_bytes)
{
    void *memory = arena_zalloc(scratch, size_bytes);
    CHECK(memory != NULL);
    return memory;
}

static ProtobufCBinaryData binary(struct bytes bytes)
{
    return (ProtobufCBinaryData){.len = bytes.len, .data = (uint8_t *)(uintptr_t)bytes.data};
}

static char *text(struct arena *scratch, struct bytes bytes)
{
    char *copy = need(scratch, bytes.len + 1);
    if (bytes.len > 0)
        memcpy(copy, bytes.data, bytes.len);
    return copy;
}

static Awa__V1__Error *error_of(struct arena *scratch, const struct err *err)
{
    if (err == NULL)
        return NULL;
    Awa__V1__Error *error = need(scratch, sizeof *error);
    reply_error_init(error, err);
    return error;
}

static void fill_hello(Awa__V1__ServerFrame *frame, struct arena *scratch,
                       const struct answer *answer)
{
    Awa__V1__HelloOk *hello = need(scratch, sizeof *hello);

    awa__v1__hello_ok__init(hello);
    hello->major = 1;
    hello->minor = 0;
    hello->server_version = (char *)(uintptr_t) "awa-proxy " AWA_VERSION;
    hello->session_id = binary(bytes_of(answer->of.hello.session_id, SESSION_ID_BYTES));
    hello->max_frame_bytes = FRAME_BYTES_MAX;
    hello->max_jobs_per_enqueue = JOBS_PER_ENQUEUE_MAX;
    hello->max_claim_jobs = CLAIM_JOBS_MAX;
    hello->max_items_per_finish = ITEMS_PER_FINISH_MAX;
    hello->max_wait_ms = CLAIM_WAIT_MS_MAX;
    hello->credit_requests = CREDIT_REQUESTS;
    hello->credit_bytes = CREDIT_BYTES;
    hello->idle_timeout_ms = IDLE_TIMEOUT_MS;
    hello->max_args_bytes = ARGS_BYTES_MAX;
    hello->resumed = answer->of.hello.resumed;
    hello->heartbeat_interval_ms = HEARTBEAT_MS;
    hello->session_grace_ms = answer->of.hello.grace_ms;
    frame->answer_case = AWA__V1__SERVER_FRAME__ANSWER_HELLO_OK;
    frame->hello_ok = hello;
}

static void fill_enqueue(Awa__V1__ServerFrame *frame, struct arena *scratch,
                         const struct enqueue_result *results, size_t count)
{
    Awa__V1__EnqueueOk *ok = need(scratch, sizeof *ok);
    Awa__V1__EnqueueResult *items = need(scratch, count * sizeof *items);

    awa__v1__enqueue_ok__init(ok);
    ok->n_results = count;
    ok->results = need(scratch, count * sizeof *ok->results);
    for (size_t i = 0; i < count; i++) {
        awa__v1__enqueue_result__init(&items[i]);
        items[i].job_id = results[i].job_id;
        items[i].error = error_of(scratch, results[i].err);
        ok->results[i] = &items[i];
    }
    frame->answer_case = AWA__V1__SERVER_FRAME__ANSWER_ENQUEUE_OK;
    frame->enqueue_ok = ok;
}

static void fill_job(Awa__V1__Job *out, struct arena *scratch, const struct claimed_job *job)
{
    uint8_t *receipt = need(scratch, RECEIPT_BYTES);

    receipt_encode(&job->receipt, receipt);
    awa__v1__job__init(out);
    out->job_id = (int64_t)job->receipt.job_id;
    out->receipt = binary(bytes_of(receipt, RECEIPT_BYTES));
    out->queue = text(scratch, job->queue);
    out->kind = text(scratch, job->kind);
    out->args = binary(job->args);
    out->priority = job->priority;
    out->attempt = job->attempt;
    out->max_attempts = job->max_attempts;
    out->created_at_us = job->created_at_us;
    out->metadata = binary(job->metadata);
    if (job->traceparent.data != NULL)
        out->traceparent = text(scratch, job->traceparent);
}

static void fill_claim(Awa__V1__ServerFrame *frame, struct arena *scratch,
                       const struct claimed_job *first, size_t count)
{
    Awa__V1__ClaimOk *ok = need(scratch, sizeof *ok);
    Awa__V1__Job *jobs = need(scratch, count * sizeof *jobs);

    awa__v1__claim_ok__init(ok);
    ok->jobs = need(scratch, count * sizeof *ok->jobs);
    for (const struct claimed_job *job = first; job != NULL; job = job->next) {
        fill_job(&jobs[ok->n_jobs], scratch, job);
        ok->jobs[ok->n_jobs] = &jobs[ok->n_jobs];
        ok->n_jobs++;
    }
    CHECK(ok->n_jobs == count);
    frame->answer_case = AWA__V1__SERVER_FRAME__ANSWER_CLAIM_OK;
    frame->claim_ok = ok;
}

static Awa__V1__FinishOk *finish_ok(struct arena *scratch, const struct finish_result *results,
                                    size_t count)
{
    Awa__V1__FinishOk *ok = need(scratch, sizeof *ok);
    Awa__V1__FinishResult *items = need(scratch, count * sizeof *items);

    awa__v1__finish_ok__init(ok);
    ok->n_results = count;
    ok->results = need(scratch, count * sizeof *ok->results);
    for (size_t i = 0; i < count; i++) {
        awa__v1__finish_result__init(&items[i]);
        items[i].status = (Awa__V1__FinishStatus)results[i].status;
        items[i].error = error_of(scratch, results[i].err);
        ok->results[i] = &items[i];
    }
    return ok;
}

static void fill_counts(Awa__V1__ServerFrame *frame, struct arena *scratch,
                        const struct queue_counts *counts)
{
    Awa__V1__QueueCountsOk *ok = need(scratch, sizeof *ok);

    awa__v1__queue_counts_ok__init(ok);
    ok->scheduled = counts->scheduled;
    ok->available = counts->available;
    ok->running = counts->running;
    ok->waiting_external = counts->waiting_external;
    ok->retryable = counts->retryable;
    ok->completed = counts->completed;
    ok->failed = counts->failed;
    ok->cancelled = counts->cancelled;
    frame->answer_case = AWA__V1__SERVER_FRAME__ANSWER_QUEUE_COUNTS_OK;
    frame->queue_counts_ok = ok;
}

static void fill_heartbeat(Awa__V1__ServerFrame *frame, struct arena *scratch,
                           const struct answer *answer)
{
    Awa__V1__HeartbeatOk *ok = need(scratch, sizeof *ok);

    awa__v1__heartbeat_ok__init(ok);
    ok->n_statuses = answer->of.heartbeat.count;
    ok->statuses = need(scratch, ok->n_statuses * sizeof *ok->statuses);
    for (size_t i = 0; i < ok->n_statuses; i++)
        ok->statuses[i] = (Awa__V1__HeartbeatStatus)answer->of.heartbeat.statuses[i];
    frame->answer_case = AWA__V1__SERVER_FRAME__ANSWER_HEARTBEAT_OK;
    frame->heartbeat_ok = ok;
}

static void fill_cancel(Awa__V1__ServerFrame *frame, struct arena *scratch, bool cancelled)
{
    frame->answer_case = AWA__V1__SERVER_FRAME__ANSWER_CANCEL_REQUEST_OK;
    frame->cancel_request_ok = need(scratch, sizeof *frame->cancel_request_ok);
    awa__v1__cancel_request_ok__init(frame->cancel_request_ok);
    frame->cancel_request_ok->cancelled = cancelled;
}

static void fill_notice(Awa__V1__ServerFrame *frame, struct arena *scratch,
                        const struct answer *answer)
{
    frame->answer_case = AWA__V1__SERVER_FRAME__ANSWER_NOTICE;
    frame->notice = need(scratch, sizeof *frame->notice);
    awa__v1__notice__init(frame->notice);
    frame->notice->kind = (Awa__V1__NoticeKind)answer->of.notice.kind;
    frame->notice->receipt = binary(answer->of.notice.receipt);
}

static void fill_pong(Awa__V1__ServerFrame *frame, struct arena *scratch)
{
    frame->answer_case = AWA__V1__SERVER_FRAME__ANSWER_PONG;
    frame->pong = need(scratch, sizeof *frame->pong);
    awa__v1__pong__init(frame->pong);
}

static void fill_goodbye(Awa__V1__ServerFrame *frame, struct arena *scratch, uint32_t released)
{
    frame->answer_case = AWA__V1__SERVER_FRAME__ANSWER_GOODBYE_OK;
    frame->goodbye_ok = need(scratch, sizeof *frame->goodbye_ok);
    awa__v1__goodbye_ok__init(frame->goodbye_ok);
    frame->goodbye_ok->released = released;
}

void answer_add(struct buf *out, struct arena *scratch, uint64_t request_id,
                const struct answer *answer)
{
    Awa__V1__ServerFrame frame;

    awa__v1__server_frame__init(&frame);
    frame.request_id = request_id;
    switch (answer->kind) {
    case ANSWER_HELLO: fill_hello(&frame, scratch, answer); break;
    case ANSWER_PONG: fill_pong(&frame, scratch); break;
    case ANSWER_GOODBYE: fill_goodbye(&frame, scratch, answer->of.released); break;
    case ANSWER_ENQUEUE:
        fill_enqueue(&frame, scratch, answer->of.enqueue.results, answer->of.enqueue.count);
        break;
    case ANSWER_CLAIM:
        fill_claim(&frame, scratch, answer->of.claim.first, answer->of.claim.count);
        break;
    case ANSWER_FINISH:
        frame.answer_case = AWA__V1__SERVER_FRAME__ANSWER_FINISH_OK;
        frame.finish_ok = finish_ok(scratch, answer->of.finish.results, answer->of.finish.count);
        break;
    case ANSWER_RELEASE:
        frame.answer_case = AWA__V1__SERVER_FRAME__ANSWER_RELEASE_OK;
        frame.release_ok = finish_ok(scratch, answer->of.finish.results, answer->of.finish.count);
        break;
    case ANSWER_COUNTS: fill_counts(&frame, scratch, answer->of.counts); break;
    case ANSWER_HEARTBEAT: fill_heartbeat(&frame, scratch, answer); break;
    case ANSWER_CANCEL: fill_cancel(&frame, scratch, answer->of.cancelled); break;
    case ANSWER_NOTICE: fill_notice(&frame, scratch, answer); break;
    case ANSWER_ERROR:
        frame.answer_case = AWA__V1__SERVER_FRAME__ANSWER_ERROR;
        frame.error = error_of(scratch, answer->of.err);
        break;
    }
    reply_add(out, &frame);
    arena_reset(scratch);
}
