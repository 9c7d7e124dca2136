/* doubt: a call that may have committed, until it is known whether it did.
 *
 * What: first the backend that ran the call must be gone (until then it could still commit): asked,
 * with short and growing pauses, until the storage says so; each asking also ends it. Then, if the
 * owner has a question, that is asked until it is answered. Both only read, so a lost answer is
 * asked again, for ever: how long a client waits is the owner's affair. Bound: while Postgres can
 * be reached, a doubt lasts as long as the end of that backend and two round trips. Owner: a flush
 * of the batcher, or a claim of the broker; it embeds the doubt and keeps it until known().
 */
#ifndef CORE_DOUBT_H
#define CORE_DOUBT_H

#include "base/timers.h"
#include "core/env.h"

struct doubt {
    const struct env *env;
    struct timers *timers;
    /* Fills in what is to be asked once the backend is gone. False: nothing. */
    bool (*ask)(struct doubt *doubt, struct db_call *call);
    /* From a database call's done(): the answer, or NULL when nothing was asked. True: that is all,
     * and the doubt is not touched any more. False: it says nothing yet, ask again. */
    bool (*known)(struct doubt *doubt, const struct db_reply *reply);
    /* From here on the doubt's own. */
    struct db_call call;
    struct timer again;
    struct backend backend; /* that ran the call */
    uint64_t since_us;
    unsigned tries;
    bool is_gone;
};

/* Starts it; env, timers, ask and known are set. */
void doubt_raise(struct doubt *doubt, const struct backend *backend, const char *what);

#endif
