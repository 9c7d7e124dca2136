/* job: plain structs for what goes in and what comes out. No code.
 *
 * All bytes are borrowed: from the request's arena (going in), from the result of the claim (coming
 * out).
 */
#ifndef CORE_JOB_H
#define CORE_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "core/receipt.h"

/* A job to be stored. Checked before it gets here; defaults are filled in. */
struct new_job {
    struct bytes queue;
    struct bytes kind;
    struct bytes args;
    struct bytes ordering_key; /* data NULL: none */
    struct bytes metadata;     /* data NULL: none */
    struct bytes traceparent;  /* data NULL: none */
    int64_t run_at_us;         /* 0: at once */
    uint16_t max_attempts;
    uint8_t priority;
};

/* A job handed to a worker. */
struct claimed_job {
    struct claimed_job *next; /* in the answer of one Claim */
    struct receipt receipt;
    struct bytes queue;
    struct bytes kind;
    struct bytes args;
    struct bytes metadata;    /* data NULL: none */
    struct bytes traceparent; /* data NULL: none */
    int64_t created_at_us;
    uint16_t attempt;
    uint16_t max_attempts;
    uint8_t priority;
};

/* A job that was claimed and makes no sense: nobody can work on it. */
struct unreadable_job {
    struct receipt receipt;
    struct bytes queue;
    const char *why; /* a sentence that lives for ever */
};

/* How an attempt ends; numbered as finish_items of the storage wants it. */
enum job_outcome {
    JOB_COMPLETE = 1,
    JOB_RETRY = 2,
    JOB_SNOOZE = 3,
    JOB_FAIL = 4,
    JOB_CANCEL = 5,
    JOB_RELEASE = 6,
    JOB_WORKER_LOST = 7, /* a retry that counts as a crash: the proxy's own, no client can ask */
};

/* What became of ending an attempt; numbered as in awa.proto. */
enum finish_status {
    FINISH_DONE = 1,
    FINISH_ALREADY_DONE = 2,
    FINISH_STALE = 3,
    FINISH_NOT_FOUND = 4,
    FINISH_INVALID = 5,
    FINISH_ABORTED = 6,
};

/* The storage's own "not done, try again in milliseconds": never leaves the proxy. */
enum { STORAGE_BUSY = 7 };

/* One item of a Finish or Release. */
struct finish_order {
    struct receipt receipt;
    struct bytes error; /* data NULL: none */
    int64_t delay_ms;   /* 0: the policy's */
    enum job_outcome outcome;
};

/* An attempt as a client names it. */
struct held_receipt {
    struct bytes token;
    struct receipt receipt; /* when valid */
    bool valid;
};

/* Whether a session holds an attempt; numbered as in awa.proto. */
enum heartbeat_status { HEARTBEAT_OK = 1, HEARTBEAT_LOST = 2 };

struct queue_counts {
    int64_t scheduled;
    int64_t available;
    int64_t running;
    int64_t waiting_external;
    int64_t retryable;
    int64_t completed;
    int64_t failed;
    int64_t cancelled;
};

#endif
