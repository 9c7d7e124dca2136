/* ledger: what clients asked for and were told, to be held against what the storage committed.
 *
 * What: a wish for each job that anybody enqueues, found by its token. The rules are in the
 * functions: each ends the run when a promise is broken.
 */
#ifndef SIM_LEDGER_H
#define SIM_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/answer.h"

struct sim;
struct asked;
struct client;

enum told {
    TOLD_NOTHING, /* yet, or never: its session is gone */
    TOLD_STORED,
    TOLD_NOT_STORED,
    TOLD_UNKNOWN,
};

struct wish {
    enum told told;
    unsigned queue;
    uint8_t priority;
    bool good;      /* nothing wrong with it */
    bool stored;    /* the storage has it */
    bool stranger;  /* never went through the proxy */
    bool under_way; /* in a call */
    bool keyed;     /* its Enqueue has an idempotency key: may be sent again */
    unsigned asks;  /* so many Enqueues had it */
    int64_t id;     /* stored with, or last tried with */
};

struct ledger {
    struct wish *wishes; /* token - 1 */
    size_t count;
    size_t room;
};

void ledger_free(struct ledger *ledger);

/* A new token. */
uint64_t ledger_wish(struct sim *sim, unsigned queue, uint8_t priority, bool good);
struct wish *ledger_find(struct sim *sim, uint64_t token);

/* The storage is about to commit this job. */
void ledger_stored(struct sim *sim, uint64_t token, int64_t id);

/* A call with this job was submitted; or is answered. */
void ledger_tried(struct sim *sim, uint64_t token, int64_t id);
void ledger_answered(struct sim *sim, uint64_t token);

/* An answer was sent for what was asked. */
void ledger_told(struct sim *sim, struct client *client, struct asked *asked,
                 const struct answer *answer);

#endif
