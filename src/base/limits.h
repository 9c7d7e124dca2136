/* limits: every bound of the proxy in one place, and what happens at it.
 *
 * Why: a queue without a bound is a crash that has not happened yet. Each constant says its unit in
 * its name; each group says what the proxy does when the bound is reached. Not here: what an
 * operator may tune (conf.def), and states of libraries.
 */
#ifndef BASE_LIMITS_H
#define BASE_LIMITS_H

#include <assert.h>
#include <stdint.h>

/* One frame. Longer: one error frame, then close. The length is checked before anything is
 * buffered. */
enum {
    FRAME_PREFIX_BYTES_MAX = 5, /* a varint of at most 32 bits */
    FRAME_BYTES_MAX = 4 * 1024 * 1024,
    /* Objects unpacked from one frame. A NewJob of two bytes on the wire takes some 200 in memory.
     */
    UNPACK_BYTES_MAX = 3 * FRAME_BYTES_MAX,
};

/* What one request may hold. More: INVALID_ARGUMENT for the request or for the item. */
enum {
    JOBS_PER_ENQUEUE_MAX = 1000,
    ITEMS_PER_FINISH_MAX = 1000,
    CLAIM_JOBS_MAX = 512,
    CLAIM_QUEUES_MAX = 16,
    CLAIM_WAIT_MS_MAX = 60 * 1000,
    NAME_BYTES_MAX = 200, /* queue, kind, ordering key, worker name */
    IDEMPOTENCY_KEY_BYTES_MAX = 200,
    CLIENT_TEXT_BYTES_MAX = 64,
    SESSION_ID_BYTES = 16,
    ARGS_BYTES_MAX = 1024 * 1024,
    JSON_DEPTH_MAX = 64,
    METADATA_BYTES_MAX = 16 * 1024,
    TRACEPARENT_BYTES_MAX = 128,
    ERROR_TEXT_BYTES_MAX = 4 * 1024,
    RECEIPT_BYTES_MAX = 64,
    HELD_RECEIPTS_MAX = 8 * 1024, /* of a Hello; a client that holds more lists none */
    PRIORITY_MIN = 1,
    PRIORITY_MAX = 4,
    PRIORITY_DEFAULT = 2,
    ATTEMPTS_PER_JOB_MAX = 1000,
    ATTEMPTS_PER_JOB_DEFAULT = 25,
};
#define DELAY_MS_MAX  (INT64_C(30) * 24 * 3600 * 1000)
#define RUN_AT_US_MAX (INT64_C(253402300799) * 1000 * 1000) /* the end of year 9999 */
#define JOB_ID_MAX    ((INT64_C(1) << 53) - 1)

/* One session. Credit used up: the proxy stops reading the session until answers have gone out. */
enum {
    /* Open and in grace, together. More: a Hello is told RESOURCE_EXHAUSTED, unless it resumes. */
    SESSIONS_MAX = 10000,
    /* Connections before their Hello, on top: so that who wants to resume gets to say so. */
    HANDSHAKES_MAX = 1024,
    CREDIT_REQUESTS = 1024,
    CREDIT_BYTES = 8 * 1024 * 1024,
    CLAIMS_PER_SESSION_MAX = 4096,            /* waiting; more: RESOURCE_EXHAUSTED */
    FINISH_ITEMS_PER_SESSION_MAX = 16 * 1024, /* unanswered; more: stop reading, never refuse */
    OUTPUT_BYTES_MAX = 8 * 1024 * 1024,       /* unsent answers; more: stop reading */
    DEALT_BYTES_MAX = 4 * 1024 * 1024, /* unsent answers; as much: its claims are dealt no jobs */
    READ_BYTES_PER_TURN = 256 * 1024,  /* of one connection, so that the others get their turn */
};

/* Memory of requests whose session has gone, all together. More: what was not sent to the database
 * when its session goes is not sent any more. Nobody waits for its answer. */
enum { LEFT_BYTES_MAX = 64 * 1024 * 1024 };

/* Addresses that clients connect to; more: a bad setting. */
enum { LISTENERS_MAX = 8 };

