/* Decoding and judging client frames: one frame of each kind, each limit at and past its edge,
 * hostile bytes, the memory budget, and what is an item's own fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/limits.h"
#include "wire/message.h"

/* One decoded frame; the arena and the copy of the bytes go in teardown. */
struct decoded {
    struct arena arena;
    struct message message;
    struct err why;
    uint8_t *bytes;
};

static struct decoded d;

static enum message_verdict decode_within(const void *data, size_t len, size_t budget_bytes)
{
    arena_free(&d.arena);
    free(d.bytes);
    d.bytes = malloc(len + 1); /* not the caller's memory: nothing may point into it afterwards */
    memcpy(d.bytes, data, len);
    arena_init(&d.arena, budget_bytes);
    memset(&d.why, 0, sizeof d.why);
    return message_decode(&d.arena, bytes_of(d.bytes, len), &d.message, &d.why);
}

static enum message_verdict decode_frame(const Awa__V1__ClientFrame *frame)
{
    size_t len = awa__v1__client_frame__get_packed_size(frame);
    uint8_t *packed = malloc(len + 1);
    awa__v1__client_frame__pack(frame, packed);
    enum message_verdict verdict = decode_within(packed, len, UNPACK_BYTES_MAX);
    free(packed);
    return verdict;
}

static int setup(void **state)
{
    (void)state;
    memset(&d, 0, sizeof d);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_free(&d.arena);
    free(d.bytes);
    return 0;
}

/* A string of len times the same character; the four of them live until the test ends. */
static char *text_of(size_t len, char c)
{
    static char texts[4][ERROR_TEXT_BYTES_MAX + 2];
    static size_t used;
    char *text = texts[used++ % 4];
    memset(text, c, len);
    text[len] = '\0';
    return text;
}

static enum message_verdict decode_hello(void (*change)(Awa__V1__Hello *))
{
    Awa__V1__Hello hello = AWA__V1__HELLO__INIT;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;
    hello.major = 1;
    frame.request_id = 7;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_HELLO;
    frame.hello = &hello;
    change(&hello);
    return decode_frame(&frame);
}

static void hello_at_limits(Awa__V1__Hello *hello)
{
    hello->client_name = text_of(CLIENT_TEXT_BYTES_MAX, 'n');
    hello->worker_name = text_of(NAME_BYTES_MAX, 'w');
}

static void hello_long_language(Awa__V1__Hello *hello)
{
    hello->language = text_of(CLIENT_TEXT_BYTES_MAX + 1, 'l');
}

static void hello_long_worker(Awa__V1__Hello *hello)
{
    hello->worker_name = text_of(NAME_BYTES_MAX + 1, 'w');
}

static void hello_major_2(Awa__V1__Hello *hello)
{
    hello->major = 2;
}

static void hello_bad_text(Awa__V1__Hello *hello)
{
    static char latin1[] = "caf\xe9";
    hello->worker_name = latin1;
}

static void hellos(void **state)
{
    (void)state;
    assert_int_equal(decode_hello(hello_at_limits), MESSAGE_OK);
    assert_int_equal(d.message.request_id, 7);
    assert_int_equal(d.message.frame->request_case, AWA__V1__CLIENT_FRAME__REQUEST_HELLO);
    assert_int_equal(decode_hello(hello_long_language), MESSAGE_REFUSED);
    assert_int_equal(d.message.request_id, 7);
    assert_string_equal(d.why.message, "language: 65 bytes, at most 64");
    assert_int_equal(decode_hello(hello_long_worker), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "worker_name: 201 bytes, at most 200");
    assert_int_equal(decode_hello(hello_major_2), MESSAGE_REFUSED);
    assert_int_equal(d.why.code, CODE_UNIMPLEMENTED);
    assert_int_equal(decode_hello(hello_bad_text), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "Hello.worker_name is not UTF-8, or holds a NUL");
}

static ProtobufCBinaryData some_receipts[HELD_RECEIPTS_MAX + 1];
static Awa__V1__Held some_held = AWA__V1__HELD__INIT;
static uint8_t some_bytes[RECEIPT_BYTES_MAX + 1];

