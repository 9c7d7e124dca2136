/* pool: see pool.h. */
#include "pg/pool.h"

#include <string.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

enum {
    WAIT_MS = 5 * 1000,
    TICK_MS = 100, /* deadlines and reconnects are looked at so often, while there are any */
    AGAIN_FIRST_MS = 50,
    AGAIN_DOUBLINGS_MAX = 6,
    PROVEN_MS = 5 * 1000,     /* a connection that lasted so long was a good one */
    SAY_AGAIN_MS = 20 * 1000, /* between two reasons for the same trouble */
};

struct place {
    struct pipe *pipe; /* NULL: closed */
    bool was_ready;
    bool untold;  /* ready, and not in the log: the one before it was let in and then refused */
    bool leaving; /* as soon as it owes nothing; why: pool->leave_err */
    bool retired; /* the same, for its age */
    uint64_t ready_us;
    uint64_t retire_us;
};

struct pool {
    struct pool_setup with;
    struct loop_timer *tick;
    bool tick_set;
    struct list waiting;
    uint64_t again_us; /* no new connection before this time */
    unsigned failures; /* to get a connection that serves, in a row */
    unsigned attempt;  /* which host, and address, the next connection tries first */
    struct lookups *lookups;
    bool pooler_told;
    bool refused; /* the last connection was let in, and then the server refused to work */
    struct err last_err;
    struct err said_err; /* why there was no connection, as logged last, and when */
    uint64_t said_us;
    struct err leave_err;
    struct place places[POOL_SIZE_MAX];
};

static void set_tick(struct pool *pool)
{
    if (pool->tick_set)
        return;
    pool->tick_set = true;
    loop_timer_set(pool->tick, clock_mono_us() + (uint64_t)TICK_MS * US_PER_MS);
}

/* Whether anything has a deadline: a call that waits or runs, a connection that is missing or being
 * made. */
static bool is_waited_for(const struct pool *pool)
{
    bool connected = false;

    for (size_t i = 0; i < pool->with.size; i++) {
        const struct place *place = &pool->places[i];
        if (place->pipe != NULL && (!place->was_ready || pipe_owed(place->pipe) > 0))
            return true;
        connected = connected || place->pipe != NULL;
    }
    return pool->waiting.count > 0 || !connected;
}

static void on_tick(void *ctx)
{
    struct pool *pool = ctx;
    uint64_t now_us = clock_mono_us();

    pool->tick_set = false;
    for (size_t i = 0; i < pool->with.size; i++)
        if (pool->places[i].pipe != NULL)
            pipe_check_deadline(pool->places[i].pipe, now_us);
    if (is_waited_for(pool))
        set_tick(pool);
}

struct pool *pool_new(const struct pool_setup *setup)
{
    struct pool *pool = mem_zalloc(sizeof *pool);

    CHECK(setup->size >= 1 && setup->size <= POOL_SIZE_MAX);
    pool->with = *setup;
    pool->tick = loop_timer_new(setup->loop, on_tick, pool);
    pool->lookups = lookups_new();
    err_set(&pool->last_err, CODE_UNAVAILABLE, "not connected to Postgres yet");
    return pool;
}

/* ---- connections ---- */

static void open_place(struct pool *pool, struct place *place)
{
    struct pipe_setup setup = {.loop = pool->with.loop,
                               .url = pool->with.url,
                               .attempt = pool->attempt,
                               .lookups = pool->lookups,
                               .schema = pool->with.schema,
                               .role = pool->with.role,
                               .params = pool->with.params,
                               .on_notified = pool->with.on_notified,
                               .ctx = pool->with.ctx};
    place->pipe = pipe_new(&setup);
    place->was_ready = false;
    place->untold = false;
    place->leaving = false;
    place->retired = false;
}

/* One at a time: a login costs the server and our loop, and a second one may not be needed. */
static bool is_connecting(const struct pool *pool)
{
    for (size_t i = 0; i < pool->with.size; i++)
        if (pool->places[i].pipe != NULL && !pool->places[i].was_ready)
            return true;
    return false;
}

static void open_another(struct pool *pool)
{
    if (is_connecting(pool) || clock_mono_us() < pool->again_us)
        return;
    for (size_t i = 0; i < pool->with.size; i++) {
        if (pool->places[i].pipe == NULL) {
            open_place(pool, &pool->places[i]);
            return;
        }
    }
}

static bool has_connection(const struct pool *pool)
{
    for (size_t i = 0; i < pool->with.size; i++)
        if (pool->places[i].pipe != NULL)
            return true;
    return false;
}

