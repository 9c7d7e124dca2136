/* server: see server.h. */
#include "app/server.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "app/answers.h"
#include "app/database.h"
#include "app/dispatch.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "core/core.h"
#include "net/net.h"

/* The largest ClaimOk, unpacked; args are not copied. */
enum { ANSWER_BYTES_MAX = 2 * 1024 * 1024 };

/* The loop's, the listeners', the control connection's, the standard ones, and some for libraries;
 * and in both pools what looks names up, with the resolver's sockets. */
enum {
    OWN_DESCRIPTORS = 22 + 2 * LISTENERS_MAX + 2 * 3 * LOOKUPS_MAX,
    REFUSED_DESCRIPTORS = 64, /* of clients beyond SESSIONS_MAX, while they are told so */
};

enum {
    DRAIN_LAST_MS = 3 * 1000, /* for handing back and saying goodbye, after the drain time-out */
    DRAIN_LOOK_MS = 20,
};

struct server {
    struct settings *settings;
    struct rng rng;
    struct loop *loop;
    struct net *net;
    struct database *database;
    struct env env;
    struct core core;
    struct arena scratch; /* of answers */
    struct loop_timer *core_timer;
    struct loop_timer *drain_timer;
    struct loop_signal *sigterm;
    struct loop_signal *sigint;
    struct loop_signal *sighup;
    struct loop_signal *sigusr1;
    uint64_t started_us;
    uint64_t drain_since_us; /* 0: serving */
    uint64_t forced_us;      /* 0: workers may still finish */
    bool ready;
    char database_name[NAME_BYTES_MAX]; /* for the log */
};

/* ---- core's environment ---- */

static uint64_t env_now_us(void *ctx)
{
    (void)ctx;
    return clock_mono_us();
}

static uint64_t env_random_u64(void *ctx)
{
    struct server *server = ctx;
    return rng_u64(&server->rng);
}

static void env_submit(void *ctx, struct db_call *call)
{
    struct server *server = ctx;
    database_submit(server->database, call);
}

static unsigned env_idle_connections(void *ctx)
{
    const struct server *server = ctx;
    return database_idle(server->database);
}

static void env_drop_control(void *ctx, const struct err *why)
{
    struct server *server = ctx;
    database_drop_control(server->database, why);
}

static uint64_t env_send(void *ctx, handle connection, uint64_t request_id,
                         const struct answer *answer)
{
    struct server *server = ctx;
    struct buf *out = net_output(server->net, connection);

    if (out == NULL)
        return SENT_NOWHERE;
    answer_add(out, &server->scratch, request_id, answer);
    return net_appended(server->net, connection);
}

static uint64_t env_written(void *ctx, handle connection)
{
    const struct server *server = ctx;
    return net_written(server->net, connection);
}

static void env_set_reading(void *ctx, handle connection, bool reading)
{
    struct server *server = ctx;
    net_set_reading(server->net, connection, reading);
}

static void env_close(void *ctx, handle connection)
{
    struct server *server = ctx;
    net_close(server->net, connection);
}

/* ---- clients ---- */

static uint64_t on_opened(void *ctx, handle connection)
{
    struct server *server = ctx;
    handle session = session_open(&server->core.sessions, connection);
    struct answer answer = {.kind = ANSWER_ERROR};
    struct err err;

    if (session == HANDLE_NONE) {
        err_set(&err, CODE_RESOURCE_EXHAUSTED, "%d connections and %d sessions are there already",
                HANDSHAKES_MAX, SESSIONS_MAX);
        answer.of.err = &err;
        env_send(server, connection, 0, &answer);
        net_close(server->net, connection);
    }
    return session;
}

static void on_frame(void *ctx, uint64_t session, struct bytes body)
{
    struct server *server = ctx;
    dispatch_frame(&server->core.sessions, session, body);
}

static void on_broken(void *ctx, uint64_t session, const struct err *why)
{
    struct server *server = ctx;
    session_refuse(&server->core.sessions, session, 0, why);
}

static void on_caught_up(void *ctx, uint64_t session)
{
    struct server *server = ctx;
    session_caught_up(&server->core.sessions, session);
}

static void on_closed(void *ctx, uint64_t session)
{
    struct server *server = ctx;
    session_vanished(&server->core.sessions, session);
}

/* ---- the database ---- */

/* The addresses as they are, separated by commas. */
static void listening_text(const struct server *server, char *out, size_t out_bytes)
{
    const struct address *address = NULL;
    char text[ADDRESS_TEXT_BYTES];
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; (address = net_listening(server->net, i)) != NULL && used < out_bytes; i++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i > 0 ? "," : "",
                                 address_text(address, text));
}

static void on_control_up(void *ctx, const char *database)
{
    struct server *server = ctx;

    snprintf(server->database_name, sizeof server->database_name, "%s", database);
    core_control_up(&server->core);
}

