/* ids: job ids reserved ahead of use, in runs.
 *
 * Why reserve: a flush whose ids are known before it is sent needs no RETURNING and no sequence
 * call per job, and each answer knows its ids. Why forget: after a lost connection or a crash
 * nobody can prove that a block was not given out again, so unused ids are dropped (there are
 * 2^53). And an id is good on the server, and in the schema, that gave it out only: all runs are of
 * one.
 * Invariant: a reservation in flight when ids_forget was called is dropped when it arrives.
 */
#ifndef CORE_IDS_H
#define CORE_IDS_H

#include "base/limits.h"
#include "base/timers.h"
#include "core/env.h"

struct ids {
    const struct env *env;
    struct timers *timers;
    struct db_call call;
    struct timer again;       /* after a failed reservation */
    struct server_run server; /* that gave out the runs */
    struct id_run runs[ID_RUNS_MAX];
    size_t run_count;
    int64_t available;
    unsigned failures;
    bool in_flight;
    bool stale; /* forgotten while in flight */
    /* Told when a reservation failed and none is left. */
    void (*failed)(struct ids *ids, const struct err *err);
};

void ids_init(struct ids *ids, const struct env *env, struct timers *timers,
              void (*failed)(struct ids *ids, const struct err *err));
void ids_stop(struct ids *ids);

/* Takes the next id; 0 when there is none at the moment. */
int64_t ids_take(struct ids *ids);

/* Reserves more when few are left and somebody wants some. */
void ids_want(struct ids *ids);

void ids_forget(struct ids *ids);

#endif
