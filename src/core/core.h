/* core: the proxy's logic as one object: sessions, broker, finisher, enqueuer, counter,
 * leader, wired to each other and to the outside through struct env.
 *
 * How to drive it: feed it what happens (session_open, sessions_take_request, session_caught_up,
 * session_vanished, the done() of database calls, core_database_lost, core_control_up/lost,
 * core_notified), then call core_turn once at the end of the loop turn, so that everything that
 * arrived together shares a flush; sleep until core_next_us at most.
 */
#ifndef CORE_CORE_H
#define CORE_CORE_H

#include "core/broker.h"
#include "core/counter.h"
#include "core/enqueuer.h"
#include "core/finisher.h"
#include "core/leader.h"
#include "core/news.h"
#include "core/session.h"

struct core {
    const struct env *env;
    struct timers timers;
    struct attempts attempts;
    struct sessions sessions;
    struct enqueuer enqueuer;
    struct finisher finisher;
    struct broker broker;
    struct counter counter;
    struct leader leader;
    struct news news;
    uint64_t unknown_max_us;
    void (*joined)(void *ctx);
    void *joined_ctx;
};

struct core_setup {
    size_t claim_batch_size;
    size_t enqueue_batch_size;
    size_t completion_batch_size;
    size_t completion_shards;
    uint64_t flush_us;
    uint64_t session_grace_us;
    uint64_t poll_min_us;
    uint64_t poll_max_us;
    unsigned claims_in_flight_max;
    uint64_t unknown_max_us;   /* claims nothing when others could not see it live for so long */
    void (*joined)(void *ctx); /* the instance was registered, on a new control session */
    void *joined_ctx;
};

/* env must outlive the core; the core must not move (its parts point at each other). */
void core_init(struct core *core, const struct env *env, const struct core_setup *setup);

/* Takes other limits while it runs: batch sizes, flush_us, polling. The rest of setup is not looked
 * at. */
void core_configure(struct core *core, const struct core_setup *setup);

/* Only when core_is_idle and no session is left. */
void core_free(struct core *core);

void core_turn(struct core *core);
uint64_t core_next_us(const struct core *core);

/* A data connection was lost: reserved ids die. */
void core_database_lost(struct core *core);

/* The control session is there, listening; it is lost. */
void core_control_up(struct core *core);
void core_control_lost(struct core *core);

/* Somebody else stored work for this queue. A hint: it may be late, doubled or missing. */
void core_notified(struct core *core, struct bytes queue);

/* Since core_init. */
struct core_counters {
    uint64_t deadlock_retries; /* transactions begun again because they were a deadlock's victim */
    uint64_t unreadable_jobs;
};
struct core_counters core_counters(const struct core *core);

/* Nothing is in flight or waiting, apart from the leader's. */
bool core_is_idle(const struct core *core);

#endif
