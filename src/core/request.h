/* request: one unanswered request of a session, and all memory that belongs to it.
 *
 * What: the object lives inside its own arena, next to the unpacked frame; ending it frees
 * everything. Owner: dispatch makes it, session_take_request takes it, then the module that works
 * on it (enqueuer, finisher, broker, counter) ends it with request_answer, exactly once. The
 * session may be gone by then: it is named by a handle, and the answer goes nowhere.
 */
#ifndef CORE_REQUEST_H
#define CORE_REQUEST_H

#include "base/arena.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/slots.h"
#include "core/answer.h"
#include "core/job.h"

/* Added to the budget of a request for the core's own objects: what enqueuer, finisher and broker
 * allocate for one item, errors included, is below CORE_ITEM_BYTES. */
enum { CORE_ITEM_BYTES = 768, CORE_BYTES = 4096 };

enum request_kind {
    REQUEST_HELLO,
    REQUEST_PING,
    REQUEST_GOODBYE,
    REQUEST_ENQUEUE,
    REQUEST_CLAIM,
    REQUEST_FINISH,
    REQUEST_RELEASE,
    REQUEST_COUNTS,
    REQUEST_HEARTBEAT,
    REQUEST_CANCEL,
};

/* One job of an Enqueue: either to be stored, or already found invalid. */
struct enqueue_order {
    struct new_job job;
    const struct err *invalid; /* NULL: good */
};

struct finish_input {
    struct finish_order order;
    const struct err *invalid; /* NULL: good */
};

struct request {
    struct arena arena;
    handle session;         /* HANDLE_NONE: the proxy's own */
    struct list_node node;  /* session->requests */
    struct hash_node by_id; /* sessions->requests */
    uint64_t id;
    enum request_kind kind;
    uint32_t frame_bytes; /* what it cost on the wire: credit */
    size_t left_bytes;    /* counted in sessions->left_bytes: its session has gone */
    void *work;           /* of the module that works on it */
    union {
        struct {
            const struct enqueue_order *orders;
            size_t count;
            struct bytes key; /* idempotency; data NULL: none */
        } enqueue;
        struct {
            const struct bytes *queues;
            size_t queue_count;
            uint32_t jobs_max;
            uint32_t wait_ms;
        } claim;
        struct {
            const struct finish_input *inputs;
            size_t count;
        } finish; /* and release */
        struct bytes counts_queue;
        struct {
            struct bytes session_id; /* to resume; empty: none */
            bool says_held;          /* otherwise held is not known */
            const struct held_receipt *held;
            size_t held_count;
        } hello;
        struct {
            const struct held_receipt *items;
            size_t count;
        } heartbeat;
        uint64_t cancel_id;
    } in;
};

/* Allocates the request inside *arena and moves the arena into it. NULL when the arena's budget is
 * used up (the arena is then still the caller's). Room for the core's own objects is added to the
 * budget. */
struct request *request_new_take(struct arena *arena, enum request_kind kind, uint64_t id,
                                 uint32_t frame_bytes);

/* Memory for the core's objects of this request; never NULL. */
void *request_alloc(struct request *request, size_t size_bytes);

/* A copy of *err that lives as long as the request. */
const struct err *request_keep_err(struct request *request, const struct err *err);

void request_free(struct request *request);

#endif
