/* message: see message.h. The limits are those that awa.proto documents at each field. */
#include "wire/message.h"

#include <inttypes.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "wire/json_scan.h"

enum { PROTOCOL_MAJOR = 1 };

static void *allocate(void *arena, size_t size_bytes)
{
    return arena_alloc(arena, size_bytes);
}

static void release(void *arena, void *memory)
{
    (void)arena; /* all at once, by the owner of the arena */
    (void)memory;
}

static enum code check_count(const char *what, size_t count, size_t min, size_t max,
                             struct err *why)
{
    if (count >= min && count <= max)
        return CODE_OK;
    return err_set(why, CODE_INVALID_ARGUMENT, "%s: %zu, must be %zu to %zu", what, count, min,
                   max);
}

static enum code check_size(const char *what, size_t bytes, size_t max, struct err *why)
{
    if (bytes <= max)
        return CODE_OK;
    return err_set(why, CODE_INVALID_ARGUMENT, "%s: %zu bytes, at most %zu", what, bytes, max);
}

static enum code check_range(const char *what, int64_t value, int64_t min, int64_t max,
                             struct err *why)
{
    if (value >= min && value <= max)
        return CODE_OK;
    return err_set(why, CODE_INVALID_ARGUMENT, "%s: %" PRId64 ", must be %" PRId64 " to %" PRId64,
                   what, value, min, max);
}

/* Queues and kinds. */
static enum code check_name(const char *what, const char *name, struct err *why)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                   "_.:/-";
    size_t len = strlen(name);

    if (len == 0)
        return err_set(why, CODE_INVALID_ARGUMENT, "%s: is missing", what);
    if (len > NAME_BYTES_MAX)
        return check_size(what, len, NAME_BYTES_MAX, why);
    if (strspn(name, alphabet) != len)
        return err_set(why, CODE_INVALID_ARGUMENT, "%s: only A-Z a-z 0-9 and _ . : / - are allowed",
                       what);
    return CODE_OK;
}

static enum code check_json(const char *what, struct bytes text, size_t bytes_max,
                            bool must_be_object, struct err *why)
{
    size_t at = 0;

    if (text.len == 0)
        return CODE_OK;
    if (text.len > bytes_max)
        return check_size(what, text.len, bytes_max, why);
    switch (json_scan(text, &at)) {
    case JSON_OBJECT: return CODE_OK;
    case JSON_OTHER:
        return must_be_object ? err_set(why, CODE_INVALID_ARGUMENT, "%s: is no JSON object", what)
                              : CODE_OK;
    case JSON_MALFORMED:
        return err_set(why, CODE_INVALID_ARGUMENT, "%s: is no JSON text, see byte %zu", what, at);
    case JSON_TOO_DEEP:
        return err_set(why, CODE_INVALID_ARGUMENT, "%s: nested more than %d deep at byte %zu", what,
                       JSON_DEPTH_MAX, at);
    case JSON_NOT_UTF8: break;
    }
    return err_set(why, CODE_INVALID_ARGUMENT, "%s: is not UTF-8, or holds a NUL", what);
}

static struct bytes bytes_of_binary(ProtobufCBinaryData binary)
{
    return bytes_of(binary.data, binary.len);
}

/* Only their size: one that is not ours names nothing that could be held. */
static enum code check_receipts(const ProtobufCBinaryData *receipts, size_t count, struct err *why)
{
    enum code code = CODE_OK;

    for (size_t i = 0; code == CODE_OK && i < count; i++)
        code = check_size("receipt", receipts[i].len, RECEIPT_BYTES_MAX, why);
    return code;
}

static enum code check_hello(const Awa__V1__Hello *hello, struct err *why)
{
    struct {
        const char *what;
        const char *text;
        size_t bytes_max;
    } const texts[] = {
        {"client_name", hello->client_name, CLIENT_TEXT_BYTES_MAX},
        {"client_version", hello->client_version, CLIENT_TEXT_BYTES_MAX},
        {"language", hello->language, CLIENT_TEXT_BYTES_MAX},
        {"worker_name", hello->worker_name, NAME_BYTES_MAX},
    };