/* The one line that a supervisor waits for. Later reconnects are in the log. */
static void on_joined(void *ctx)
{
    struct server *server = ctx;
    char listening[LISTENERS_MAX * ADDRESS_TEXT_BYTES];
    char name[NAME_BYTES_MAX], schema[NAME_BYTES_MAX];

    if (server->ready)
        return;
    server->ready = true;
    listening_text(server, listening, sizeof listening);
    log_ready("listen=%s database=\"%s\" schema=\"%s\"", listening,
              log_text(name, sizeof name, server->database_name),
              log_text(schema, sizeof schema, server->settings->conf.schema));
}

static void on_control_lost(void *ctx)
{
    struct server *server = ctx;
    core_control_lost(&server->core);
}

static void on_notified(void *ctx, struct bytes queue)
{
    struct server *server = ctx;
    core_notified(&server->core, queue);
}

static void on_data_lost(void *ctx)
{
    struct server *server = ctx;
    core_database_lost(&server->core);
}

/* ---- turns ---- */

static void on_core_time(void *ctx)
{
    (void)ctx; /* it only makes the loop turn */
}

static void turn_core(void *ctx)
{
    struct server *server = ctx;

    core_turn(&server->core);
    uint64_t next_us = core_next_us(&server->core);
    if (next_us == TIMER_NEVER)
        loop_timer_stop(server->core_timer);
    else
        loop_timer_set(server->core_timer, next_us);
}

static void turn_reap(void *ctx)
{
    struct server *server = ctx;
    database_reap(server->database);
}

static void turn_dispatch(void *ctx)
{
    struct server *server = ctx;
    database_dispatch(server->database);
}

static void turn_net(void *ctx)
{
    struct server *server = ctx;
    net_turn(server->net);
}

/* ---- counters ---- */

static void log_counters(void *ctx)
{
    const struct server *server = ctx;
    struct core_counters counters = core_counters(&server->core);
    uint64_t up_us = clock_mono_us() - server->started_us;

    log_make_room();
    log_event(LOG_INFO, "counters", "up_s=%llu deadlock_retries=%llu unreadable_jobs=%llu",
              (unsigned long long)(up_us / US_PER_S), (unsigned long long)counters.deadlock_retries,
              (unsigned long long)counters.unreadable_jobs);
}

/* ---- the end ---- */

static bool is_drained(const struct server *server)
{
    return net_count(server->net) == 0 && core_is_idle(&server->core) &&
           database_running(server->database) == 0;
}

static void look_at_drain(void *ctx)
{
    struct server *server = ctx;
    uint64_t now_us = clock_mono_us();
    uint64_t patience_us = (uint64_t)server->settings->conf.drain_timeout_ms * US_PER_MS;

    if (server->forced_us == 0 && now_us >= server->drain_since_us + patience_us)
        server->forced_us = now_us;
    sessions_drain(&server->core.sessions, server->forced_us != 0);
    loop_timer_set(server->drain_timer, now_us + (uint64_t)DRAIN_LOOK_MS * US_PER_MS);
}

/* The last hook: what this turn has asked of Postgres, a new control session say, is answered
 * before the end. */
static void turn_end(void *ctx)
{
    struct server *server = ctx;
    uint64_t last_us = server->forced_us + (uint64_t)DRAIN_LAST_MS * US_PER_MS;
    bool late = server->forced_us != 0 && clock_mono_us() >= last_us;

    if (server->drain_since_us != 0 && (late || is_drained(server)))
        loop_stop(server->loop);
}

static void on_stop_signal(void *ctx)
{
    struct server *server = ctx;

    if (server->drain_since_us == 0) {
        log_make_room();
        log_event(LOG_INFO, "draining", "sessions=%zu timeout_ms=%u", net_count(server->net),
                  server->settings->conf.drain_timeout_ms);
        server->drain_since_us = clock_mono_us();
        net_stop_listening(server->net);
        leader_drain(&server->core.leader);
    } else if (server->forced_us == 0) {
        server->forced_us = clock_mono_us();
    }
    look_at_drain(server);
}

/* ---- settings ---- */

static struct core_setup core_setup_of(const struct conf *conf)
{
    return (struct core_setup){.claim_batch_size = conf->claim_batch_size,
                               .enqueue_batch_size = conf->enqueue_batch_size,
                               .completion_batch_size = conf->completion_batch_size,
                               .completion_shards = conf->completion_shards,
                               .flush_us = (uint64_t)conf->completion_flush_ms * US_PER_MS,
                               .session_grace_us = (uint64_t)conf->session_grace_ms * US_PER_MS,
                               .poll_min_us = (uint64_t)conf->poll_min_ms * US_PER_MS,
                               .poll_max_us = (uint64_t)conf->poll_max_ms * US_PER_MS,
                               .claims_in_flight_max = conf->pool_size,
                               .unknown_max_us =
                                   (uint64_t)conf->instance_missing_ms * US_PER_MS / 2};
}

static void on_hangup(void *ctx)
{
    struct server *server = ctx;

    if (!settings_reload(server->settings))
        return;
    struct core_setup setup = core_setup_of(&server->settings->conf);
    core_configure(&server->core, &setup);
    database_configure(server->database, &server->settings->conf);
}

/* ---- wiring ---- */