/* Deadlines. */
enum {
    HANDSHAKE_MS = 5 * 1000,     /* connect to Hello */
    FRAME_MS = 30 * 1000,        /* first to last byte of one frame */
    OUTPUT_STALL_MS = 30 * 1000, /* a peer that reads nothing for so long is gone */
    IDLE_TIMEOUT_MS = 60 * 1000, /* no frame and no claim waiting */
    HEARTBEAT_MS = IDLE_TIMEOUT_MS / 3,
    LINGER_MS = 2 * 1000,   /* for the last answer of a closing connection */
    ACCEPT_PAUSE_MS = 200,  /* out of file descriptors */
    REQUEST_MS = 30 * 1000, /* an enqueue or finish that keeps failing is answered after this, and a
                               count that nobody has come to */
    CALL_CLAIM_MS = 10 * 1000, /* a claim holds the mutexes of its lanes until it is given up */
    CALL_MS = 15 * 1000,       /* any other call for clients; both from the moment that the answers
                                  before it on its connection are there */
    CALL_LONG_MS = 35 * 1000,  /* counts and maintenance: beyond the statement_timeout */
};

/* Attempts owned by sessions. A Claim reserves max_jobs of them; no room: RESOURCE_EXHAUSTED. */
enum { ATTEMPTS_MAX = 256 * 1024 };

/* Claim groups: distinct ordered queue lists. Full and none idle: RESOURCE_EXHAUSTED. */
enum { GROUPS_MAX = 1024 };

/* The most that one session has of either; more: RESOURCE_EXHAUSTED, for it alone. An eighth: a
 * worker of thousands of slots fits, and a thousand of 200 slots beside it. */
enum {
    ATTEMPTS_PER_SESSION_MAX = ATTEMPTS_MAX / 8,
    GROUPS_PER_SESSION_MAX = GROUPS_MAX / 8,
};

/* Claim calls of one group whose outcome is not known yet. As many: the group makes no further call
 * before one of them is resolved. */
enum { CLAIM_DOUBTS_PER_GROUP_MAX = 4 };

/* Backends of which the broker knows how far their batch numbers have come: all of the largest
 * pool. What is forgotten costs one longer look of claim_result. */
enum { CLAIM_MARKS_MAX = 64 };

/* Unreadable jobs of one group that the storage has not taken as failed yet. As many: the group
 * makes no further call before some have ended. */
enum { UNREADABLE_PER_GROUP_MAX = CLAIM_JOBS_MAX };

/* One flush. Bytes count what is sent, so that one segment is never unbounded in libpq's buffer. */
enum {
    FLUSH_ITEMS_MAX = 512,
    FLUSH_BYTES_MAX = 4 * 1024 * 1024,
    FINISH_ITEMS_PER_CALL_MAX = 64,     /* finish_items of the storage */
    COMPLETE_BATCHES_PER_CALL_MAX = 64, /* complete_batch of the storage */
    FLUSHES_PER_BATCHER_MAX = 8,
};

/* Counts under way in the storage; more wait in the proxy. */
enum { COUNTS_IN_FLIGHT_MAX = 2 };

/* Job ids held in reserve by the enqueuer. Reserving a block takes 2 ms in Postgres, so that it
 * delays nobody; what is left when the next is asked for lasts 20 ms at 100,000 jobs/s. */
enum { ID_BLOCK = 4000, ID_BLOCK_LOW = 2000, ID_RUNS_MAX = 16 };

/* Segments sent and not answered on one connection; more wait in the pool. */
enum { PIPE_SEGMENTS_MAX = 4, POOL_SIZE_MAX = 64 };

/* Host names of Postgres. Threads of one pool that look names up, hanging ones that were given up
 * included; more: no connection is tried before one of them ends. Further addresses of a name are
 * not used. */
enum { LOOKUPS_MAX = 4, ADDRESSES_PER_NAME_MAX = 16 };

/* Room in a ClaimOk beside args and metadata: receipt, names, traceparent and field tags of each
 * job. */
enum {
    JOB_OVERHEAD_BYTES_MAX = RECEIPT_BYTES_MAX + 2 * NAME_BYTES_MAX + TRACEPARENT_BYTES_MAX + 96,
    CLAIM_BYTES_MAX = FRAME_BYTES_MAX - CLAIM_JOBS_MAX * JOB_OVERHEAD_BYTES_MAX - 1024,
};

static_assert(CLAIM_BYTES_MAX > ARGS_BYTES_MAX + METADATA_BYTES_MAX,
              "a claim of the largest job fits a frame");
static_assert(DEALT_BYTES_MAX + FRAME_BYTES_MAX <= OUTPUT_BYTES_MAX,
              "the last claim that is dealt to a session does not stop its reading");
static_assert((int)FLUSH_ITEMS_MAX >= (int)CLAIM_JOBS_MAX, "one claim can end in one flush");
static_assert(FLUSH_BYTES_MAX > ARGS_BYTES_MAX + METADATA_BYTES_MAX,
              "the largest job fits a flush");
static_assert(ARGS_BYTES_MAX + METADATA_BYTES_MAX + 1024 < FRAME_BYTES_MAX,
              "the largest job fits a frame");

#endif
