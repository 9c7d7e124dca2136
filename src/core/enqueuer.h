/* enqueuer: makes jobs durable. Enqueue requests of all sessions become few large transactions.
 *
 * What: takes an Enqueue request, gives each job an id from a reserved block, stores it in a shared
 * flush (batcher.h), and answers the request when all its jobs have a result, each its own.
 * Invariants: an id comes from a block whose reservation was committed first; a block dies with any
 * loss of a connection (enqueuer_forget_ids); an id is used for one try of one job and never again.
 * A flush whose outcome is unknown is asked about by its ids (doubt.h): what exists is
 * acknowledged, the rest is enqueued again with other ids. Where the ids prove nothing, because the
 * server was started anew or is another one, its jobs are answered DEADLINE_EXCEEDED. A request
 * with an idempotency key is keyed's (keyed.h).
 */
#ifndef CORE_ENQUEUER_H
#define CORE_ENQUEUER_H

#include "core/batcher.h"
#include "core/ids.h"
#include "core/keyed.h"
#include "core/request.h"

struct sessions;

struct enqueuer {
    struct batcher batcher;
    struct keyed keyed;
    struct ids ids;
    struct sessions *sessions; /* to answer */
    /* Told after a commit which queues have new work. */
    void (*committed)(void *ctx, struct bytes queue);
    void *committed_ctx;
};

struct enqueuer_setup {
    const struct env *env;
    struct timers *timers;
    struct sessions *sessions;
    size_t items_max;
    uint64_t flush_us;
    void (*committed)(void *ctx, struct bytes queue);
    void *committed_ctx;
};

void enqueuer_init(struct enqueuer *enqueuer, const struct enqueuer_setup *setup);
void enqueuer_free(struct enqueuer *enqueuer);

void enqueuer_configure(struct enqueuer *enqueuer, size_t items_max, uint64_t flush_us);

void enqueuer_take(struct enqueuer *enqueuer, struct request *request);

/* Nobody waits for this request any more: jobs that were not sent are not stored. */
void enqueuer_forget(struct enqueuer *enqueuer, struct request *request);

void enqueuer_forget_ids(struct enqueuer *enqueuer);

void enqueuer_turn(struct enqueuer *enqueuer);

/* Transactions begun again because they were a deadlock's victim, since the start. */
uint64_t enqueuer_deadlock_retries(const struct enqueuer *enqueuer);
bool enqueuer_is_idle(const struct enqueuer *enqueuer);

#endif
