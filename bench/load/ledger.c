// ledger.c: see ledger.h.
#include "ledger.h"

#include "link.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ_OFFSET = 8, SEQ_DIGITS = 10, PRINTED_MAX = 10 };

struct job {
    int64_t clock_us;
    int64_t acknowledged_id, claimed_id;
    uint32_t executions, finishes;
};

struct ledger {
    uint32_t count;
    struct job *jobs;
    uint32_t *latencies_us; // in order of execution
    size_t executed;
    int sorted;
    uint64_t violations;
};

static void *zeroed(size_t count, size_t size)
{
    void *memory = count > 0 ? calloc(count, size) : NULL;
    if (memory == NULL)
        die("out of memory");
    return memory;
}

struct ledger *ledger_new(uint32_t jobs)
{
    struct ledger *ledger = zeroed(1, sizeof *ledger);
    ledger->count = jobs;
    ledger->jobs = zeroed(jobs, sizeof *ledger->jobs);
    ledger->latencies_us = zeroed(jobs, sizeof *ledger->latencies_us);
    return ledger;
}

void ledger_free(struct ledger *ledger)
{
    free(ledger->jobs);
    free(ledger->latencies_us);
    free(ledger);
}

__attribute__((format(printf, 2, 3))) static void violation(struct ledger *ledger,
                                                            const char *format, ...)
{
    if (++ledger->violations > PRINTED_MAX)
        return;
    va_list arguments;
    va_start(arguments, format);
    fputs("awa-bench: violation: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

// ---- Args

void ledger_write_args(uint32_t seq, uint8_t args[ARGS_BYTES])
{
    static const char pattern[ARGS_BYTES + 1] = "{\"seq\":\"0000000000\",\"to\":\"somebody@example."
                                                "org\",\"template\":\"welcome\",\"try\":true}";
    memcpy(args, pattern, ARGS_BYTES);
    for (int place = SEQ_OFFSET + SEQ_DIGITS - 1; seq > 0; place--, seq /= 10)
        args[place] = (uint8_t)('0' + seq % 10);
}

// The seq that the args claim to be of; UINT32_MAX when they are not ours.
static uint32_t read_seq(const uint8_t *args, size_t length)
{
    uint8_t expected[ARGS_BYTES];
    uint64_t seq = 0;
    if (length != ARGS_BYTES)
        return UINT32_MAX;
    for (int i = 0; i < SEQ_DIGITS; i++)
        seq = seq * 10 + (uint64_t)(args[SEQ_OFFSET + i] - '0');
    if (seq >= UINT32_MAX)
        return UINT32_MAX;
    ledger_write_args((uint32_t)seq, expected);
    return memcmp(args, expected, ARGS_BYTES) == 0 ? (uint32_t)seq : UINT32_MAX;
}

// ---- Events

void ledger_start_clock(struct ledger *ledger, uint32_t seq, int64_t at_us)
{
    ledger->jobs[seq].clock_us = at_us;
}

void ledger_acknowledge(struct ledger *ledger, uint32_t seq, int64_t id)
{
    if (seq >= ledger->count || ledger->jobs[seq].acknowledged_id != 0)
        violation(ledger, "a result for job %u that was not asked for", seq);
    else
        ledger->jobs[seq].acknowledged_id = id;
}

uint32_t ledger_execute(struct ledger *ledger, const uint8_t *args, size_t length, int64_t id,
                        int64_t since_us, int64_t now_us)
{
    uint32_t seq = read_seq(args, length);
    if (seq >= ledger->count)
        die("job %lld has other args than were enqueued", (long long)id);
    struct job *job = &ledger->jobs[seq];
    if (job->executions++ > 0) {
        violation(ledger, "job %u (id %lld) executed again", seq, (long long)id);
        return seq;
    }
    job->claimed_id = id;
    ledger->latencies_us[ledger->executed++] =
        (uint32_t)(now_us - (since_us != 0 ? since_us : job->clock_us));
    return seq;
}

void ledger_finish(struct ledger *ledger, uint32_t seq, int is_done)
{
    if (is_done)
        ledger->jobs[seq].finishes++;
    else
        violation(ledger, "the finish of job %u was not answered DONE", seq);
}

// ---- Audit

static int compare_ids(const void *left, const void *right)
{
    const int64_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static void audit_ids(struct ledger *ledger)
{
    int64_t *ids = zeroed(ledger->count, sizeof *ids);
    for (uint32_t seq = 0; seq < ledger->count; seq++)
        ids[seq] = ledger->jobs[seq].acknowledged_id;
    qsort(ids, ledger->count, sizeof *ids, compare_ids);
    for (uint32_t i = 1; i < ledger->count; i++)
        if (ids[i] == ids[i - 1])
            violation(ledger, "id %lld was given twice", (long long)ids[i]);
    free(ids);
}

uint64_t ledger_audit(struct ledger *ledger)
{
    for (uint32_t seq = 0; seq < ledger->count; seq++) {
        const struct job *job = &ledger->jobs[seq];
        if (job->acknowledged_id <= 0)
            violation(ledger, "job %u was not acknowledged", seq);
        if (job->executions == 0)
            violation(ledger, "job %u was not executed", seq);
        else if (job->claimed_id != job->acknowledged_id)
            violation(ledger, "job %u was enqueued as %lld and claimed as %lld", seq,
                      (long long)job->acknowledged_id, (long long)job->claimed_id);
        if (job->finishes != 1)
            violation(ledger, "job %u was finished %u times", seq, job->finishes);
    }
    audit_ids(ledger);
    return ledger->violations;
}

static int compare_latencies(const void *left, const void *right)
{
    const uint32_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

double ledger_latency_ms(struct ledger *ledger, double quantile)
{
    if (ledger->executed == 0)
        return 0;
    if (!ledger->sorted)
        qsort(ledger->latencies_us, ledger->executed, sizeof *ledger->latencies_us,
              compare_latencies);
    ledger->sorted = 1;
    return ledger->latencies_us[(size_t)(quantile * (double)(ledger->executed - 1))] / 1000.0;
}
