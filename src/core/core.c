/* core: see core.h. */
#include "core/core.h"

#include "base/mem.h"

static void take(void *ctx, struct session *session, struct request *request)
{
    struct core *core = ctx;

    switch (request->kind) {
    case REQUEST_ENQUEUE: enqueuer_take(&core->enqueuer, request); return;
    case REQUEST_CLAIM: broker_take(&core->broker, session, request); return;
    case REQUEST_FINISH:
    case REQUEST_RELEASE: finisher_take(&core->finisher, request); return;
    case REQUEST_COUNTS: counter_take(&core->counter, request); return;
    case REQUEST_HELLO:
    case REQUEST_PING:
    case REQUEST_GOODBYE:
    case REQUEST_HEARTBEAT:
    case REQUEST_CANCEL: break;
    }
    UNREACHABLE("the session's own");
}

static void end_claims(void *ctx, struct session *session)
{
    struct core *core = ctx;
    broker_end_claims(&core->broker, session);
}

static void end_claim(void *ctx, struct request *request)
{
    struct core *core = ctx;
    broker_end_claim(&core->broker, request);
}

static void pace(void *ctx, struct session *session)
{
    (void)ctx;
    broker_pace(session);
}

static void forget(void *ctx, struct request *request)
{
    struct core *core = ctx;

    switch (request->kind) {
    case REQUEST_ENQUEUE: enqueuer_forget(&core->enqueuer, request); return;
    case REQUEST_FINISH:
    case REQUEST_RELEASE: finisher_forget(&core->finisher, request); return;
    case REQUEST_COUNTS: counter_forget(&core->counter, request); return;
    case REQUEST_CLAIM:
    case REQUEST_HELLO:
    case REQUEST_PING:
    case REQUEST_GOODBYE:
    case REQUEST_HEARTBEAT:
    case REQUEST_CANCEL: break;
    }
    UNREACHABLE("nobody works on it any more");
}

static void on_handed_back(void *ctx, handle session, size_t released)
{
    struct core *core = ctx;
    sessions_handed_back(&core->sessions, session, released);
}

/* What is just being ended is only let go: its own outcome decides. */
static void hand_back(void *ctx, struct list *attempts, enum job_outcome as, handle tell)
{
    struct core *core = ctx;
    struct hand_back back = {.as = as, .session = tell};
    struct receipt *receipts = mem_alloc(attempts->count * sizeof *receipts);
    size_t count = 0;

    while (attempts->first != NULL) {
        struct attempt *attempt = CONTAINER_OF(attempts->first, struct attempt, node);
        if (attempt->endings > 0) {
            attempt_orphan(attempt, as);
            continue;
        }
        receipts[count++] = attempt->receipt;
        attempts_end(&core->attempts, attempt);
    }
    if (tell != HANDLE_NONE) {
        back.told = on_handed_back;
        back.ctx = core;
    }
    if (count > 0 || tell != HANDLE_NONE)
        finisher_hand_back(&core->finisher, receipts, count, back);
    mem_free(receipts);
}

static void on_committed(void *ctx, struct bytes queue)
{
    struct core *core = ctx;
    broker_wake(&core->broker, queue);
    news_committed(&core->news, queue);
}

static void on_available(void *ctx)
{
    struct core *core = ctx;
    broker_wake_all(&core->broker);
}

/* What was announced while nobody listened is found by asking. */
static void on_joined(void *ctx)
{
    struct core *core = ctx;
    news_connected(&core->news, true);
    broker_wake_all(&core->broker);
    core->joined(core->joined_ctx);
}

static void init_finisher(struct core *core, const struct core_setup *setup)
{
    struct finisher_setup with = {.env = core->env,
                                  .timers = &core->timers,
                                  .attempts = &core->attempts,
                                  .sessions = &core->sessions,
                                  .shard_count = setup->completion_shards,
                                  .items_max = setup->completion_batch_size,
                                  .flush_us = setup->flush_us,
                                  .released = on_available,
                                  .released_ctx = core};
    finisher_init(&core->finisher, &with);
}

static void init_enqueuer(struct core *core, const struct core_setup *setup)
{
    struct enqueuer_setup with = {.env = core->env,
                                  .timers = &core->timers,
                                  .sessions = &core->sessions,
                                  .items_max = setup->enqueue_batch_size,
                                  .flush_us = setup->flush_us,
                                  .committed = on_committed,
                                  .committed_ctx = core};
    enqueuer_init(&core->enqueuer, &with);
}

