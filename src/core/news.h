/* news: that a queue has new work, from other proxies and to them.
 *
 * What: what others announce wakes the claim groups of that queue, each queue once a turn. What was
 * committed here is announced: at once after a pause, else at most every ANNOUNCE_MS, many queues
 * in one call, one call in flight. Why in a call of its own on the control session: commits that
 * notify follow each other one flush at a time, so an enqueue must not be one.
 * All of it are hints; the poll finds what was not announced. So more than QUEUE_SET_MAX queues in
 * a turn wake every group, and beyond as many in a pause nothing is announced. Invariant: nothing
 * is asked of a control session that is not there.
 */
#ifndef CORE_NEWS_H
#define CORE_NEWS_H

#include "base/timers.h"
#include "core/broker.h"
#include "core/env.h"
#include "core/queue_set.h"

enum { ANNOUNCE_MS = 50 };

struct news {
    const struct env *env;
    struct timers *timers;
    struct broker *broker;
    struct queue_set heard;
    bool heard_too_many;
    struct queue_set to_tell;
    struct queue_set telling; /* the call's */
    struct db_call call;
    struct timer timer; /* the pause after a call */
    bool in_flight;
    bool connected;
};

void news_init(struct news *news, const struct env *env, struct timers *timers,
               struct broker *broker);
void news_stop(struct news *news); /* before it is freed */

/* The control session is there; it is lost. */
void news_connected(struct news *news, bool connected);

void news_heard(struct news *news, struct bytes queue);
void news_committed(struct news *news, struct bytes queue);

/* At the end of a turn: wakes and tells. */
void news_turn(struct news *news);

#endif
