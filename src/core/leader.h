/* leader: this proxy's place among the proxies of one database: known, following or leading.
 *
 * What: on each new control session it first registers its instance, so that nobody takes its
 * attempts for those of a dead proxy. Then it tries to become the leader, at once and later every
 * ELECTION_MS with jitter. Only the leader runs maintenance. Whoever follows also looks for stuck
 * backends, which may be the leader's own; these calls keep its session from idling out, so a
 * stopped process loses that session, its instance lock and its leadership.
 * Why the session is all: the locks live in it, and all of a leader's work runs on it. What a
 * membership call that failed has left behind in the session is not known, so the session goes.
 * Resigning: on drain; and when a duty failed for good: a leader does all of them or none. It then
 * stays away for a while, so that another proxy may fare better.
 * Invariants: maintenance runs in LEADING only; at most one call of its own in flight; nothing is
 * asked in DOWN. Not here: when each duty runs (maintenance.h), what locks what (the storage).
 */
#ifndef CORE_LEADER_H
#define CORE_LEADER_H

#include "base/timers.h"
#include "core/env.h"
#include "core/maintenance.h"

enum leader_state {
    LEADER_DOWN,        /* no control session */
    LEADER_REGISTERING, /* nobody knows yet that this instance lives */
    LEADER_FOLLOWING,
    LEADER_LEADING,
    LEADER_RESIGNING, /* works no more, and still holds the lock */
};

struct leader_setup {
    const struct env *env;
    struct timers *timers;
    void (*joined)(void *ctx);   /* the instance is registered, on a new session */
    void (*promoted)(void *ctx); /* jobs became available */
    void *ctx;
};

struct leader {
    struct leader_setup with;
    enum leader_state state;
    struct maintenance maintenance;
    struct db_call call;
    struct timer timer; /* when it asks next; never set while LEADING */
    uint64_t away_until_us;
    uint64_t unknown_since_us; /* not registered since; 0: it is */
    struct err why;            /* the last session was given up; CODE_OK: it serves */
    bool in_flight;
    bool draining;
};

void leader_init(struct leader *leader, const struct leader_setup *setup);
void leader_stop(struct leader *leader); /* before it is freed */

/* The control session is there; it is lost, and with it the leadership. */
void leader_up(struct leader *leader);
void leader_lost(struct leader *leader);

/* Leads no more, now or later. Its instance stays registered. */
void leader_drain(struct leader *leader);

/* For how long others could not see that this instance lives; 0 while they can. */
uint64_t leader_unknown_us(const struct leader *leader);

#endif
