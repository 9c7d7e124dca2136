// jobs.c: claim, finish and release by hand, and how jobs, receipts and
// outcomes look on the wire (the worker uses that too).
#include "internal.h"

#include <stdlib.h>
#include <string.h>

// Of the UTF-8 character at `at`; 0: there is none.
static size_t character_bytes(const uint8_t *at)
{
    static const struct {
        uint8_t first, last, second_min, second_max, bytes;
    } forms[] = {
        {0x01, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
        {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
        {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    size_t form = 0;
    while (form < sizeof forms / sizeof forms[0] && at[0] > forms[form].last)
        form++;
    if (form == sizeof forms / sizeof forms[0] || at[0] < forms[form].first)
        return 0;
    size_t bytes = forms[form].bytes;
    if (bytes > 1 && (at[1] < forms[form].second_min || at[1] > forms[form].second_max))
        return 0;
    for (size_t i = 2; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return bytes;
}

// The proxy takes UTF-8 only: what is none becomes '?', and no character is cut in two.
static void copy_text(char *out, size_t room, const char *text)
{
    while (*text != '\0') {
        size_t bytes = character_bytes((const uint8_t *)text);
        size_t kept = bytes > 0 ? bytes : 1;
        if (kept >= room)
            break;
        memcpy(out, bytes > 0 ? text : "?", kept);
        text += kept;
        out += kept;
        room -= kept;
    }
    *out = '\0';
}

static struct awa_outcome outcome(enum awa_outcome_kind kind, int64_t delay_ms, const char *error)
{
    struct awa_outcome made = {.kind = kind, .delay_ms = delay_ms};
    copy_text(made.error, sizeof made.error, error != NULL ? error : "");
    return made;
}

struct awa_outcome awa_complete(void)
{
    return outcome(AWA_OUTCOME_COMPLETE, 0, NULL);
}

struct awa_outcome awa_retry(int64_t delay_ms, const char *error)
{
    return outcome(AWA_OUTCOME_RETRY, delay_ms, error);
}

struct awa_outcome awa_snooze(int64_t delay_ms)
{
    return outcome(AWA_OUTCOME_SNOOZE, delay_ms, NULL);
}

struct awa_outcome awa_fail(const char *error)
{
    return outcome(AWA_OUTCOME_FAIL, 0, error);
}

struct awa_outcome awa_cancel(const char *error)
{
    return outcome(AWA_OUTCOME_CANCEL, 0, error);
}

// ---- Claim

// Appends `length` bytes and a NUL at *free_space, and moves it on.
static const char *keep(char **free_space, const void *bytes, size_t length)
{
    char *kept = *free_space;
    if (length > 0)
        memcpy(kept, bytes, length);
    kept[length] = '\0';
    *free_space += length + 1;
    return kept;
}

enum awa_code awai_job_from_wire(const Awa__V1__Job *wire, struct awa_job **out,
                                 struct awa_error *error)
{
    size_t receipt_bytes = wire->receipt.len;
    if (receipt_bytes == 0 || receipt_bytes > sizeof(*out)->receipt.bytes)
        return awai_fail(error, AWA_INTERNAL, "the proxy sent a job with a receipt of %zu bytes",
                         receipt_bytes);
    size_t text_bytes = strlen(wire->queue) + strlen(wire->kind) + strlen(wire->traceparent) +
                        wire->args.len + wire->metadata.len + 5;
    struct awai_job *made = malloc(sizeof *made + text_bytes);
    if (made == NULL)
        return awai_out_of_memory(error);
    char *space = (char *)(made + 1);
    struct awa_job *job = &made->job; // the first member, so freeing it frees all
    atomic_init(&made->lost, false);
    *job = (struct awa_job){
        .id = wire->job_id,
        .priority = wire->priority,
        .attempt = wire->attempt,
        .max_attempts = wire->max_attempts,
        .created_at_us = wire->created_at_us,
        .receipt.length_bytes = (uint8_t)receipt_bytes,
    };
    memcpy(job->receipt.bytes, wire->receipt.data, receipt_bytes);
    job->queue = keep(&space, wire->queue, strlen(wire->queue));
    job->kind = keep(&space, wire->kind, strlen(wire->kind));
    job->args = keep(&space, wire->args.data, wire->args.len);
    job->metadata = keep(&space, wire->metadata.data, wire->metadata.len);
    job->traceparent = keep(&space, wire->traceparent, strlen(wire->traceparent));
    *out = job;
    return AWA_OK;
}

bool awa_job_lost(const struct awa_job *job)
{
    return atomic_load(&((const struct awai_job *)job)->lost);
}

void awa_jobs_free(struct awa_job **jobs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(jobs[i]);
    free(jobs);
}

static enum awa_code jobs_from_wire(const Awa__V1__ClaimOk *ok, struct awa_job ***jobs,
                                    size_t *count, struct awa_error *error)
{
    *jobs = calloc(ok->n_jobs + 1, sizeof **jobs);
    if (*jobs == NULL)
        return awai_out_of_memory(error);
    for (*count = 0; *count < ok->n_jobs; (*count)++) {
        enum awa_code code = awai_job_from_wire(ok->jobs[*count], &(*jobs)[*count], error);
        if (code != AWA_OK) {
            awa_jobs_free(*jobs, *count);
            return code;
        }
    }
    return AWA_OK;
}

enum awa_code awa_claim(awa_connection *connection, const struct awa_claim *claim,
                        struct awa_job ***jobs, size_t *count, struct awa_error *error)
{
    Awa__V1__Claim wire = AWA__V1__CLAIM__INIT;
    wire.n_queues = claim->queue_count;
    wire.queues = (char **)claim->queues;
    wire.max_jobs = claim->max_jobs;
    wire.wait_ms = claim->wait_ms;
    Awa__V1__ServerFrame *answer;
    enum awa_code code = awai_call(connection, AWA__V1__CLIENT_FRAME__REQUEST_CLAIM, &wire,
                                   claim->wait_ms, &answer, error);
    if (code != AWA_OK)
        return code;
    code = jobs_from_wire(answer->claim_ok, jobs, count, error);
    if (code != AWA_OK) // nobody knows of them: with their session they go to others
        awai_stream_close(&connection->stream);
    awa__v1__server_frame__free_unpacked(answer, NULL);
    return code;
}

// ---- Finish and release

ProtobufCBinaryData awai_receipt_to_wire(const struct awa_receipt *receipt)
{
    return (ProtobufCBinaryData){
        .len = receipt->length_bytes,
        .data = (uint8_t *)receipt->bytes,
    };
}

bool awai_receipt_is(const struct awa_receipt *receipt, ProtobufCBinaryData wire)
{
    return receipt->length_bytes == wire.len &&
           (wire.len == 0 || memcmp(receipt->bytes, wire.data, wire.len) == 0);
}

void awai_finish_to_wire(struct awai_wire_finish *wire, const struct awa_receipt *receipt,
                         const struct awa_outcome *how)
{
    awa__v1__finish_item__init(&wire->item);
    wire->item.receipt = awai_receipt_to_wire(receipt);
    char *error = (char *)how->error;
    switch (how->kind) {
    case AWA_OUTCOME_COMPLETE:
        wire->item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_COMPLETE;
        awa__v1__complete__init(&wire->outcome.complete);
        break;
    case AWA_OUTCOME_RETRY:
        wire->item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_RETRY;
        awa__v1__retry__init(&wire->outcome.retry);
        wire->outcome.retry.delay_ms = how->delay_ms;
        wire->outcome.retry.error = error;
        break;
    case AWA_OUTCOME_SNOOZE:
        wire->item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_SNOOZE;
        awa__v1__snooze__init(&wire->outcome.snooze);
        wire->outcome.snooze.delay_ms = how->delay_ms;
        break;
    case AWA_OUTCOME_FAIL:
        wire->item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_FAIL;
        awa__v1__fail__init(&wire->outcome.fail);
        wire->outcome.fail.error = error;
        break;
    case AWA_OUTCOME_CANCEL:
        wire->item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_CANCEL;
        awa__v1__cancel__init(&wire->outcome.cancel);
        wire->outcome.cancel.error = error;
        break;
    }
    wire->item.complete = &wire->outcome.complete; // all members of both unions begin alike
}

static enum awa_code take_results(const Awa__V1__FinishOk *ok, size_t count,
                                  struct awa_finish_result *results, struct awa_error *error)
{
    if (ok->n_results != count)
        return awai_fail(error, AWA_INTERNAL, "the proxy answered %zu of %zu items", ok->n_results,
                         count);
    for (size_t i = 0; i < count; i++) {
        results[i] =
            (struct awa_finish_result){.status = (enum awa_finish_status)ok->results[i]->status};
        if (ok->results[i]->error != NULL)
            awai_fail_from_wire(&results[i].error, ok->results[i]->error);
    }
    return AWA_OK;
}

enum awa_code awa_finish(awa_connection *connection, const struct awa_finish *items, size_t count,
                         struct awa_finish_result *results, struct awa_error *error)
{
    struct awai_wire_finish *wire = calloc(count, sizeof *wire + sizeof(Awa__V1__FinishItem *));
    if (wire == NULL)
        return awai_out_of_memory(error);
    Awa__V1__Finish finish = AWA__V1__FINISH__INIT;
    finish.n_items = count;
    finish.items = (Awa__V1__FinishItem **)(wire + count);
    for (size_t i = 0; i < count; i++) {
        awai_finish_to_wire(&wire[i], &items[i].receipt, &items[i].outcome);
        finish.items[i] = &wire[i].item;
    }
    Awa__V1__ServerFrame *answer;
    enum awa_code code =
        awai_call(connection, AWA__V1__CLIENT_FRAME__REQUEST_FINISH, &finish, 0, &answer, error);
    free(wire);
    if (code != AWA_OK)
        return code;
    code = take_results(answer->finish_ok, count, results, error);
    awa__v1__server_frame__free_unpacked(answer, NULL);
    return code;
}

enum awa_code awa_release(awa_connection *connection, const struct awa_receipt *receipts,
                          size_t count, struct awa_finish_result *results, struct awa_error *error)
{
    ProtobufCBinaryData *wire = calloc(count, sizeof *wire);
    if (wire == NULL)
        return awai_out_of_memory(error);
    for (size_t i = 0; i < count; i++)
        wire[i] = awai_receipt_to_wire(&receipts[i]);
    Awa__V1__Release release = AWA__V1__RELEASE__INIT;
    release.n_receipts = count;
    release.receipts = wire;
    Awa__V1__ServerFrame *answer;
    enum awa_code code =
        awai_call(connection, AWA__V1__CLIENT_FRAME__REQUEST_RELEASE, &release, 0, &answer, error);
    free(wire);
    if (code != AWA_OK)
        return code;
    code = take_results(answer->release_ok, count, results, error);
    awa__v1__server_frame__free_unpacked(answer, NULL);
    return code;
}

// ---- Heartbeat

static enum awa_code take_statuses(const Awa__V1__HeartbeatOk *ok, size_t count, bool *lost,
                                   struct awa_error *error)
{
    if (ok->n_statuses != count)
        return awai_fail(error, AWA_INTERNAL, "the proxy answered %zu of %zu receipts",
                         ok->n_statuses, count);
    for (size_t i = 0; i < count; i++)
        lost[i] = ok->statuses[i] != AWA__V1__HEARTBEAT_STATUS__HEARTBEAT_OK;
    return AWA_OK;
}

struct wire_heartbeat {
    Awa__V1__Heartbeat heartbeat; // first: it stands for all
    Awa__V1__HeartbeatItem items[];
};

Awa__V1__Heartbeat *awai_heartbeat_to_wire(const struct awa_receipt *receipts, size_t count)
{
    struct wire_heartbeat *wire = calloc(
        1, sizeof *wire + count * (sizeof wire->items[0] + sizeof(Awa__V1__HeartbeatItem *)));
    if (wire == NULL)
        return NULL;
    awa__v1__heartbeat__init(&wire->heartbeat);
    wire->heartbeat.n_items = count;
    wire->heartbeat.items = (Awa__V1__HeartbeatItem **)(wire->items + count);
    for (size_t i = 0; i < count; i++) {
        awa__v1__heartbeat_item__init(&wire->items[i]);
        wire->items[i].receipt = awai_receipt_to_wire(&receipts[i]);
        wire->heartbeat.items[i] = &wire->items[i];
    }
    return &wire->heartbeat;
}

enum awa_code awa_heartbeat(awa_connection *connection, const struct awa_receipt *receipts,
                            size_t count, bool *lost, struct awa_error *error)
{
    Awa__V1__Heartbeat *heartbeat = awai_heartbeat_to_wire(receipts, count);
    if (heartbeat == NULL)
        return awai_out_of_memory(error);
    Awa__V1__ServerFrame *answer;
    enum awa_code code = awai_call(connection, AWA__V1__CLIENT_FRAME__REQUEST_HEARTBEAT, heartbeat,
                                   0, &answer, error);
    free(heartbeat);
    if (code != AWA_OK)
        return code;
    code = take_statuses(answer->heartbeat_ok, count, lost, error);
    awa__v1__server_frame__free_unpacked(answer, NULL);
    return code;
}