static void hold(Awa__V1__Hello *hello, size_t count, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        some_receipts[i] = (ProtobufCBinaryData){.data = some_bytes, .len = bytes};
    some_held.n_receipts = count;
    some_held.receipts = some_receipts;
    hello->held = &some_held;
}

static void hello_resumes(Awa__V1__Hello *hello)
{
    hello->session_id = (ProtobufCBinaryData){.data = some_bytes, .len = SESSION_ID_BYTES};
    hold(hello, HELD_RECEIPTS_MAX, RECEIPT_BYTES_MAX);
}

static void hello_short_id(Awa__V1__Hello *hello)
{
    hello->session_id = (ProtobufCBinaryData){.data = some_bytes, .len = SESSION_ID_BYTES - 1};
}

static void hello_holds_too_many(Awa__V1__Hello *hello)
{
    hold(hello, HELD_RECEIPTS_MAX + 1, 1);
}

static void hello_holds_a_long_one(Awa__V1__Hello *hello)
{
    hold(hello, 2, RECEIPT_BYTES_MAX + 1);
}

static void hellos_that_resume(void **state)
{
    (void)state;
    assert_int_equal(decode_hello(hello_resumes), MESSAGE_OK);
    assert_int_equal(d.message.frame->hello->held->n_receipts, HELD_RECEIPTS_MAX);
    assert_int_equal(decode_hello(hello_short_id), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "session_id: 15 bytes, must be 16 or none");
    assert_int_equal(decode_hello(hello_holds_too_many), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "Held.receipts: more than 8192");
    assert_int_equal(decode_hello(hello_holds_a_long_one), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "receipt: 65 bytes, at most 64");
}

static enum message_verdict decode_heartbeat(size_t count, size_t receipt_bytes)
{
    static Awa__V1__HeartbeatItem item;
    static Awa__V1__HeartbeatItem *items[ITEMS_PER_FINISH_MAX + 1];
    Awa__V1__Heartbeat heartbeat = AWA__V1__HEARTBEAT__INIT;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;

    awa__v1__heartbeat_item__init(&item);
    item.receipt = (ProtobufCBinaryData){.data = some_bytes, .len = receipt_bytes};
    for (size_t i = 0; i < count; i++)
        items[i] = &item;
    heartbeat.n_items = count;
    heartbeat.items = items;
    frame.request_id = 1;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_HEARTBEAT;
    frame.heartbeat = &heartbeat;
    return decode_frame(&frame);
}

static void heartbeats_and_cancels(void **state)
{
    (void)state;
    static const uint8_t cancel[] = {0x08, 1, 0x5a, 2, 0x08, 7};

    assert_int_equal(decode_heartbeat(ITEMS_PER_FINISH_MAX, RECEIPT_BYTES_MAX), MESSAGE_OK);
    assert_int_equal(decode_heartbeat(0, 1), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "items: 0, must be 1 to 1000");
    assert_int_equal(decode_heartbeat(ITEMS_PER_FINISH_MAX + 1, 1), MESSAGE_REFUSED);
    assert_int_equal(decode_heartbeat(1, RECEIPT_BYTES_MAX + 1), MESSAGE_REFUSED);
    assert_int_equal(decode_within(cancel, sizeof cancel, UNPACK_BYTES_MAX), MESSAGE_OK);
    assert_int_equal(d.message.frame->cancel_request->request_id, 7);
}

static enum message_verdict decode_keyed(char *key)
{
    Awa__V1__NewJob job = AWA__V1__NEW_JOB__INIT;
    Awa__V1__NewJob *jobs[] = {&job};
    Awa__V1__Enqueue enqueue = AWA__V1__ENQUEUE__INIT;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;

    enqueue.n_jobs = 1;
    enqueue.jobs = jobs;
    enqueue.idempotency_key = key;
    frame.request_id = 7;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_ENQUEUE;
    frame.enqueue = &enqueue;
    return decode_frame(&frame);
}

