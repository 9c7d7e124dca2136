/* finisher: ends attempts. Outcomes of all sessions become few large transactions.
 *
 * What: takes Finish and Release requests, and the proxy's own hand-backs. Completions go to the
 * storage's short path (complete_batch), all other outcomes to its general one (finish_items); each
 * has its own batcher per shard, and the items of one claim batch always go to the same shard.
 * Receipts that this proxy has not handed out to anybody who still holds them (sent again, from
 * before a restart, or forged) have a shard for themselves: however many claim batches they name,
 * they keep nobody waiting who ends what he holds.
 * Invariants: a status is passed on only after its commit; a flush names a receipt once (items that
 * want the same of it share the answer, others wait); an attempt leaves the attempt table only when
 * the storage has said that it is over, and a session that holds one that somebody else ended is
 * told; what is handed back is offered until the storage has taken it. Ending is idempotent, so a
 * flush whose outcome is unknown is replayed. When the server is out of lock table, a flush may
 * name half as many claim batches as before, and after some calm seconds twice as many again. Never
 * refuses a well-formed receipt for lack of room.
 */
#ifndef CORE_FINISHER_H
#define CORE_FINISHER_H

#include "core/attempts.h"
#include "core/batcher.h"
#include "core/request.h"

struct sessions;

enum { FINISHER_SHARDS_MAX = 16 };

struct finisher_shard {
    struct batcher completes;
    struct batcher others;
};

struct finisher {
    const struct env *env;
    struct timers *timers;
    struct list offers; /* hand-backs that failed, until they are repeated */
    struct finisher_shard shards[FINISHER_SHARDS_MAX + 1];
    size_t shard_count; /* without the last one, that of the strangers */
    struct attempts *attempts;
    struct sessions *sessions;
    void (*released)(void *ctx); /* some jobs are available again */
    void *released_ctx;
    bool some_released; /* since the last turn */
    size_t batches_max; /* claim batches a flush */
    struct timer calm;  /* set while batches_max is lowered */
};

struct finisher_setup {
    const struct env *env;
    struct timers *timers;
    struct attempts *attempts;
    struct sessions *sessions;
    size_t shard_count;
    size_t items_max;
    uint64_t flush_us;
    void (*released)(void *ctx);
    void *released_ctx;
};

void finisher_init(struct finisher *finisher, const struct finisher_setup *setup);
void finisher_free(struct finisher *finisher);

void finisher_configure(struct finisher *finisher, size_t items_max, uint64_t flush_us);

/* REQUEST_FINISH or REQUEST_RELEASE of a session. */
void finisher_take(struct finisher *finisher, struct request *request);

/* Nobody waits for this request any more: outcomes that were not sent are not. */
void finisher_forget(struct finisher *finisher, struct request *request);

/* Ends attempts that nobody holds: released, lost with their worker, failed because they cannot be
 * read. The receipts are copied. */
struct hand_back {
    enum job_outcome as;
    const char *error;                                        /* lives for ever; NULL: none */
    void (*told)(void *ctx, handle session, size_t released); /* tried once; NULL: nobody asks */
    void (*over)(void *ctx, size_t count); /* so many will not be tried again; NULL: nobody asks */
    void *ctx;
    handle session;
    bool is_repeat;
};
void finisher_hand_back(struct finisher *finisher, const struct receipt *receipts, size_t count,
                        struct hand_back back);

void finisher_turn(struct finisher *finisher);

/* Transactions begun again because they were a deadlock's victim, since the start. */
uint64_t finisher_deadlock_retries(const struct finisher *finisher);

bool finisher_is_idle(const struct finisher *finisher);

#endif