/* Makes sure that one connection is there or on its way. */
static void open_one(struct pool *pool)
{
    if (!has_connection(pool))
        open_another(pool);
    set_tick(pool);
}

/* Somewhere in the last quarter, so that those that began together do not end together. */
static uint64_t draw_lifetime_us(const struct pool *pool)
{
    uint64_t longest_us = (uint64_t)pool->with.lifetime_ms * US_PER_MS;

    return longest_us - rng_u64(pool->with.rng) % (longest_us / 4);
}

/* Session pooling would do, so this is no error; but who pools transactions gets failures that look
 * like anything else. */
static void warn_of_pooler(struct pool *pool, const struct place *place)
{
    if (pool->pooler_told || !pipe_is_pooled(place->pipe))
        return;
    pool->pooler_told = true;
    log_event(LOG_WARN, "pg_pooler",
              "pool=%s reason=\"a connection pooler stands between: one that"
              " pools transactions breaks prepared statements and locks, connect directly\"",
              pool->with.name);
}

static void tell_ready(struct pool *pool, struct place *place)
{
    place->untold = false;
    log_event(LOG_INFO, "pg_connected", "pool=%s pid=%d", pool->with.name,
              (int)pipe_backend(place->pipe)->pid);
}

/* What the newest connection has found is so: after a failover, or where the schema was made anew,
 * the older ones lead to what was before. What was learned of that goes with them, at once, even
 * where one of them is stalled and goes late. */
static void leave_former_server(struct pool *pool, const struct place *newest)
{
    const struct server_run *now = &pipe_backend(newest->pipe)->server;
    bool found = false;

    for (size_t i = 0; i < pool->with.size; i++) {
        struct place *place = &pool->places[i];
        if (!place->was_ready || place->leaving || pipe_state(place->pipe) == PIPE_BROKEN ||
            server_run_equal(&pipe_backend(place->pipe)->server, now))
            continue;
        place->leaving = true;
        found = true;
    }
    if (!found)
        return;
    err_set(&pool->leave_err, CODE_UNAVAILABLE, "the server, or the schema, is not the one it was");
    loop_again(pool->with.loop); /* those that owe nothing go at once */
    if (pool->with.on_lost != NULL)
        pool->with.on_lost(pool->with.ctx);
}

static void note_ready(struct pool *pool, struct place *place)
{
    leave_former_server(pool, place);
    place->was_ready = true;
    place->ready_us = clock_mono_us();
    place->retire_us =
        pool->with.lifetime_ms > 0 ? place->ready_us + draw_lifetime_us(pool) : UINT64_MAX;
    warn_of_pooler(pool, place);
    err_set(&pool->last_err, CODE_UNAVAILABLE, "all connections to Postgres are busy");
    place->untold = pool->refused;
    if (!place->untold)
        tell_ready(pool, place);
    if (pool->with.on_up != NULL)
        pool->with.on_up(pool->with.ctx, pipe_database(place->pipe));
}

static bool is_proven(const struct place *place)
{
    return place->was_ready && clock_mono_us() >= place->ready_us + (uint64_t)PROVEN_MS * US_PER_MS;
}

/* A retired connection may still be lost before its last answer. */
static bool is_retirement(const struct place *place)
{
    return place->retired && pipe_owed(place->pipe) == 0;
}

/* Once, not per try; but what hinders now may be another thing than what did at first. */
static bool is_to_say(const struct pool *pool, const struct err *err)
{
    bool is_other = strcmp(err->sqlstate, pool->said_err.sqlstate) != 0 ||
                    strcmp(err->message, pool->said_err.message) != 0;
    uint64_t again_us = pool->said_us + (uint64_t)SAY_AGAIN_MS * US_PER_MS;

    return pool->failures == 0 || (is_other && clock_mono_us() >= again_us);
}

static void log_connect_failed(struct pool *pool, const struct err *err)
{
    char text[ERR_MESSAGE_BYTES];

    log_event(LOG_WARN, "pg_connect_failed", "pool=%s sqlstate=%s reason=\"%s\"", pool->with.name,
              err->sqlstate, log_text(text, sizeof text, err->message));
}

static void log_loss(struct pool *pool, const struct place *place, const struct err *err)
{
    char text[ERR_MESSAGE_BYTES];

    if (is_retirement(place)) {
        log_event(LOG_INFO, "pg_retired", "pool=%s pid=%d", pool->with.name,
                  (int)pipe_backend(place->pipe)->pid);
        return;
    }
    if ((!place->was_ready || place->untold) && !is_to_say(pool, err))
        return;
    pool->said_err = *err;
    pool->said_us = clock_mono_us();
    if (place->was_ready)
        log_event(LOG_WARN, "pg_lost", "pool=%s pid=%d sqlstate=%s reason=\"%s\"", pool->with.name,
                  (int)pipe_backend(place->pipe)->pid, err->sqlstate,
                  log_text(text, sizeof text, err->message));
    else
        log_connect_failed(pool, err);
}

