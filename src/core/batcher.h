/* batcher: who shares a transaction, and when it is sent. Used by the enqueuer and the finisher.
 *
 * What: items wait in `pending`. A flush takes up to items_max of them; it is sent at once when no
 * flush is in flight, otherwise when the one in flight ends, or after the oldest item has waited
 * flush_us and another connection is free. So batches grow by themselves as the load does, and an
 * idle proxy adds no delay. What shares a flush shares its fate: when it fails, retry.h decides;
 * items that must be isolated carry mates_max, the largest flush they may be part of, and go back
 * to the front. A flush that may have committed is in doubt (doubt.h): once the backend that ran it
 * is gone it is sent again if it is idempotent, otherwise each item is asked about. Invariant: an
 * item is in pending, in later, or in exactly one flush, until settled or failed. Deadline: what is
 * not known REQUEST_MS after it came is given up, unless a call with it is just under way; a flush
 * in doubt goes on without it. Not here: what an item is. The owner's ops say how a flush is laid
 * out and answered.
 */
#ifndef CORE_BATCHER_H
#define CORE_BATCHER_H

#include "base/limits.h"
#include "base/list.h"
#include "base/timers.h"
#include "core/doubt.h"
#include "core/env.h"

struct batcher;

struct batch_item {
    struct list_node node;
    uint64_t since_us;
    uint16_t mates_max;
    bool uncertain; /* an earlier try may have committed */
};

struct flush {
    struct db_call call;
    struct batcher *batcher;
    struct doubt doubt;
    bool in_doubt;
    struct err cause;   /* of the doubt */
    struct timer again; /* set while it rests before another try; in doubt: the next deadline */
    struct list_node node;
    unsigned repeats;
    size_t count;
    struct batch_item *items[FLUSH_ITEMS_MAX]; /* in doubt: NULL for one that was given up */
};

enum settled { SETTLED, SETTLE_LATER };

/* What the answer to a question says of an item. */
enum resolved {
    RESOLVED_DONE,     /* it was committed, and the owner has answered it */
    RESOLVED_NOT_DONE, /* surely not: it is sent again */
    RESOLVED_NEVER,    /* nobody can know any more */
};

struct batcher_ops {
    /* A new flush for the owner to extend, and its end. */
    struct flush *(*flush_new)(struct batcher *batcher);
    void (*flush_free)(struct flush *flush);
    /* Lays out flush->call for flush->items; may give some back with batcher_put_back. Called again
     * before each repeat. False: nothing to send now (all items were given back). */
    bool (*prepare)(struct flush *flush);
    /* One item of a flush that was done. SETTLE_LATER: the storage was busy with it. */
    enum settled (*settle)(struct flush *flush, size_t at, const struct db_reply *reply);
    /* Lays out what is to be asked of a flush in doubt (some items may be NULL), and reads the
     * answer for one item. Both NULL: idempotent, it is simply sent again. */
    void (*ask)(struct flush *flush, struct db_call *call);
    enum resolved (*resolve)(struct flush *flush, size_t at, const struct db_reply *reply);
    /* One item that is given up. */
    void (*fail)(struct batch_item *item, const struct err *err);
    /* May be NULL: the server is out of lock table (53200). */
    void (*crowded)(struct batcher *batcher);
};

struct batcher {
    const struct batcher_ops *ops;
    const char *name; /* in the log */
    const struct env *env;
    struct timers *timers;
    void *owner;
    struct list pending;
    struct list later; /* busy: back to pending when the timer fires */
    struct list spare; /* flushes at rest */
    struct timer flush_timer;
    struct timer later_timer;
    size_t items_max;
    uint64_t flush_us;
    unsigned flush_count; /* existing: spare, in flight, resting or in doubt */
    unsigned in_flight;
    struct err trouble;        /* why nothing could be done lately; CODE_OK: it could */
    uint64_t deadlock_retries; /* transactions begun again after 40P01 */
    uint64_t deadlock_said_us;
};

struct batcher_setup {
    const struct batcher_ops *ops;
    const char *name;
    const struct env *env;
    struct timers *timers;
    void *owner;
    size_t items_max;
    uint64_t flush_us;
};

void batcher_init(struct batcher *batcher, const struct batcher_setup *setup);

/* Only when nothing is in flight or waiting. */
void batcher_free(struct batcher *batcher);

/* Other limits, from the next flush on. */
void batcher_configure(struct batcher *batcher, size_t items_max, uint64_t flush_us);

void batcher_add(struct batcher *batcher, struct batch_item *item);

/* Takes an item out that is not being sent; whether it was there. */
bool batcher_forget(struct batcher *batcher, struct batch_item *item);

/* For prepare(): takes the items from `keep` on out of the flush, back to the front of pending. */
void batcher_put_back(struct flush *flush, size_t keep);

/* Gives up what waits to be sent for the first time or again: all of it, or what has waited for too
 * long. For an owner who cannot prepare anything. */
void batcher_give_up(struct batcher *batcher, const struct err *cause, bool all);

/* Sends what is to be sent by now. Called once at the end of a loop turn, and cheap when there is
 * nothing. */
void batcher_turn(struct batcher *batcher);

bool batcher_is_idle(const struct batcher *batcher);

#endif