static void idempotency_keys(void **state)
{
    (void)state;
    static char latin1[] = "caf\xe9";

    assert_int_equal(decode_keyed(text_of(IDEMPOTENCY_KEY_BYTES_MAX, 'k')), MESSAGE_OK);
    assert_int_equal(strlen(d.message.frame->enqueue->idempotency_key), IDEMPOTENCY_KEY_BYTES_MAX);
    assert_int_equal(decode_keyed(text_of(IDEMPOTENCY_KEY_BYTES_MAX + 1, 'k')), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "idempotency_key: 201 bytes, at most 200");
    assert_int_equal(decode_keyed(latin1), MESSAGE_REFUSED); /* the request, not one job */
    assert_string_equal(d.why.message, "Enqueue.idempotency_key is not UTF-8, or holds a NUL");
}

static void golden_bytes(void **state)
{
    (void)state;
    static const uint8_t ping[] = {0x08, 0x96, 0x01, 0x1a, 0x00};
    static const uint8_t claim[] = {0x08, 1, 0x32, 9,    0x0a, 1,   'q',
                                    0x10, 8, 0x18, 0xe0, 0xd4, 0x03};

    assert_int_equal(decode_within(ping, sizeof ping, UNPACK_BYTES_MAX), MESSAGE_OK);
    assert_int_equal(d.message.request_id, 150);
    assert_int_equal(decode_within(claim, sizeof claim, UNPACK_BYTES_MAX), MESSAGE_OK);
    assert_string_equal(d.message.frame->claim->queues[0], "q");
    assert_int_equal(d.message.frame->claim->max_jobs, 8);
    assert_int_equal(d.message.frame->claim->wait_ms, 60000);
    for (size_t len = 0; len < sizeof claim;
         len++) /* each cut is refused, some still under the id */
        assert_int_not_equal(decode_within(claim, len, UNPACK_BYTES_MAX), MESSAGE_OK);
}

static void broken_frames(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
    } frames[] = {
        {"", 0},                             /* no request_id */
        {"\x1a\x00", 2},                     /* ping without request_id */
        {"\x08\x00\x1a\x00", 4},             /* request_id 0 */
        {"\x08\x01\x1a\x05", 4},             /* longer than the frame */
        {"\x08\x01\x1a\x00\x22\x00", 6},     /* ping and goodbye */
        {"\x0a\x01\x01\x08\x01\x1a\x00", 7}, /* request_id with the wrong wire type */
        {"\x08\x01\x18\x00", 4},             /* ping as a varint */
        {"\x08\x01\x1a\x00\x63\x64", 6},     /* a group */
        {"\x08\x01\x00\x00", 4},             /* field 0 */
        {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12}, /* varint of eleven bytes */
        {"\x08\x01\x32\x04\x0a\x7f"
         "ab",
         8},                                              /* nested length beyond its message */
        {"\x08\x01\x32\x02\x08\x01", 6},                  /* queues as a varint */
        {"\x08\x01\x1a\x00\x82\x80\x80\x80\x10\x00", 10}, /* a key of 33 bits */
    };

    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
        if (decode_within(frames[i].bytes, frames[i].len, UNPACK_BYTES_MAX) != MESSAGE_BROKEN)
            fail_msg("frame %zu: not broken", i);
        assert_int_equal(d.why.code, CODE_INVALID_ARGUMENT);
        assert_int_equal(d.arena.used_bytes, 0);
    }
}

static void unknown_requests_and_fields(void **state)
{
    (void)state;
    assert_int_equal(decode_within("\x08\x05\x82\x06\x00", 5, UNPACK_BYTES_MAX), MESSAGE_REFUSED);
    assert_int_equal(d.message.request_id, 5);
    assert_int_equal(d.why.code, CODE_UNIMPLEMENTED);
    assert_string_equal(d.why.message, "this proxy does not know request 96 of ClientFrame");

    assert_int_equal(decode_within("\x08\x05", 2, UNPACK_BYTES_MAX), MESSAGE_REFUSED);
    assert_int_equal(d.why.code, CODE_INVALID_ARGUMENT);

    /* Ping with an unknown field inside, and one beside it. */
    static const uint8_t newer[] = {0x08, 5, 0x1a, 2, 0x50, 1, 0x82, 0x06, 1, 'x'};
    assert_int_equal(decode_within(newer, sizeof newer, UNPACK_BYTES_MAX), MESSAGE_OK);
}

