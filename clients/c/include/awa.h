// awa.h: libawa, the C client of awa-proxy.
//
// What: connect, enqueue jobs, run a worker; and, below that, one call for
// each request of proto/awa/v1/awa.proto.
// Errors are values: every call returns a code and, where the caller passes a
// struct awa_error, fills in the rest. AWA_UNAVAILABLE means "surely not done,
// try again"; AWA_DEADLINE_EXCEEDED means "not known": a finish may be resent,
// its receipt makes that safe; so may an enqueue under its idempotency key.
// Lost connections: a call that finds the connection lost connects again, to a
// new session, as long as its time-out (request_timeout_ms) permits; the pauses
// grow from 0.1 to 5 s. What was sent and not answered is AWA_DEADLINE_EXCEEDED;
// only an enqueue with an idempotency key is sent again by itself. A connection
// that has claimed, or was to resume a session, is not opened again by itself:
// its calls fail with AWA_UNAVAILABLE.
// Threads: an awa_connection belongs to one thread at a time. An awa_worker
// runs its handlers in threads of its own. In a child of fork() a connection is
// lost, to the child alone.
// Units: *_ms are milliseconds, *_us are unix microseconds, *_bytes are bytes.
// Strings are UTF-8 and end with NUL; JSON is passed as text.
// Sessions: the proxy keeps a session's attempts for limits.session_grace_ms
// after its connection is lost. A worker resumes its session by itself; who
// claims by hand keeps awa_connection_session() and connects with it again.
// Not in it: TLS.
#ifndef AWA_H
#define AWA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AWA_CHECKED __attribute__((warn_unused_result))

// ---- Errors ----------------------------------------------------------------

// The gRPC codes, with their numbers.
enum awa_code {
    AWA_OK = 0,
    AWA_CANCELLED = 1,
    AWA_UNKNOWN = 2,
    AWA_INVALID_ARGUMENT = 3,
    AWA_DEADLINE_EXCEEDED = 4,
    AWA_NOT_FOUND = 5,
    AWA_ALREADY_EXISTS = 6,
    AWA_PERMISSION_DENIED = 7,
    AWA_RESOURCE_EXHAUSTED = 8,
    AWA_FAILED_PRECONDITION = 9,
    AWA_ABORTED = 10,
    AWA_OUT_OF_RANGE = 11,
    AWA_UNIMPLEMENTED = 12,
    AWA_INTERNAL = 13,
    AWA_UNAVAILABLE = 14,
    AWA_DATA_LOSS = 15,
    AWA_UNAUTHENTICATED = 16,
};

struct awa_error {
    enum awa_code code;
    bool retryable;    // the same request may succeed later
    char sqlstate[6];  // empty where Postgres was not involved
    char message[250]; // a sentence for a person
};

// "UNAVAILABLE" and so on; "UNKNOWN" for a number that is none of them.
const char *awa_code_name(enum awa_code code);

// ---- Connections -----------------------------------------------------------

typedef struct awa_connection awa_connection;

// Names a session; as good as a password for it.
struct awa_session {
    uint8_t id[16];
};

struct awa_connect_options {
    const char *worker_name;          // for operators (no proxy shows it yet); NULL: none
    const struct awa_session *resume; // to get back what it holds; NULL: a new session
    int connect_timeout_ms;           // socket and handshake together; 0: 5,000
    int request_timeout_ms;           // one request, beyond what it asks to wait; 0: 60,000
    bool safe; // each enqueue has a random idempotency key: never twice, but slower
};

// What the proxy allows, as told in its first answer.
struct awa_limits {
    uint32_t max_frame_bytes, max_args_bytes;
    uint32_t max_jobs_per_enqueue, max_claim_jobs, max_items_per_finish;
    uint32_t max_wait_ms, idle_timeout_ms;
    uint32_t heartbeat_interval_ms; // send something at least this often
    uint32_t session_grace_ms;
};

// Connects to "unix:/path" or "tcp:host:port" ("tcp:[::1]:port") and says hello. options may be
// NULL. On AWA_OK *connection must be given back with awa_goodbye() or awa_close().
AWA_CHECKED enum awa_code awa_connect(const char *address,
                                      const struct awa_connect_options *options,
                                      awa_connection **connection, struct awa_error *error);

// Hands attempts still held back to the queue, then closes and frees.
// *released (may be NULL) is their number. Frees also when it fails. A lost
// connection that cannot hold any is no failure.
enum awa_code awa_goodbye(awa_connection *connection, uint32_t *released, struct awa_error *error);

// Closes and frees without a word. NULL is allowed.
void awa_close(awa_connection *connection);

const struct awa_limits *awa_connection_limits(const awa_connection *connection);

