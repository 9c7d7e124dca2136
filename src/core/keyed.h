/* keyed: Enqueue requests that carry an idempotency key.
 *
 * What: each such request is one transaction of its own, which takes the key and stores the jobs;
 * when the key is taken already, the ids stored with it are the answer. So it may be sent again
 * after any failure, by the client too, over another connection or another proxy. Why not in the
 * shared flushes: a key may have to wait for another use of itself, and all of a request must stand
 * or fall with it; and who sends no key pays nothing for those who do. Invariant: a request is one
 * item of the batcher, whose flushes hold one item. Bound: FLUSHES_PER_BATCHER_MAX transactions at
 * a time; what waits is bounded by the sessions' credit.
 */
#ifndef CORE_KEYED_H
#define CORE_KEYED_H

#include "core/batcher.h"
#include "core/ids.h"
#include "core/request.h"

struct sessions;

struct keyed {
    struct batcher batcher;
    struct ids *ids;           /* the enqueuer's */
    struct sessions *sessions; /* to answer */
    void (*committed)(void *ctx, struct bytes queue);
    void *committed_ctx;
};

struct keyed_setup {
    const struct env *env;
    struct timers *timers;
    struct sessions *sessions;
    struct ids *ids;
    uint64_t flush_us;
    void (*committed)(void *ctx, struct bytes queue);
    void *committed_ctx;
};

void keyed_init(struct keyed *keyed, const struct keyed_setup *setup);
void keyed_free(struct keyed *keyed);

/* A REQUEST_ENQUEUE with a key. */
void keyed_take(struct keyed *keyed, struct request *request);

/* Nobody waits for it any more: if it was not sent, it is not. */
void keyed_forget(struct keyed *keyed, struct request *request);

void keyed_turn(struct keyed *keyed);
bool keyed_is_idle(const struct keyed *keyed);

#endif
