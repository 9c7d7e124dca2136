/* sim: see sim.h. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "checks.h"

enum {
    COALESCE_US = 300,       /* what is due so soon after may share the turn */
    CALM_TURNS_MAX = 200000, /* of each phase of the end, without progress */
    LAST_TURNS_MAX = 1000,
    DRAIN_LOOK_US = 20 * US_PER_MS,
    DRAIN_FORCE_US_MAX = 30 * US_PER_S,
    ARENA_BYTES_MAX = 1024 * 1024 * 1024,
};

void sim_fail(const struct sim *sim, const char *format, ...)
{
    va_list args;

    printf("seed %llu: turn %llu, %.6f s: ", (unsigned long long)sim->options.seed,
           (unsigned long long)sim->turn, (double)sim->now_us / US_PER_S);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

void sim_trace(const struct sim *sim, const char *format, ...)
{
    va_list args;

    if (!sim->options.trace)
        return;
    printf("%12.6f  ", (double)sim->now_us / US_PER_S);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

void *sim_alloc(struct sim *sim, size_t size_bytes)
{
    void *memory = arena_zalloc(&sim->arena, size_bytes + 1);
    CHECK(memory != NULL);
    return memory;
}

/* ---- core's environment ---- */

static uint64_t env_now_us(void *ctx)
{
    return ((struct sim *)ctx)->now_us;
}

static uint64_t env_random_u64(void *ctx)
{
    return dice_u64(&((struct sim *)ctx)->core_dice);
}

static void env_submit(void *ctx, struct db_call *call)
{
    database_submit(ctx, call);
}

static unsigned env_idle_connections(void *ctx)
{
    return database_idle(ctx);
}

static void env_drop_control(void *ctx, const struct err *why)
{
    database_drop_control(ctx, why);
}

static void on_joined(void *ctx)
{
    sim_trace(ctx, "core has joined");
}

static uint64_t env_send(void *ctx, handle connection, uint64_t request_id,
                         const struct answer *answer)
{
    return clients_send(ctx, connection, request_id, answer);
}

static uint64_t env_written(void *ctx, handle connection)
{
    return clients_written(ctx, connection);
}

static void env_set_reading(void *ctx, handle connection, bool reading)
{
    clients_set_reading(ctx, connection, reading);
}

static void env_close(void *ctx, handle connection)
{
    clients_close(ctx, connection);
}

/* ---- turns ---- */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void advance(struct sim *sim)
{
    uint64_t next_us = core_next_us(&sim->core);

    next_us = earlier(next_us, database_next_us(sim));
    next_us = earlier(next_us, clients_next_us(sim));
    if (next_us == UINT64_MAX)
        sim_fail(sim, "nothing will ever happen again");
    if (next_us > sim->now_us)
        sim->now_us = next_us;
    if (dice_below(&sim->dice, 4) == 0)
        sim->now_us += dice_below(&sim->dice, COALESCE_US);
}

/* One turn of the daemon's loop, as in src/app/server.c. */
static void take_turn(struct sim *sim)
{
    advance(sim);
    sim->turn++;
    database_step(sim);
    clients_step(sim);
    if (!sim->calming && dice_permille(&sim->dice, sim->plan.reloads)) {
        plan_reload(&sim->plan, &sim->dice);
        core_configure(&sim->core, &sim->plan.core);
    }
    if (!sim->calming && dice_permille(&sim->dice, sim->plan.strangers))
        storage_be_used_by_strangers(sim);
    core_turn(&sim->core);
    database_dispatch(sim);
    check_turn(sim);
}

/* ---- phases ---- */

static void set_up(struct sim *sim, const struct sim_options *options)
{
    *sim = (struct sim){.options = *options, .now_us = US_PER_S};
    sim->dice.state = options->seed;
    sim->core_dice.state = ~options->seed;
    arena_init(&sim->arena, ARENA_BYTES_MAX);
    plan_draw(&sim->plan, &sim->dice);
    sim->plan.core.joined = on_joined;
    sim->plan.core.joined_ctx = sim;
    sim->database.unregistered_us = sim->now_us;
    sim->env = (struct env){.ctx = sim,
                            .now_us = env_now_us,
                            .random_u64 = env_random_u64,
                            .submit = env_submit,
                            .idle_connections = env_idle_connections,
                            .drop_control = env_drop_control,
                            .send = env_send,
                            .written = env_written,
                            .set_reading = env_set_reading,
                            .close = env_close};
    storage_init(sim);
    database_init(sim);
    clients_init(sim);
    core_init(&sim->core, &sim->env, &sim->plan.core);
}

/* For a loop that must come to its end: a limit of turns without progress. */
struct patience {
    size_t left; /* of what must come to nothing */
    unsigned turns;
};

static void try_patience(const struct sim *sim, struct patience *patience, size_t left,
                         const char *what)
{
    if (left < patience->left)
        patience->turns = 0;
    patience->left = left;
    if (++patience->turns > CALM_TURNS_MAX)
        sim_fail(sim, "%s: %zu are left, and it does not go on", what, left);
}

/* SIGTERM, and after a while no more patience, and then no more trouble. */
static void drain(struct sim *sim)
{
    uint64_t force_us = sim->now_us + dice_below(&sim->dice, DRAIN_FORCE_US_MAX);
    uint64_t calm_us = force_us + DRAIN_FORCE_US_MAX;
    uint64_t look_us = sim->now_us;
    struct patience patience = {0, 0};

    sim_trace(sim, "SIGTERM");
    sim->draining = true;
    leader_drain(&sim->core.leader);
    while (clients_count(sim) > 0) {
        try_patience(sim, &patience, clients_count(sim) + clients_asked(sim),
                     "clients and requests of a drain");
        sim->calming = sim->now_us >= calm_us;
        if (sim->now_us >= look_us) {
            sessions_drain(&sim->core.sessions, sim->now_us >= force_us);
            look_us = sim->now_us + DRAIN_LOOK_US;
        }
        take_turn(sim);
    }
}

/* Nobody wishes anything any more: all that was asked must be answered. */
static void wait_for_answers(struct sim *sim)
{
    sim_trace(sim, "nobody asks for more");
    sim->calming = true;
    sim->clients.resting = true;
    for (struct patience patience = {0, 0}; clients_asked(sim) > 0; take_turn(sim))
        try_patience(sim, &patience, clients_asked(sim), "requests without an answer");
}

static void let_all_go(struct sim *sim)
{
    sim_trace(sim, "everybody leaves");
    sim->clients.resting = false;
    sim->clients.leaving = true;
    struct patience patience = {0, 0};
    while (clients_count(sim) > 0 || !core_is_idle(&sim->core) || !database_is_idle(sim) ||
           sim->core.sessions.table.count > 0) {
        try_patience(sim, &patience, sim->storage.open.count, "attempts when all have gone");
        take_turn(sim);
    }
    check_quiet(sim);
}

/* One worker takes and completes all that is there, through a proxy that has seen all that. */
static void sweep(struct sim *sim)
{
    sim_trace(sim, "one worker for all that is left: %zu jobs", storage_unfinished(sim));
    storage_make_all_due(sim);
    sim->clients.leaving = false;
    sim->clients.sweeping = true;
    for (struct patience patience = {0, 0}; storage_unfinished(sim) > 0; take_turn(sim))
        try_patience(sim, &patience, storage_unfinished(sim), "jobs that are never handed out");
    wait_for_answers(sim);
    let_all_go(sim);
}

/* The last session goes; then the timers that are set run out, and none sets itself again. */
static void end_control(struct sim *sim)
{
    database_end_control(sim);
    ids_stop(&sim->core.enqueuer.ids); /* as core_free does */
    for (unsigned turns = 0; turns < LAST_TURNS_MAX && sim->core.timers.count > 0; turns++)
        take_turn(sim);
}

static void tear_down(struct sim *sim)
{
    core_free(&sim->core);
    clients_free(sim);
    database_free(sim);
    storage_free(sim);
    ledger_free(&sim->ledger);
    arena_free(&sim->arena);
}

void sim_play(const struct sim_options *options)
{
    static struct sim sim; /* large, and core must not move */

    set_up(&sim, options);
    while (sim.turn < options->turns)
        take_turn(&sim);
    if (sim.plan.drains)
        drain(&sim);
    wait_for_answers(&sim);
    let_all_go(&sim);
    if (!sim.draining)
        sweep(&sim);
    end_control(&sim);
    check_end(&sim);
    tear_down(&sim);
}