// It changes when the connection is opened again.
struct awa_session awa_connection_session(const awa_connection *connection);

// Whether the session that options.resume named was still there, with its attempts.
bool awa_connection_resumed(const awa_connection *connection);

AWA_CHECKED enum awa_code awa_ping(awa_connection *connection, struct awa_error *error);

// ---- Producing -------------------------------------------------------------

// Zero and NULL mean "the default". queue and kind are required.
struct awa_new_job {
    const char *queue, *kind;
    const char *args;         // JSON text, kept byte for byte; default {}
    uint32_t priority;        // 1 (first) .. 4; default 2
    uint32_t max_attempts;    // 1 .. 1000; default 25
    int64_t run_at_us;        // not before this time; default: at once
    const char *ordering_key; // picks the shard of the queue
    const char *metadata;     // a JSON object
    const char *traceparent;  // W3C trace context
};

struct awa_enqueue_result {
    int64_t job_id; // > 0: stored and durable; 0: see error
    struct awa_error error;
};

// Stores one job; durable on AWA_OK. job_id may be NULL.
AWA_CHECKED enum awa_code awa_enqueue(awa_connection *connection, const struct awa_new_job *job,
                                      int64_t *job_id, struct awa_error *error);

// Stores many, in as few requests as the limits allow. Fills every element of
// results. AWA_OK: each job has its own result, some may be errors. Any other
// code: the request that failed and all jobs behind it carry that error, and
// AWA_DEADLINE_EXCEEDED says that the jobs of that request may be stored.
AWA_CHECKED enum awa_code awa_enqueue_many(awa_connection *connection,
                                           const struct awa_new_job *jobs, size_t count,
                                           struct awa_enqueue_result *results,
                                           struct awa_error *error);

// The same in one request, under a key of 1 .. 200 bytes that is unique in the
// database (a UUID): for 10 minutes the same key gives the same job ids, over
// any connection and after any failure. Its jobs are stored together, or none
// but for those that are refused for themselves. It is sent again until the
// outcome is known or request_timeout_ms is over; what is AWA_DEADLINE_EXCEEDED
// then may be called again with the same key and jobs. It is a transaction of
// its own, slower than awa_enqueue_many(). count: 1 .. limits.max_jobs_per_enqueue,
// and no more than fit limits.max_frame_bytes.
AWA_CHECKED enum awa_code awa_enqueue_with_key(awa_connection *connection,
                                               const char *idempotency_key,
                                               const struct awa_new_job *jobs, size_t count,
                                               struct awa_enqueue_result *results,
                                               struct awa_error *error);

// ---- Outcomes --------------------------------------------------------------

enum awa_outcome_kind {
    AWA_OUTCOME_COMPLETE,
    AWA_OUTCOME_RETRY,
    AWA_OUTCOME_SNOOZE,
    AWA_OUTCOME_FAIL,
    AWA_OUTCOME_CANCEL,
};

struct awa_outcome {
    enum awa_outcome_kind kind;
    int64_t delay_ms; // retry: 0 is the usual back-off; snooze: at least 1
    char error[512];  // retry, fail, cancel: kept with the job; UTF-8
};

// What is too long of an error is cut, what is no UTF-8 in it becomes '?'.
struct awa_outcome awa_complete(void);
struct awa_outcome awa_retry(int64_t delay_ms, const char *error);
struct awa_outcome awa_snooze(int64_t delay_ms);
struct awa_outcome awa_fail(const char *error);
struct awa_outcome awa_cancel(const char *error);

// ---- Claiming and finishing by hand ----------------------------------------

struct awa_receipt {
    uint8_t bytes[64];
    uint8_t length_bytes;
};

struct awa_job {
    int64_t id;
    const char *queue, *kind;
    const char *args;        // the bytes that were enqueued, and a NUL
    const char *metadata;    // empty: none
    const char *traceparent; // empty: none
    uint32_t priority, attempt, max_attempts;
    int64_t created_at_us;
    struct awa_receipt receipt;
};

struct awa_claim {
    const char *const *queues; // in strict order of preference
    size_t queue_count;        // 1 .. 16
    uint32_t max_jobs;         // 1 .. limits.max_claim_jobs
    uint32_t wait_ms;          // 0 .. limits.max_wait_ms
};

// Waits for at least one job. *jobs is an array of *count jobs, empty at the
// end of wait_ms; it belongs to the caller (awa_jobs_free). Nothing is sent between
// calls: while jobs are held call awa_heartbeat() or awa_ping() every
// limits.heartbeat_interval_ms. After limits.idle_timeout_ms of silence the proxy
// ends the connection, and soon the attempts, as lost.
AWA_CHECKED enum awa_code awa_claim(awa_connection *connection, const struct awa_claim *claim,
                                    struct awa_job ***jobs, size_t *count, struct awa_error *error);