static void back_off(struct pool *pool)
{
    unsigned doublings =
        pool->failures < AGAIN_DOUBLINGS_MAX ? pool->failures : AGAIN_DOUBLINGS_MAX;
    uint64_t pause_us = (uint64_t)AGAIN_FIRST_MS * US_PER_MS << doublings;

    pool->failures++;
    pool->again_us = clock_mono_us() + pause_us / 2 + rng_u64(pool->with.rng) % pause_us;
}

/* Whether the next connection would fare no better: this one could not be made, or the server lets
 * us in and then refuses to work (it is read only, say). */
static bool is_hopeless(const struct place *place, const struct err *err)
{
    bool is_former =
        strcmp(err->sqlstate, SQLSTATE_OTHER_SCHEMA) == 0 && (place->leaving || is_proven(place));

    return !place->was_ready ||
           (err->sqlstate[0] != '\0' && !is_former && strncmp(err->sqlstate, "57P", 3) != 0);
}

/* It is so of all connections to that server. */
static bool is_useless(const struct err *err)
{
    return strcmp(err->sqlstate, "25006") == 0 || strcmp(err->sqlstate, SQLSTATE_OTHER_SCHEMA) == 0;
}

static void note_failure(struct pool *pool, const struct place *place, const struct err *err)
{
    if (is_proven(place))
        pool->failures = 0;
    pool->refused = place->was_ready && is_hopeless(place, err) && !is_proven(place);
    if (is_hopeless(place, err))
        back_off(pool);
    if (!place->was_ready)
        pool->attempt++;
}

static void fail_waiting(struct pool *pool, uint64_t since_us)
{
    struct pipe_result result = {.outcome = OUTCOME_NOT_DONE, .err = pool->last_err};

    while (pool->waiting.first != NULL) {
        struct pipe_call *call = CONTAINER_OF(pool->waiting.first, struct pipe_call, node);
        if (call->since_us > since_us)
            return;
        list_remove(&pool->waiting, &call->node);
        call->done(call, &result);
    }
}

/* Where the calls are bound to the connection, they fail with it next. */
static void replay(struct pool *pool, struct pipe *pipe)
{
    for (struct pipe_call *call; (call = pipe_take_replay(pipe)) != NULL;) {
        pool_submit(pool, call);
        call->replayed = true;
    }
}

static void bury(struct pool *pool, struct place *place)
{
    struct pipe *pipe = place->pipe;
    bool was_ready = place->was_ready;
    bool was_leaving = place->leaving;

    log_loss(pool, place, pipe_err(pipe));
    if (!is_retirement(place)) {
        pool->last_err = *pipe_err(pipe);
        note_failure(pool, place, &pool->last_err);
    }
    place->pipe = NULL;
    place->was_ready = false;
    if (was_ready && pool->with.on_lost != NULL)
        pool->with.on_lost(pool->with.ctx);
    pipe_fail_owed(pipe);
    replay(pool, pipe);
    if (pool->with.bound)
        fail_waiting(pool, UINT64_MAX);
    if (was_ready && is_useless(pipe_err(pipe)) && !was_leaving)
        pool->with.on_useless(pool->with.ctx, pipe_err(pipe), &pipe_backend(pipe)->server);
    pipe_free(pipe);
}

/* A connection that is still being made may yet turn out to lead there. */
static bool leads_to(const struct place *place, const struct server_run *server)
{
    return place->pipe != NULL && (server == NULL || !place->was_ready ||
                                   server_run_equal(&pipe_backend(place->pipe)->server, server));
}

void pool_leave(struct pool *pool, const struct err *why, const struct server_run *server)
{
    pool->leave_err = *why;
    for (size_t i = 0; i < pool->with.size; i++)
        if (leads_to(&pool->places[i], server))
            pool->places[i].leaving = true;
    loop_again(pool->with.loop);
}

static bool may_leave(const struct pool *pool, const struct place *place)
{
    return place->leaving && (pool->with.bound || pipe_owed(place->pipe) == 0);
}

static bool is_usable(const struct place *place)
{
    return place->was_ready && !place->leaving && !place->retired &&
           pipe_state(place->pipe) == PIPE_READY;
}

