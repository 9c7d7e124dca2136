/* queue_set: a few names of queues, each once.
 *
 * Why: news of work comes in bursts of the same few queues, and acting on each is a walk or a call.
 * Limit: QUEUE_SET_MAX names. One more does not fit: the owner is told and decides what is then
 * lost. A name too long to be a queue's is refused too: anybody may notify.
 */
#ifndef CORE_QUEUE_SET_H
#define CORE_QUEUE_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/limits.h"

enum { QUEUE_SET_MAX = 32 };

struct queue_set {
    size_t count;
    struct bytes names[QUEUE_SET_MAX]; /* inside memory */
    uint8_t memory[QUEUE_SET_MAX][NAME_BYTES_MAX];
};

/* False: there was no room. The set must not move from the first name on. */
bool queue_set_add(struct queue_set *set, struct bytes queue);

static inline void queue_set_clear(struct queue_set *set)
{
    set->count = 0;
}

#endif