    if (hello->major != PROTOCOL_MAJOR)
        return err_set(why, CODE_UNIMPLEMENTED, "protocol major %" PRIu32 ", this proxy speaks %d",
                       hello->major, PROTOCOL_MAJOR);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strlen(texts[i].text) > texts[i].bytes_max)
            return check_size(texts[i].what, strlen(texts[i].text), texts[i].bytes_max, why);
    }
    if (hello->session_id.len != 0 && hello->session_id.len != SESSION_ID_BYTES)
        return err_set(why, CODE_INVALID_ARGUMENT, "session_id: %zu bytes, must be %d or none",
                       hello->session_id.len, SESSION_ID_BYTES);
    return hello->held != NULL ? check_receipts(hello->held->receipts, hello->held->n_receipts, why)
                               : CODE_OK;
}

static enum code check_heartbeat(const Awa__V1__Heartbeat *heartbeat, struct err *why)
{
    enum code code = check_count("items", heartbeat->n_items, 1, ITEMS_PER_FINISH_MAX, why);

    for (size_t i = 0; code == CODE_OK && i < heartbeat->n_items; i++)
        code = check_receipts(&heartbeat->items[i]->receipt, 1, why);
    return code;
}

static enum code check_enqueue(const Awa__V1__Enqueue *enqueue, struct err *why)
{
    enum code code = check_count("jobs", enqueue->n_jobs, 1, JOBS_PER_ENQUEUE_MAX, why);

    if (code == CODE_OK)
        code = check_size("idempotency_key", strlen(enqueue->idempotency_key),
                          IDEMPOTENCY_KEY_BYTES_MAX, why);
    return code;
}

static enum code check_claim(const Awa__V1__Claim *claim, struct err *why)
{
    enum code code = check_count("queues", claim->n_queues, 1, CLAIM_QUEUES_MAX, why);

    for (size_t i = 0; code == CODE_OK && i < claim->n_queues; i++)
        code = check_name("queues", claim->queues[i], why);
    if (code == CODE_OK)
        code = check_range("max_jobs", claim->max_jobs, 1, CLAIM_JOBS_MAX, why);
    if (code == CODE_OK)
        code = check_range("wait_ms", claim->wait_ms, 0, CLAIM_WAIT_MS_MAX, why);
    return code;
}

static enum code check_request(const Awa__V1__ClientFrame *frame, struct err *why)
{
    switch (frame->request_case) {
    case AWA__V1__CLIENT_FRAME__REQUEST_HELLO: return check_hello(frame->hello, why);
    case AWA__V1__CLIENT_FRAME__REQUEST_PING:
    case AWA__V1__CLIENT_FRAME__REQUEST_GOODBYE: return CODE_OK;
    case AWA__V1__CLIENT_FRAME__REQUEST_ENQUEUE: return check_enqueue(frame->enqueue, why);
    case AWA__V1__CLIENT_FRAME__REQUEST_CLAIM: return check_claim(frame->claim, why);
    case AWA__V1__CLIENT_FRAME__REQUEST_FINISH:
        return check_count("items", frame->finish->n_items, 1, ITEMS_PER_FINISH_MAX, why);
    case AWA__V1__CLIENT_FRAME__REQUEST_RELEASE:
        return check_count("receipts", frame->release->n_receipts, 1, ITEMS_PER_FINISH_MAX, why);
    case AWA__V1__CLIENT_FRAME__REQUEST_QUEUE_COUNTS:
        return check_name("queue", frame->queue_counts->queue, why);
    case AWA__V1__CLIENT_FRAME__REQUEST_HEARTBEAT: return check_heartbeat(frame->heartbeat, why);
    case AWA__V1__CLIENT_FRAME__REQUEST_CANCEL_REQUEST: return CODE_OK; /* any id: it may be gone */
    case AWA__V1__CLIENT_FRAME__REQUEST__NOT_SET:
    case _AWA__V1__CLIENT_FRAME__REQUEST__CASE_IS_INT_SIZE:
        break; /* no value, protobuf-c's filler */
    }
    return err_set(why, CODE_INVALID_ARGUMENT, "the frame holds no request");
}

enum message_verdict message_decode(struct arena *arena, struct bytes body, struct message *message,
                                    struct err *why)
{
    enum scan_verdict verdict = scan_frame(body, &message->scanned, why);

    message->request_id = message->scanned.request_id;
    message->frame = NULL;
    if (verdict != SCAN_OK)
        return verdict == SCAN_REFUSED ? MESSAGE_REFUSED : MESSAGE_BROKEN;

    ProtobufCAllocator allocator = {allocate, release, arena};
    const Awa__V1__ClientFrame *frame =
        awa__v1__client_frame__unpack(&allocator, body.len, body.data);
    if (frame == NULL) {
        err_set(why, CODE_INVALID_ARGUMENT,
                "the request takes more than %zu bytes of memory: send it in smaller parts",
                arena->limit_bytes);
        return MESSAGE_REFUSED;
    }
    if (check_request(frame, why) != CODE_OK)
        return MESSAGE_REFUSED;
    message->frame = frame;
    return MESSAGE_OK;
}

