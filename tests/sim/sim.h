/* sim: one run of the simulator: core, and a world made of chance around it.
 *
 * What: fake time, a fake database (database.h over storage.h), fake sessions (clients.h), and the
 * book of what was asked, told and committed (ledger.h), all from one seed: the same seed gives the
 * same run. After every turn checks.h looks at everything. Whatever is wrong ends the run through
 * sim_fail. Single-threaded, nothing shared with another run.
 */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "base/arena.h"
#include "clients.h"
#include "core/core.h"
#include "database.h"
#include "dice.h"
#include "ledger.h"
#include "plan.h"
#include "storage.h"

struct sim_options {
    uint64_t seed;
    unsigned turns; /* of the busy phase */
    bool trace;
};

struct sim {
    struct sim_options options;
    struct dice dice;
    struct dice core_dice;
    uint64_t now_us;
    uint64_t turn;
    struct plan plan;
    struct arena arena; /* all that lives as long as the run */
    struct env env;
    struct core core;
    struct ledger ledger;
    struct storage storage;
    struct database database;
    struct clients clients;
    bool in_send;  /* core must not be called from env->send */
    bool draining; /* SIGTERM was sent */
    bool calming;  /* the end: no more trouble, no new wishes */
};

/* Plays one seed; returns when all is well. */
void sim_play(const struct sim_options *options);

_Noreturn void sim_fail(const struct sim *sim, const char *format, ...) PRINTF_LIKE(2, 3);
void sim_trace(const struct sim *sim, const char *format, ...) PRINTF_LIKE(2, 3);

/* Zeroed memory that lives as long as the run. */
void *sim_alloc(struct sim *sim, size_t size_bytes);

#endif
