/* maintenance: when each of the storage's maintenance steps runs (tasks.def).
 *
 * What: one step at a time on the control connection; each is short, idempotent and its own
 * transaction. A step that moved a full portion runs again at once; promotion runs more often while
 * there is something to promote; after a rotation the ring pointers are synchronised before
 * anything else. Why here: time and order are the proxy's; what a step does is the storage's.
 * Invariant: nothing runs before maintenance_start (the control connection is up), nor after it was
 * lost.
 */
#ifndef CORE_MAINTENANCE_H
#define CORE_MAINTENANCE_H

#include "base/timers.h"
#include "core/env.h"

enum { PROMOTE_PORTION = 1000, CARRY_PORTION = 100 };

struct maintenance {
    const struct env *env;
    struct timers *timers;
    void (*promoted)(void *ctx); /* jobs became available */
    void *promoted_ctx;
    struct db_call call;
    struct timer timer;
    uint64_t due_us[TASK_COUNT];
    unsigned failures[TASK_COUNT]; /* in a row */
    uint64_t promoted_us;          /* when promotion last moved something */
    bool running;
    bool in_flight;
};

struct maintenance_setup {
    const struct env *env;
    struct timers *timers;
    void (*promoted)(void *ctx);
    void *promoted_ctx;
};

void maintenance_init(struct maintenance *maintenance, const struct maintenance_setup *setup);

void maintenance_start(struct maintenance *maintenance);
void maintenance_stop(struct maintenance *maintenance);

const char *maintenance_task_name(enum maintenance_task task);

#endif