void awa_jobs_free(struct awa_job **jobs, size_t count);

// Asks which of 1 .. limits.max_items_per_finish attempts this session does
// not hold any more: lost[i] is set to true for those.
AWA_CHECKED enum awa_code awa_heartbeat(awa_connection *connection,
                                        const struct awa_receipt *receipts, size_t count,
                                        bool *lost, struct awa_error *error);

struct awa_finish {
    struct awa_receipt receipt;
    struct awa_outcome outcome;
};

enum awa_finish_status {
    AWA_FINISH_DONE = 1,         // durable now
    AWA_FINISH_ALREADY_DONE = 2, // this attempt had ended so before
    AWA_FINISH_STALE = 3,        // the attempt ended otherwise; nothing was changed
    AWA_FINISH_NOT_FOUND = 4,    // older than the resend window, or never existed
    AWA_FINISH_INVALID = 5,      // malformed receipt or outcome; see error
    AWA_FINISH_ABORTED = 6,      // not done; the attempt is still yours: resend
};

struct awa_finish_result {
    enum awa_finish_status status;
    struct awa_error error; // for AWA_FINISH_INVALID and AWA_FINISH_ABORTED
};

// Ends 1 .. limits.max_items_per_finish attempts; safe to resend.
AWA_CHECKED enum awa_code awa_finish(awa_connection *connection, const struct awa_finish *items,
                                     size_t count, struct awa_finish_result *results,
                                     struct awa_error *error);

// Hands 1 .. limits.max_items_per_finish attempts back untouched.
AWA_CHECKED enum awa_code awa_release(awa_connection *connection,
                                      const struct awa_receipt *receipts, size_t count,
                                      struct awa_finish_result *results, struct awa_error *error);

struct awa_queue_counts {
    int64_t scheduled, available, running, waiting_external;
    int64_t retryable, completed, failed, cancelled;
};

// Exact at one moment.
AWA_CHECKED enum awa_code awa_queue_counts(awa_connection *connection, const char *queue,
                                           struct awa_queue_counts *counts,
                                           struct awa_error *error);

// ---- Workers ---------------------------------------------------------------

typedef struct awa_worker awa_worker;

// Runs one job. Called in a worker thread, up to `concurrency` at once; the
// job is valid until it returns. An outcome that the proxy refuses (a delay of
// more than 30 days, the 1,001st snooze) becomes a retry that says so.
typedef struct awa_outcome (*awa_handler)(const struct awa_job *job, void *context);

// Whether the proxy has said that this attempt ended without its handler: what
// it does from here on is in vain. For handlers; any thread, any time.
bool awa_job_lost(const struct awa_job *job);

#define AWA_NO_PREFETCH (-1)

struct awa_worker_options {
    const char *address;       // "unix:/path" or "tcp:host:port"
    const char *name;          // for operators (no proxy shows it yet); NULL: none
    const char *const *queues; // in strict order of preference
    size_t queue_count;
    unsigned concurrency; // handlers at once, 4,096 at most; 0: 1
    int prefetch;         // jobs held ready beyond those, 65,536 at most; 0: as many again
    awa_handler handler;
    void *context; // passed to the handler
};

struct awa_worker_stats {
    uint64_t executed;     // handlers that returned
    uint64_t done;         // outcomes that are durable (ALREADY_DONE included)
    uint64_t not_accepted; // outcomes answered STALE, NOT_FOUND or INVALID
    uint64_t reconnects;
    uint64_t resumed; // reconnects that found the session still there
};

// Does not connect yet. The strings and the array in options must live as long
// as the worker.
AWA_CHECKED enum awa_code awa_worker_new(const struct awa_worker_options *options,
                                         awa_worker **worker, struct awa_error *error);

// Works until awa_worker_stop(): then claims nothing more, releases what has
// not started, waits for the running handlers, and returns AWA_OK when the last
// outcome is answered. Reconnects by itself (back-off 0.1 .. 5 s, with jitter)
// and resumes its session; while there is no connection no handler starts, and
// those that run go on. A proxy that drains is left once what runs has ended;
// what has not started is released. Returns an
// error when the first connection fails, the proxy refuses the worker's
// requests, or a stopping worker has outcomes and no proxy. Call it once.
AWA_CHECKED enum awa_code awa_worker_run(awa_worker *worker, struct awa_error *error);

// May be called from any thread and from a signal handler, at any time.
void awa_worker_stop(awa_worker *worker);

// Call it after awa_worker_run() has returned.
struct awa_worker_stats awa_worker_get_stats(const awa_worker *worker);

void awa_worker_free(awa_worker *worker);

#ifdef __cplusplus
}
#endif

#endif
