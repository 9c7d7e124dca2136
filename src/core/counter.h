/* counter: answers QueueCounts, one call of the storage each. Reads only, so nothing is retried:
 * what fails is answered UNAVAILABLE and the client asks again. An exact count is slow and there
 * may be many: at most COUNTS_IN_FLIGHT_MAX at a time, so that jobs do not queue behind them. */
#ifndef CORE_COUNTER_H
#define CORE_COUNTER_H

#include "core/env.h"
#include "core/request.h"

struct sessions;

struct counter {
    const struct env *env;
    struct sessions *sessions;
    struct list waiting; /* only while COUNTS_IN_FLIGHT_MAX are in flight */
    size_t in_flight;
};

void counter_take(struct counter *counter, struct request *request);

/* Nobody waits for it any more: if it was not sent, it is not. */
void counter_forget(struct counter *counter, struct request *request);

#endif