static void init_core(struct server *server)
{
    struct core_setup setup = core_setup_of(&server->settings->conf);

    setup.joined = on_joined;
    setup.joined_ctx = server;
    server->env = (struct env){.ctx = server,
                               .now_us = env_now_us,
                               .random_u64 = env_random_u64,
                               .submit = env_submit,
                               .idle_connections = env_idle_connections,
                               .drop_control = env_drop_control,
                               .send = env_send,
                               .written = env_written,
                               .set_reading = env_set_reading,
                               .close = env_close};
    core_init(&server->core, &server->env, &setup);
}

/* How many clients there are descriptors for: those of the connections to Postgres are kept free,
 * or a lost one could not be replaced while clients hold all others. */
static size_t clients_max(const struct conf *conf)
{
    const rlim_t own = (rlim_t)conf->pool_size + OWN_DESCRIPTORS;
    const rlim_t wanted = SESSIONS_MAX + REFUSED_DESCRIPTORS + own;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return SESSIONS_MAX;
    rlim_t before = limit.rlim_cur;
    if (before < wanted)
        limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (limit.rlim_cur != before && setrlimit(RLIMIT_NOFILE, &limit) != 0)
        limit.rlim_cur = before;
    if (limit.rlim_cur < wanted)
        log_event(LOG_WARN, "few_descriptors", "limit=%llu wanted=%llu",
                  (unsigned long long)limit.rlim_cur, (unsigned long long)wanted);
    return limit.rlim_cur > own ? (size_t)(limit.rlim_cur - own) : 1;
}

static void init_server(struct server *server)
{
    struct net_handlers net = {server, on_opened, on_frame, on_broken, on_caught_up, on_closed};
    struct database_handlers database = {server, on_control_up, on_control_lost, on_data_lost,
                                         on_notified};

    rng_init(&server->rng);
    arena_init(&server->scratch, ANSWER_BYTES_MAX);
    server->net = net_new(server->loop, &net, clients_max(&server->settings->conf));
    server->database = database_new(server->loop, &server->rng, &server->settings->conf, &database);
    init_core(server);
    loop_add_hook(server->loop, turn_reap, server);
    loop_add_hook(server->loop, turn_core, server);
    loop_add_hook(server->loop, turn_dispatch, server);
    loop_add_hook(server->loop, turn_net, server);
    loop_add_hook(server->loop, turn_end, server);
    server->core_timer = loop_timer_new(server->loop, on_core_time, server);
    server->drain_timer = loop_timer_new(server->loop, look_at_drain, server);
    server->sigterm = loop_signal_new(server->loop, SIGTERM, on_stop_signal, server);
    server->sigint = loop_signal_new(server->loop, SIGINT, on_stop_signal, server);
    server->sighup = loop_signal_new(server->loop, SIGHUP, on_hangup, server);
    server->sigusr1 = loop_signal_new(server->loop, SIGUSR1, log_counters, server);
    server->started_us = clock_mono_us();
    signal(SIGPIPE, SIG_IGN); /* libpq writes too */
}

static void free_server(struct server *server)
{
    net_free(server->net);
    core_free(&server->core);
    database_free(server->database);
    loop_signal_free(server->sigterm);
    loop_signal_free(server->sigint);
    loop_signal_free(server->sighup);
    loop_signal_free(server->sigusr1);
    loop_timer_free(server->core_timer);
    loop_timer_free(server->drain_timer);
    arena_free(&server->scratch);
}

static enum code listen_on_all(struct server *server, struct err *err)
{
    enum code code = CODE_OK;

    for (size_t i = 0; i < server->settings->listen_count && code == CODE_OK; i++)
        code = net_listen(server->net, &server->settings->listen[i], err);
    return code;
}

/* Calls are still under way, so their owners can not be freed: each would have to hear an end that
 * nobody knows. The process ends with them, without asking what was left (exit handlers, among them
 * a leak checker, would). */
static _Noreturn void end_process(void)
{
    fflush(NULL);
    _exit(EXIT_SUCCESS);
}

static bool serve(struct server *server)
{
    struct err err;

    init_server(server);
    if (listen_on_all(server, &err) != CODE_OK) {
        fprintf(stderr, "awa-proxy serve: %s\n", err.message);
        free_server(server);
        return false;
    }
    loop_run(server->loop);
    bool clean = is_drained(server);
    log_counters(server);
    log_event(LOG_INFO, "stopped", "clean=%s", clean ? "yes" : "no");
    if (!clean)
        end_process();
    free_server(server);
    return true;
}

bool server_run(struct settings *settings)
{
    struct server *server = mem_zalloc(sizeof *server);
    bool served = false;

    log_set_level((enum log_level)settings->conf.log_level);
    log_set_format((enum log_format)settings->conf.log_format);
    server->settings = settings;
    server->loop = loop_new();
    if (server->loop != NULL) {
        served = serve(server);
        loop_free(server->loop);
    } else {
        fprintf(stderr, "awa-proxy serve: no event loop\n");
    }
    mem_free(server);
    return served;
}