static enum message_verdict decode_claim(size_t queues, const char *last, uint32_t max_jobs,
                                         uint32_t wait_ms)
{
    Awa__V1__Claim claim = AWA__V1__CLAIM__INIT;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;
    char *names[CLAIM_QUEUES_MAX + 1];

    for (size_t i = 0; i < queues; i++)
        names[i] = text_of(NAME_BYTES_MAX, 'q');
    if (queues > 0 && last != NULL)
        names[queues - 1] = (char *)(uintptr_t)last;
    claim.n_queues = queues;
    claim.queues = names;
    claim.max_jobs = max_jobs;
    claim.wait_ms = wait_ms;
    frame.request_id = 1;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_CLAIM;
    frame.claim = &claim;
    return decode_frame(&frame);
}

static void claims(void **state)
{
    (void)state;
    assert_int_equal(decode_claim(CLAIM_QUEUES_MAX, NULL, CLAIM_JOBS_MAX, CLAIM_WAIT_MS_MAX),
                     MESSAGE_OK);
    assert_int_equal(decode_claim(1, "aZ09_.:/-", 1, 0), MESSAGE_OK);
    assert_int_equal(decode_claim(0, NULL, 1, 0), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "queues: 0, must be 1 to 16");
    assert_int_equal(decode_claim(CLAIM_QUEUES_MAX + 1, NULL, 1, 0), MESSAGE_REFUSED);
    assert_int_equal(decode_claim(1, NULL, 0, 0), MESSAGE_REFUSED);
    assert_int_equal(decode_claim(1, NULL, CLAIM_JOBS_MAX + 1, 0), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "max_jobs: 513, must be 1 to 512");
    assert_int_equal(decode_claim(1, NULL, 1, CLAIM_WAIT_MS_MAX + 1), MESSAGE_REFUSED);
    assert_int_equal(decode_claim(2, "", 1, 0), MESSAGE_REFUSED);
    assert_int_equal(decode_claim(2, "a b", 1, 0), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "queues: only A-Z a-z 0-9 and _ . : / - are allowed");
    assert_int_equal(decode_claim(2, text_of(NAME_BYTES_MAX + 1, 'q'), 1, 0), MESSAGE_REFUSED);
    assert_int_equal(decode_claim(2, "caf\xe9", 1, 0), MESSAGE_REFUSED);
}

static Awa__V1__NewJob good_job(void)
{
    static char queue[] = "mail";
    static char kind[] = "send";
    static uint8_t args[] = "{\"to\":1}";
    Awa__V1__NewJob job = AWA__V1__NEW_JOB__INIT;
    job.queue = queue;
    job.kind = kind;
    job.args = (ProtobufCBinaryData){sizeof args - 1, args};
    return job;
}

static enum message_verdict decode_jobs(Awa__V1__NewJob *jobs, size_t count)
{
    Awa__V1__Enqueue enqueue = AWA__V1__ENQUEUE__INIT;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;
    Awa__V1__NewJob **list = malloc((count + 1) * sizeof *list);

    for (size_t i = 0; i < count; i++)
        list[i] = &jobs[i];
    enqueue.n_jobs = count;
    enqueue.jobs = list;
    frame.request_id = 1;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_ENQUEUE;
    frame.enqueue = &enqueue;
    enum message_verdict verdict = decode_frame(&frame);
    free(list);
    return verdict;
}

static void enqueue_counts(void **state)
{
    (void)state;
    Awa__V1__NewJob *jobs = malloc((JOBS_PER_ENQUEUE_MAX + 1) * sizeof *jobs);

    for (size_t i = 0; i <= JOBS_PER_ENQUEUE_MAX; i++)
        jobs[i] = good_job();
    assert_int_equal(decode_jobs(jobs, 0), MESSAGE_REFUSED);
    assert_int_equal(decode_jobs(jobs, JOBS_PER_ENQUEUE_MAX), MESSAGE_OK);
    for (size_t i = 0; i < JOBS_PER_ENQUEUE_MAX; i++)
        assert_int_equal(message_check_job(&d.message, i, &d.why), CODE_OK);
    assert_int_equal(decode_jobs(jobs, JOBS_PER_ENQUEUE_MAX + 1), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "Enqueue.jobs: more than 1000");
    assert_int_equal(d.arena.used_bytes, 0); /* refused before anything was unpacked */
    free(jobs);
}