static void init_broker(struct core *core, const struct core_setup *setup)
{
    struct broker_setup with = {.env = core->env,
                                .timers = &core->timers,
                                .sessions = &core->sessions,
                                .attempts = &core->attempts,
                                .finisher = &core->finisher,
                                .jobs_max = (uint32_t)setup->claim_batch_size,
                                .calls_max = setup->claims_in_flight_max,
                                .poll_min_us = setup->poll_min_us,
                                .poll_max_us = setup->poll_max_us};
    broker_init(&core->broker, &with);
}

void core_init(struct core *core, const struct env *env, const struct core_setup *setup)
{
    struct sessions_setup sessions = {
        .env = env,
        .timers = &core->timers,
        .attempts = &core->attempts,
        .handlers = {core, take, end_claims, end_claim, pace, forget, hand_back},
        .grace_us = setup->session_grace_us};
    struct leader_setup leader = {.env = env,
                                  .timers = &core->timers,
                                  .joined = on_joined,
                                  .promoted = on_available,
                                  .ctx = core};

    *core = (struct core){.env = env,
                          .counter = {.env = env, .sessions = &core->sessions},
                          .unknown_max_us = setup->unknown_max_us,
                          .joined = setup->joined,
                          .joined_ctx = setup->joined_ctx};
    timers_init(&core->timers);
    attempts_init(&core->attempts, env->random_u64(env->ctx));
    sessions_init(&core->sessions, &sessions);
    init_finisher(core, setup);
    init_enqueuer(core, setup);
    init_broker(core, setup);
    leader_init(&core->leader, &leader);
    news_init(&core->news, env, &core->timers, &core->broker);
}

void core_configure(struct core *core, const struct core_setup *setup)
{
    struct broker_setup broker = {.jobs_max = (uint32_t)setup->claim_batch_size,
                                  .poll_min_us = setup->poll_min_us,
                                  .poll_max_us = setup->poll_max_us};

    finisher_configure(&core->finisher, setup->completion_batch_size, setup->flush_us);
    enqueuer_configure(&core->enqueuer, setup->enqueue_batch_size, setup->flush_us);
    broker_configure(&core->broker, &broker);
}

void core_free(struct core *core)
{
    leader_stop(&core->leader);
    news_stop(&core->news);
    broker_free(&core->broker);
    enqueuer_free(&core->enqueuer);
    finisher_free(&core->finisher);
    sessions_free(&core->sessions);
    attempts_free(&core->attempts);
    timers_free(&core->timers);
}

/* Claims by an instance that the others take for dead would be rescued as soon as they are made,
 * and run twice. */
static void turn_broker(struct core *core)
{
    struct err err;

    if (leader_unknown_us(&core->leader) <= core->unknown_max_us) {
        broker_turn(&core->broker);
        return;
    }
    const struct err *why = &core->leader.why;
    err_set(&err, CODE_UNAVAILABLE,
            "the proxy has no control connection to Postgres: it claims nothing%s%s",
            why->code != CODE_OK ? ": " : "", why->message);
    err_set_sqlstate(&err, why->sqlstate);
    broker_refuse(&core->broker, &err);
}

/* Finishes first: what ends makes room for what is claimed. */
void core_turn(struct core *core)
{
    timers_run(&core->timers, core->env->now_us(core->env->ctx));
    finisher_turn(&core->finisher);
    news_turn(&core->news);
    turn_broker(core);
    enqueuer_turn(&core->enqueuer);
}

uint64_t core_next_us(const struct core *core)
{
    return timers_next_us(&core->timers);
}

void core_database_lost(struct core *core)
{
    enqueuer_forget_ids(&core->enqueuer);
}

void core_control_up(struct core *core)
{
    leader_up(&core->leader);
}

void core_control_lost(struct core *core)
{
    news_connected(&core->news, false);
    leader_lost(&core->leader);
}

void core_notified(struct core *core, struct bytes queue)
{
    news_heard(&core->news, queue);
}

struct core_counters core_counters(const struct core *core)
{
    return (struct core_counters){.deadlock_retries = enqueuer_deadlock_retries(&core->enqueuer) +
                                                      finisher_deadlock_retries(&core->finisher),
                                  .unreadable_jobs = core->broker.unreadable_jobs};
}

bool core_is_idle(const struct core *core)
{
    return enqueuer_is_idle(&core->enqueuer) && finisher_is_idle(&core->finisher) &&
           broker_is_idle(&core->broker) && core->counter.in_flight == 0;
}
