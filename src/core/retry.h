/* retry: what to do with a transaction that Postgres did not commit. Pure decisions, no state.
 *
 * The rules: 40P01 and 40001 (and a lock time-out): the whole again after 10, 20, 40 ms, then each
 * item once alone, then ABORTED. Data errors (22, 23, 54) and internal ones (XX): halve, however
 * late it is, until the item is found; it alone is answered. Out of lock table (53200): in halves,
 * which need less of it, and what is alone waits and tries again. A lost connection: replay with
 * jittered back-off if the call is idempotent or surely did not commit. Everything else (42, 53, 58
 * …): answered as it is; nothing was done.
 */
#ifndef CORE_RETRY_H
#define CORE_RETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/outcome.h"

enum trouble {
    TROUBLE_ABORTED,    /* a deadlock victim: the same again may work */
    TROUBLE_ITEM,       /* some item of it is bad */
    TROUBLE_CROWDED,    /* too much for the server at once */
    TROUBLE_CONNECTION, /* the connection, not the call */
    TROUBLE_REFUSED,    /* neither: set-up, resources, rights */
};

enum retry_step {
    RETRY_SAME,    /* the same items in one transaction, after delay_us */
    RETRY_HALVES,  /* in transactions of half the size */
    RETRY_SINGLY,  /* each in its own */
    RETRY_GIVE_UP, /* answer it */
};

struct retry_case {
    enum outcome outcome; /* NOT_DONE or UNKNOWN */
    const struct err *err;
    bool idempotent;  /* may be replayed when the outcome is unknown */
    size_t items;     /* in the transaction */
    unsigned repeats; /* of RETRY_SAME so far */
    bool overdue;     /* the oldest item has waited too long for another try */
    uint64_t random;
};

struct retry_plan {
    enum retry_step step;
    uint64_t delay_us;
};

enum trouble retry_trouble(const struct err *err);
struct retry_plan retry_decide(const struct retry_case *failed);

/* What the client is told of an item that is given up. uncertain: an earlier try may have
 * committed. */
void retry_final_err(const struct err *cause, enum outcome outcome, bool uncertain,
                     struct err *out);

#endif