/* The job is refused, alone: its neighbours on both sides are not. */
static void expect_job_refused(const Awa__V1__NewJob *bad, const char *message)
{
    Awa__V1__NewJob jobs[3] = {good_job(), *bad, good_job()};

    assert_int_equal(decode_jobs(jobs, 3), MESSAGE_OK);
    assert_int_equal(message_check_job(&d.message, 0, &d.why), CODE_OK);
    assert_int_equal(message_check_job(&d.message, 2, &d.why), CODE_OK);
    assert_int_equal(message_check_job(&d.message, 1, &d.why), CODE_INVALID_ARGUMENT);
    assert_string_equal(d.why.message, message);
    assert_false(d.why.retryable);
}

static void bad_job_texts(void **state)
{
    (void)state;
    static char empty[] = "";
    static char latin1[] = "\xe9";
    Awa__V1__NewJob job = good_job();

    job.queue = empty;
    expect_job_refused(&job, "queue: is missing");
    job = good_job();
    job.kind = text_of(NAME_BYTES_MAX + 1, 'k');
    expect_job_refused(&job, "kind: 201 bytes, at most 200");
    job = good_job();
    job.ordering_key = text_of(NAME_BYTES_MAX + 1, 'o');
    expect_job_refused(&job, "ordering_key: 201 bytes, at most 200");
    job = good_job();
    job.traceparent = text_of(TRACEPARENT_BYTES_MAX + 1, '0');
    expect_job_refused(&job, "traceparent: 129 bytes, at most 128");
    job = good_job();
    job.ordering_key = latin1;
    expect_job_refused(&job, "ordering_key: is not UTF-8, or holds a NUL");
    job = good_job();
    job.queue = latin1;
    expect_job_refused(&job, "queue: is not UTF-8, or holds a NUL");
    job = good_job();
    job.traceparent = latin1;
    expect_job_refused(&job, "traceparent: is not UTF-8, or holds a NUL");
}

static void bad_job_numbers(void **state)
{
    (void)state;
    Awa__V1__NewJob job = good_job();

    job.priority = PRIORITY_MAX + 1;
    expect_job_refused(&job, "priority: 5, must be 1 to 4");
    job = good_job();
    job.max_attempts = ATTEMPTS_PER_JOB_MAX + 1;
    expect_job_refused(&job, "max_attempts: 1001, must be 0 to 1000");
    job = good_job();
    job.run_at_us = -1;
    expect_job_refused(&job, "run_at_us: -1, must be 0 to 253402300799000000");
    job.run_at_us = INT64_MAX;
    expect_job_refused(&job, "run_at_us: 9223372036854775807, must be 0 to 253402300799000000");
}

