/* cmd_serve: `awa-proxy serve`, the daemon: wires the event loop, clients, core and the database
 * together.
 *
 * One turn of the loop: callbacks (frames, results) -> database_reap -> core_turn ->
 * database_dispatch -> net_turn. So what came in together shares a transaction, and each client is
 * written to once. SIGTERM or SIGINT: stop listening, answer what is in flight, let workers finish
 * what they hold until drain_timeout, hand back the rest, exit 0. A second signal hands back at
 * once. SIGHUP changes nothing: there is nothing to read again.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "app/answers.h"
#include "app/cmd.h"
#include "app/database.h"
#include "app/dispatch.h"
#include "base/clock.h"
#include "base/conf.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "core/core.h"
#include "net/net.h"

/* The largest ClaimOk, unpacked; args are not copied. */
enum { ANSWER_BYTES_MAX = 2 * 1024 * 1024 };

/* The loop's, the listener's, the control connection's, the standard ones, and some for libraries.
 */
enum {
    OWN_DESCRIPTORS = 24,
    REFUSED_DESCRIPTORS = 64, /* of clients beyond SESSIONS_MAX, while they are told so */
};

enum {
    DRAIN_LAST_MS = 3 * 1000, /* for handing back and saying goodbye, after the drain time-out */
    DRAIN_LOOK_MS = 20,
};

struct server {
    struct conf conf;
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

static void on_closed(void *ctx, uint64_t session)
{
    struct server *server = ctx;
    session_vanished(&server->core.sessions, session);
}

/* ---- the database ---- */

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

    if (server->ready)
        return;
    server->ready = true;
    fprintf(stderr, "ready listen=%s database=%s schema=%s\n", server->conf.listen,
            server->database_name, server->conf.schema);
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
    uint64_t patience_us = (uint64_t)server->conf.drain_timeout_ms * US_PER_MS;

    if (server->forced_us == 0 && now_us >= server->drain_since_us + patience_us)
        server->forced_us = now_us;
    sessions_drain(&server->core.sessions, server->forced_us != 0);
    bool late =
        server->forced_us != 0 && now_us >= server->forced_us + (uint64_t)DRAIN_LAST_MS * US_PER_MS;
    if (late || is_drained(server)) {
        loop_stop(server->loop);
        return;
    }
    loop_timer_set(server->drain_timer, now_us + (uint64_t)DRAIN_LOOK_MS * US_PER_MS);
}

static void on_stop_signal(void *ctx)
{
    struct server *server = ctx;

    if (server->drain_since_us == 0) {
        log_event(LOG_INFO, "draining", "sessions=%zu timeout_ms=%u", net_count(server->net),
                  server->conf.drain_timeout_ms);
        server->drain_since_us = clock_mono_us();
        net_stop_listening(server->net);
        leader_drain(&server->core.leader);
    } else if (server->forced_us == 0) {
        server->forced_us = clock_mono_us();
    }
    look_at_drain(server);
}

static void on_hangup(void *ctx)
{
    (void)ctx;
    log_event(LOG_INFO, "hangup_ignored", "signal=SIGHUP");
}

/* ---- wiring ---- */

static void init_core(struct server *server)
{
    const struct conf *conf = &server->conf;
    struct core_setup setup = {.claim_batch_size = conf->claim_batch_size,
                               .enqueue_batch_size = conf->enqueue_batch_size,
                               .completion_batch_size = conf->completion_batch_size,
                               .completion_shards = conf->completion_shards,
                               .flush_us = (uint64_t)conf->completion_flush_ms * US_PER_MS,
                               .session_grace_us = (uint64_t)conf->session_grace_ms * US_PER_MS,
                               .poll_min_us = (uint64_t)conf->poll_min_ms * US_PER_MS,
                               .poll_max_us = (uint64_t)conf->poll_max_ms * US_PER_MS,
                               .claims_in_flight_max = conf->pool_size,
                               .unknown_max_us =
                                   (uint64_t)conf->instance_missing_ms * US_PER_MS / 2,
                               .joined = on_joined,
                               .joined_ctx = server};

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
    struct net_handlers net = {server, on_opened, on_frame, on_broken, on_closed};
    struct database_handlers database = {server, on_control_up, on_control_lost, on_data_lost,
                                         on_notified};

    rng_init(&server->rng);
    arena_init(&server->scratch, ANSWER_BYTES_MAX);
    server->net = net_new(server->loop, &net, clients_max(&server->conf));
    server->database = database_new(server->loop, &server->rng, &server->conf, &database);
    init_core(server);
    loop_add_hook(server->loop, turn_reap, server);
    loop_add_hook(server->loop, turn_core, server);
    loop_add_hook(server->loop, turn_dispatch, server);
    loop_add_hook(server->loop, turn_net, server);
    server->core_timer = loop_timer_new(server->loop, on_core_time, server);
    server->drain_timer = loop_timer_new(server->loop, look_at_drain, server);
    server->sigterm = loop_signal_new(server->loop, SIGTERM, on_stop_signal, server);
    server->sigint = loop_signal_new(server->loop, SIGINT, on_stop_signal, server);
    server->sighup = loop_signal_new(server->loop, SIGHUP, on_hangup, server);
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
    loop_timer_free(server->core_timer);
    loop_timer_free(server->drain_timer);
    arena_free(&server->scratch);
}

static int serve(struct server *server)
{
    struct err err;

    init_server(server);
    if (net_listen(server->net, server->conf.listen, &err) != CODE_OK) {
        fprintf(stderr, "awa-proxy: %s\n", err.message);
        free_server(server);
        return CMD_FAILED;
    }
    loop_run(server->loop);
    bool clean = is_drained(server);
    log_event(LOG_INFO, "stopped", "clean=%s", clean ? "yes" : "no");
    if (clean) /* otherwise calls are still under way, and the process ends with them */
        free_server(server);
    return CMD_DONE;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

int cmd_serve(int argc, char **argv)
{
    struct server *server = NULL;
    struct conf conf;
    struct err err;

    if (asks_for_help(argc, argv)) {
        printf("usage: awa-proxy serve [options]\n\nMakes Postgres a job queue for clients on a "
               "Unix socket.\n\n");
        conf_print_help(stdout);
        return CMD_DONE;
    }
    if (conf_load(&conf, argc, argv, getenv, &err) != CODE_OK) {
        fprintf(stderr, "awa-proxy serve: %s\n", err.message);
        return CMD_MISUSED;
    }
    if (conf.database_url[0] == '\0') {
        fprintf(stderr, "awa-proxy serve: no database: set AWA_DATABASE_URL or --database\n");
        return CMD_MISUSED;
    }
    server = mem_zalloc(sizeof *server);
    server->conf = conf;
    server->loop = loop_new();
    if (server->loop == NULL) {
        fprintf(stderr, "awa-proxy serve: no event loop\n");
        mem_free(server);
        return CMD_FAILED;
    }
    int status = serve(server);
    loop_free(server->loop);
    mem_free(server);
    return status;
}