/* Opens a successor before it lets go, where there is room for one. */
static void retire_oldest(struct pool *pool)
{
    struct place *oldest = NULL;
    size_t usable = 0;

    for (size_t i = 0; i < pool->with.size; i++) {
        struct place *place = &pool->places[i];
        if (place->pipe != NULL && place->retired)
            return; /* one at a time */
        if (place->pipe == NULL || !is_usable(place))
            continue;
        usable++;
        if (oldest == NULL || place->retire_us < oldest->retire_us)
            oldest = place;
    }
    if (oldest == NULL || clock_mono_us() < oldest->retire_us)
        return;
    if (usable > 1 || pool->with.size == 1)
        oldest->retired = true;
    else
        open_another(pool);
}

static void break_retired(struct place *place)
{
    struct err err;

    err_set(&err, CODE_UNAVAILABLE, "the connection to Postgres has reached its age");
    pipe_break(place->pipe, &err);
}

void pool_reap(struct pool *pool)
{
    uint64_t wait_us = (uint64_t)WAIT_MS * US_PER_MS;

    retire_oldest(pool);
    for (size_t i = 0; i < pool->with.size; i++) {
        struct place *place = &pool->places[i];
        if (place->pipe == NULL)
            continue;
        if (may_leave(pool, place))
            pipe_break(place->pipe, &pool->leave_err);
        else if (is_retirement(place))
            break_retired(place);
        if (pipe_state(place->pipe) == PIPE_BROKEN)
            bury(pool, place);
        else if (pipe_state(place->pipe) == PIPE_READY && !place->was_ready)
            note_ready(pool, place);
        else if (place->untold && is_proven(place))
            tell_ready(pool, place);
    }
    if (pool->waiting.count > 0)
        fail_waiting(pool, clock_mono_us() - wait_us);
    if (!has_connection(pool))
        open_one(pool); /* the first is kept, so that what comes next finds it */
}

/* ---- calls ---- */

void pool_submit(struct pool *pool, struct pipe_call *call)
{
    call->since_us = clock_mono_us();
    call->replayed = false;
    list_push_back(&pool->waiting, &call->node);
}

unsigned pool_idle(const struct pool *pool)
{
    unsigned idle = 0;

    for (size_t i = 0; i < pool->with.size; i++) {
        const struct place *place = &pool->places[i];
        idle += is_usable(place) && pipe_owed(place->pipe) == 0;
    }
    return idle > pool->waiting.count ? idle - (unsigned)pool->waiting.count : 0;
}

bool pool_has_backend(const struct pool *pool, int pid)
{
    for (size_t i = 0; i < pool->with.size; i++)
        if (pool->places[i].was_ready && (int)pipe_backend(pool->places[i].pipe)->pid == pid)
            return true;
    return false;
}

size_t pool_running(const struct pool *pool)
{
    size_t running = pool->waiting.count;

    for (size_t i = 0; i < pool->with.size; i++)
        running += pool->places[i].pipe != NULL ? pipe_owed(pool->places[i].pipe) : 0;
    return running;
}

/* The ready connection that owes least; NULL when none has room. */
static struct pipe *least_busy(const struct pool *pool)
{
    struct pipe *best = NULL;

    for (size_t i = 0; i < pool->with.size; i++) {
        struct pipe *pipe = pool->places[i].pipe;
        if (!is_usable(&pool->places[i]))
            continue;
        if (best == NULL || pipe_owed(pipe) < pipe_owed(best))
            best = pipe;
    }
    return best != NULL && pipe_owed(best) < PIPE_SEGMENTS_MAX ? best : NULL;
}

void pool_dispatch(struct pool *pool)
{
    if (pool->waiting.count > 0)
        set_tick(pool); /* for the deadlines of what waits and runs */
    while (pool->waiting.count > 0) {
        struct pipe *pipe = least_busy(pool);
        if (pipe == NULL || pipe_owed(pipe) > 0)
            open_another(pool);
        if (pipe == NULL)
            break;
        struct list_node *node = list_pop_front(&pool->waiting);
        pipe_send(pipe, CONTAINER_OF(node, struct pipe_call, node));
    }
}

void pool_free(struct pool *pool)
{
    fail_waiting(pool, UINT64_MAX);
    for (size_t i = 0; i < pool->with.size; i++) {
        struct pipe *pipe = pool->places[i].pipe;
        if (pipe == NULL)
            continue;
        CHECK(pipe_owed(pipe) == 0);
        pipe_free(pipe);
    }
    lookups_free(pool->lookups);
    loop_timer_free(pool->tick);
    mem_free(pool);
}