static ProtobufCBinaryData binary(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

static void bad_job_json(void **state)
{
    (void)state;
    Awa__V1__NewJob job = good_job();

    job.args = binary("{\"a\":}");
    expect_job_refused(&job, "args: is no JSON text, see byte 5");
    job.args = binary("\"\xff\"");
    expect_job_refused(&job, "args: is not UTF-8, or holds a NUL");
    job.args = binary(text_of(JSON_DEPTH_MAX + 1, '['));
    expect_job_refused(&job, "args: nested more than 64 deep at byte 64");
    job = good_job();
    job.metadata = binary("[]");
    expect_job_refused(&job, "metadata: is no JSON object");
}

/* {"":"xxx…"} of exactly len bytes. */
static ProtobufCBinaryData object_of(size_t len)
{
    uint8_t *text = malloc(len);
    memset(text, 'x', len);
    memcpy(text, "{\"\":\"", 5);
    memcpy(text + len - 2, "\"}", 2);
    return (ProtobufCBinaryData){len, text};
}

static void sizes_of_args_and_metadata(void **state)
{
    (void)state;
    Awa__V1__NewJob job = good_job();
    Awa__V1__NewJob fits = good_job();

    fits.args = object_of(ARGS_BYTES_MAX);
    fits.metadata = object_of(METADATA_BYTES_MAX);
    assert_int_equal(decode_jobs(&fits, 1), MESSAGE_OK);
    assert_int_equal(message_check_job(&d.message, 0, &d.why), CODE_OK);
    assert_int_equal(d.message.frame->enqueue->jobs[0]->args.len, ARGS_BYTES_MAX);
    job.args = object_of(ARGS_BYTES_MAX + 1);
    expect_job_refused(&job, "args: 1048577 bytes, at most 1048576");
    free(job.args.data);
    job = good_job();
    job.metadata = object_of(METADATA_BYTES_MAX + 1);
    expect_job_refused(&job, "metadata: 16385 bytes, at most 16384");
    free(job.metadata.data);
    free(fits.args.data);
    free(fits.metadata.data);
}

static void nul_in_a_string_is_its_items_fault(void **state)
{
    (void)state;
    static const uint8_t frame[] = {
        0x08, 1, 0x2a, 25,                       /* Enqueue */
        0x0a, 6, 0x0a, 1,  'q', 0x12, 1, 'k',    /* a good job */
        0x0a, 7, 0x0a, 1,  'q', 0x12, 2, 'k', 0, /* a kind with a NUL */
        0x0a, 6, 0x0a, 1,  'q', 0x12, 1, 'k',
    };

    assert_int_equal(decode_within(frame, sizeof frame, UNPACK_BYTES_MAX), MESSAGE_OK);
    assert_int_equal(message_check_job(&d.message, 0, &d.why), CODE_OK);
    assert_int_equal(message_check_job(&d.message, 1, &d.why), CODE_INVALID_ARGUMENT);
    assert_string_equal(d.why.message, "kind: is not UTF-8, or holds a NUL");
    assert_int_equal(message_check_job(&d.message, 2, &d.why), CODE_OK);
}

static enum code finish_item(Awa__V1__FinishItem *item)
{
    Awa__V1__Finish finish = AWA__V1__FINISH__INIT;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;

    finish.n_items = 1;
    finish.items = &item;
    frame.request_id = 1;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_FINISH;
    frame.finish = &finish;
    assert_int_equal(decode_frame(&frame), MESSAGE_OK);
    return message_check_item(&d.message, 0, &d.why);
}

static void outcomes(void **state)
{
    (void)state;
    static char latin1[] = "\xe9";
    Awa__V1__Retry retry = AWA__V1__RETRY__INIT;
    Awa__V1__Snooze snooze = AWA__V1__SNOOZE__INIT;
    Awa__V1__Fail fail = AWA__V1__FAIL__INIT;
    Awa__V1__Cancel cancel = AWA__V1__CANCEL__INIT;
    Awa__V1__FinishItem item = AWA__V1__FINISH_ITEM__INIT;

    item.receipt = binary(text_of(RECEIPT_BYTES_MAX, 'r'));
    assert_int_equal(finish_item(&item), CODE_INVALID_ARGUMENT);
    assert_string_equal(d.why.message, "outcome: is missing, or unknown to this proxy");

    item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_RETRY;
    item.retry = &retry;
    assert_int_equal(finish_item(&item), CODE_OK);
    retry.delay_ms = DELAY_MS_MAX;
    retry.error = text_of(ERROR_TEXT_BYTES_MAX, 'e');
    assert_int_equal(finish_item(&item), CODE_OK);
    retry.delay_ms = DELAY_MS_MAX + 1;
    assert_int_equal(finish_item(&item), CODE_INVALID_ARGUMENT);

    item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_SNOOZE;
    item.snooze = &snooze;
    assert_int_equal(finish_item(&item), CODE_INVALID_ARGUMENT);
    assert_string_equal(d.why.message, "delay_ms: 0, must be 1 to 2592000000");
    snooze.delay_ms = 1;
    assert_int_equal(finish_item(&item), CODE_OK);

    item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_FAIL;
    item.fail = &fail;
    fail.error = text_of(ERROR_TEXT_BYTES_MAX + 1, 'e');
    assert_int_equal(finish_item(&item), CODE_INVALID_ARGUMENT);
    assert_string_equal(d.why.message, "error: 4097 bytes, at most 4096");
    item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_CANCEL;
    item.cancel = &cancel;
    assert_int_equal(finish_item(&item), CODE_OK);
    cancel.error = fail.error;
    assert_int_equal(finish_item(&item), CODE_INVALID_ARGUMENT);
    cancel.error = latin1;
    assert_int_equal(finish_item(&item), CODE_INVALID_ARGUMENT);
    assert_string_equal(d.why.message, "error: is not UTF-8, or holds a NUL");
}

static void receipts(void **state)
{
    (void)state;
    Awa__V1__Complete complete = AWA__V1__COMPLETE__INIT;
    Awa__V1__FinishItem item = AWA__V1__FINISH_ITEM__INIT;

    item.outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_COMPLETE;
    item.complete = &complete;
    assert_int_equal(finish_item(&item), CODE_INVALID_ARGUMENT);
    item.receipt = binary(text_of(RECEIPT_BYTES_MAX, 'r'));
    assert_int_equal(finish_item(&item), CODE_OK);
    item.receipt = binary(text_of(RECEIPT_BYTES_MAX + 1, 'r'));
    assert_int_equal(finish_item(&item), CODE_INVALID_ARGUMENT);
}

static void requests_without_items(void **state)
{
    (void)state;
    assert_int_equal(decode_within("\x08\x01\x2a\x00", 4, UNPACK_BYTES_MAX), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "jobs: 0, must be 1 to 1000");
    assert_int_equal(decode_within("\x08\x01\x3a\x00", 4, UNPACK_BYTES_MAX), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "items: 0, must be 1 to 1000");
    assert_int_equal(decode_within("\x08\x01\x42\x00", 4, UNPACK_BYTES_MAX), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "receipts: 0, must be 1 to 1000");
    assert_int_equal(decode_within("\x08\x01\x4a\x00", 4, UNPACK_BYTES_MAX), MESSAGE_REFUSED);
    assert_string_equal(d.why.message, "queue: is missing");
}

static void memory_is_budgeted(void **state)
{
    (void)state;
    /* A thousand jobs of two bytes each: small on the wire, large unpacked. */
    uint8_t frame[2 + 3 + 2 * JOBS_PER_ENQUEUE_MAX] = {0x08, 3, 0x2a, 0xd0, 0x0f};
    enum { ENOUGH = 1024 * 1024 };

    for (size_t i = 5; i < sizeof frame; i += 2)
        frame[i] = 0x0a;
    assert_int_equal(decode_within(frame, sizeof frame, ENOUGH), MESSAGE_OK);
    assert_true(d.arena.used_bytes > sizeof frame);
    size_t needed_bytes = d.arena.used_bytes;
    for (size_t budget = 0; budget < needed_bytes; budget += 997) {
        assert_int_equal(decode_within(frame, sizeof frame, budget), MESSAGE_REFUSED);
        assert_int_equal(d.message.request_id, 3);
        assert_true(d.arena.used_bytes <= budget);
    }
    assert_int_equal(decode_within(frame, sizeof frame, needed_bytes), MESSAGE_OK);
}

static void fields_are_counted(void **state)
{
    (void)state;
    size_t len = 2 + 5 + 2 * 40000;
    uint8_t *frame = malloc(len);
    static const uint8_t head[] = {0x08, 3, 0x1a, 0x80, 0xf1, 0x04, 0x00};

    memcpy(frame, head, 6); /* Ping of 80,000 bytes of unknown fields */
    for (size_t i = 6; i + 1 < len; i += 2)
        memcpy(frame + i, "\x50\x01", 2);
    assert_int_equal(decode_within(frame, 6 + 80000, UNPACK_BYTES_MAX), MESSAGE_REFUSED);
    assert_int_equal(d.message.request_id, 3);
    assert_string_equal(d.why.message, "the frame has more than 32000 fields");
    free(frame);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(hellos),
        TEST(hellos_that_resume),
        TEST(heartbeats_and_cancels),
        TEST(idempotency_keys),
        TEST(golden_bytes),
        TEST(broken_frames),
        TEST(unknown_requests_and_fields),
        TEST(claims),
        TEST(enqueue_counts),
        TEST(bad_job_texts),
        TEST(bad_job_numbers),
        TEST(bad_job_json),
        TEST(sizes_of_args_and_metadata),
        TEST(nul_in_a_string_is_its_items_fault),
        TEST(outcomes),
        TEST(receipts),
        TEST(requests_without_items),
        TEST(memory_is_budgeted),
        TEST(fields_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