static enum code check_text_fault(const struct message *message, size_t index, struct err *why)
{
    const char *field = scan_fault_at(&message->scanned.faults, index);

    if (field == NULL)
        return CODE_OK;
    return err_set(why, CODE_INVALID_ARGUMENT, "%s: is not UTF-8, or holds a NUL", field);
}

/* Priority, attempts and time; 0 means the default in all three. */
static enum code check_job_numbers(const Awa__V1__NewJob *job, struct err *why)
{
    enum code code = CODE_OK;

    if (job->priority != 0)
        code = check_range("priority", job->priority, PRIORITY_MIN, PRIORITY_MAX, why);
    if (code == CODE_OK)
        code = check_range("max_attempts", job->max_attempts, 0, ATTEMPTS_PER_JOB_MAX, why);
    if (code == CODE_OK)
        code = check_range("run_at_us", job->run_at_us, 0, RUN_AT_US_MAX, why);
    return code;
}

static enum code check_job_texts(const Awa__V1__NewJob *job, struct err *why)
{
    enum code code = check_name("queue", job->queue, why);

    if (code == CODE_OK)
        code = check_name("kind", job->kind, why);
    if (code == CODE_OK)
        code = check_size("ordering_key", strlen(job->ordering_key), NAME_BYTES_MAX, why);
    if (code == CODE_OK)
        code = check_size("traceparent", strlen(job->traceparent), TRACEPARENT_BYTES_MAX, why);
    if (code == CODE_OK)
        code = check_json("args", bytes_of_binary(job->args), ARGS_BYTES_MAX, false, why);
    if (code == CODE_OK)
        code =
            check_json("metadata", bytes_of_binary(job->metadata), METADATA_BYTES_MAX, true, why);
    return code;
}

enum code message_check_job(const struct message *message, size_t index, struct err *why)
{
    CHECK(index < message->frame->enqueue->n_jobs);
    const Awa__V1__NewJob *job = message->frame->enqueue->jobs[index];
    enum code code = check_text_fault(message, index, why);

    if (code == CODE_OK)
        code = check_job_texts(job, why);
    if (code == CODE_OK)
        code = check_job_numbers(job, why);
    return code;
}

static enum code check_error_text(const char *error, struct err *why)
{
    return check_size("error", strlen(error), ERROR_TEXT_BYTES_MAX, why);
}

static enum code check_outcome(const Awa__V1__FinishItem *item, struct err *why)
{
    enum code code = CODE_OK;

    switch (item->outcome_case) {
    case AWA__V1__FINISH_ITEM__OUTCOME_COMPLETE: return CODE_OK;
    case AWA__V1__FINISH_ITEM__OUTCOME_RETRY:
        code = check_range("delay_ms", item->retry->delay_ms, 0, DELAY_MS_MAX, why);
        return code == CODE_OK ? check_error_text(item->retry->error, why) : code;
    case AWA__V1__FINISH_ITEM__OUTCOME_SNOOZE:
        return check_range("delay_ms", item->snooze->delay_ms, 1, DELAY_MS_MAX, why);
    case AWA__V1__FINISH_ITEM__OUTCOME_FAIL: return check_error_text(item->fail->error, why);
    case AWA__V1__FINISH_ITEM__OUTCOME_CANCEL: return check_error_text(item->cancel->error, why);
    case AWA__V1__FINISH_ITEM__OUTCOME__NOT_SET:
    case _AWA__V1__FINISH_ITEM__OUTCOME__CASE_IS_INT_SIZE: break;
    }
    return err_set(why, CODE_INVALID_ARGUMENT, "outcome: is missing, or unknown to this proxy");
}

enum code message_check_item(const struct message *message, size_t index, struct err *why)
{
    CHECK(index < message->frame->finish->n_items);
    const Awa__V1__FinishItem *item = message->frame->finish->items[index];
    enum code code = check_text_fault(message, index, why);

    if (code == CODE_OK && item->receipt.len == 0)
        code = err_set(why, CODE_INVALID_ARGUMENT, "receipt: is missing");
    if (code == CODE_OK)
        code = check_size("receipt", item->receipt.len, RECEIPT_BYTES_MAX, why);
    if (code == CODE_OK)
        code = check_outcome(item, why);
    return code;
}
