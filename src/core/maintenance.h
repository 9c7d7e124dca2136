/* maintenance: when each of the leader's duties (tasks.def) runs.
 *
 * What: one step at a time on the control connection; each is short, idempotent and its own
 * transaction. The most overdue task goes first, so none waits for more than one step of each
 * other, however slow one is. A step that moved a full portion is due again at once; promotion runs
 * more often while there is something to promote. At the start and after a rotation nothing else
 * runs until the ring pointers are synchronised. Why here: time and order are the proxy's; what a
 * step does is the storage's.
 * Invariant: nothing runs before maintenance_start nor after maintenance_stop. A task that failed
 * TASK_FAILURES_MAX times in a row is told (once); whoever is told stops it. Not here: who leads
 * (leader.h).
 */
#ifndef CORE_MAINTENANCE_H
#define CORE_MAINTENANCE_H

#include "base/timers.h"
#include "core/env.h"

enum { TASK_FAILURES_MAX = 3 };

struct maintenance_setup {
    const struct env *env;
    struct timers *timers;
    void (*promoted)(void *ctx); /* jobs became available */
    void *promoted_ctx;
    void (*failed)(void *ctx, enum maintenance_task task, const struct err *err);
    void *failed_ctx;
};

struct maintenance {
    struct maintenance_setup with;
    struct db_call call;
    struct timer timer;
    uint64_t due_us[TASK_COUNT];
    unsigned failures[TASK_COUNT]; /* in a row */
    uint64_t promoted_us;          /* when promotion last moved something */
    bool synced;                   /* the ring pointers say what the ledgers say */
    bool running;
    bool in_flight;
};

void maintenance_init(struct maintenance *maintenance, const struct maintenance_setup *setup);

/* No step may be in flight. */
void maintenance_start(struct maintenance *maintenance);

/* The step in flight, if any, ends as it may. */
void maintenance_stop(struct maintenance *maintenance);

const char *maintenance_task_name(enum maintenance_task task);
uint32_t maintenance_portion(enum maintenance_task task);

#endif
