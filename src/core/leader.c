/* leader: see leader.h. */
#include "core/leader.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"

enum {
    /* Between two tries, plus as much jitter: with the calls themselves below the 5 s after which a
     * control session has to say something (it idles out after 15 s). */
    ELECTION_MS = 2 * 1000,
    REGISTER_AGAIN_MS = 500, /* plus as much jitter */
    AWAY_MS = 5 * 1000,      /* plus as much jitter: each other proxy tries once meanwhile */
};

static const struct env *env_of(const struct leader *leader)
{
    return leader->with.env;
}

static uint64_t now_us(const struct leader *leader)
{
    return env_of(leader)->now_us(env_of(leader)->ctx);
}

static uint64_t jittered_us(const struct leader *leader, uint64_t ms, uint64_t jitter_ms)
{
    uint64_t jitter_us = jitter_ms * US_PER_MS;
    return ms * US_PER_MS + env_of(leader)->random_u64(env_of(leader)->ctx) % jitter_us;
}

static void set_state(struct leader *leader, enum leader_state next)
{
    static const unsigned legal[] = {
        [LEADER_DOWN] = 1u << LEADER_REGISTERING,
        [LEADER_REGISTERING] = 1u << LEADER_FOLLOWING | 1u << LEADER_DOWN,
        [LEADER_FOLLOWING] = 1u << LEADER_LEADING | 1u << LEADER_RESIGNING | 1u << LEADER_DOWN,
        [LEADER_LEADING] = 1u << LEADER_RESIGNING | 1u << LEADER_DOWN,
        [LEADER_RESIGNING] = 1u << LEADER_FOLLOWING | 1u << LEADER_DOWN,
    };

    CHECK((legal[leader->state] & 1u << next) != 0);
    leader->state = next;
}

/* ---- asking ---- */

static void submit(struct leader *leader, enum db_op op)
{
    CHECK(!leader->in_flight && leader->state != LEADER_DOWN);
    leader->in_flight = true;
    leader->call.op = op;
    env_of(leader)->submit(env_of(leader)->ctx, &leader->call);
}

static void ask(struct leader *leader, enum membership what)
{
    leader->call.args.membership = what;
    submit(leader, DB_MEMBERSHIP);
}

static void look_for_stuck(struct leader *leader)
{
    leader->call.args.task = TASK_END_STUCK_BACKENDS;
    submit(leader, DB_MAINTENANCE);
}

static void ask_in(struct leader *leader, uint64_t us)
{
    timer_set(leader->with.timers, &leader->timer, now_us(leader) + us);
}

static void follow(struct leader *leader)
{
    if (leader->draining || now_us(leader) < leader->away_until_us)
        look_for_stuck(leader);
    else
        ask(leader, MEMBER_TRY_LEAD);
}

static void on_timer(struct timer *timer, uint64_t now)
{
    struct leader *leader = CONTAINER_OF(timer, struct leader, timer);

    (void)now;
    if (leader->state == LEADER_REGISTERING)
        ask(leader, MEMBER_REGISTER);
    else
        follow(leader);
}

/* ---- leading, and no more ---- */

static void resign(struct leader *leader)
{
    maintenance_stop(&leader->maintenance);
    set_state(leader, LEADER_RESIGNING);
    ask(leader, MEMBER_RESIGN);
}

static void lead(struct leader *leader)
{
    set_state(leader, LEADER_LEADING);
    log_event(LOG_INFO, "leading", "duties=%d", TASK_COUNT);
    maintenance_start(&leader->maintenance);
}

static void on_duty_failed(void *ctx, enum maintenance_task task, const struct err *err)
{
    struct leader *leader = ctx;
    char text[ERR_MESSAGE_BYTES];

    leader->away_until_us = now_us(leader) + jittered_us(leader, AWAY_MS, AWAY_MS);
    log_event(LOG_ERROR, "resigned", "task=%s sqlstate=%s reason=\"%s\"",
              maintenance_task_name(task), err->sqlstate,
              log_text(text, sizeof text, err->message));
    resign(leader);
}

/* ---- answers ---- */

static void on_registered(struct leader *leader, bool granted)
{
    if (!granted) { /* another program has our key: nothing of ours takes it */
        ask_in(leader, jittered_us(leader, REGISTER_AGAIN_MS, REGISTER_AGAIN_MS));
        return;
    }
    set_state(leader, LEADER_FOLLOWING);
    leader->unknown_since_us = 0;
    leader->why = (struct err){.code = CODE_OK};
    leader->with.joined(leader->with.ctx);
    follow(leader);
}

static void on_tried(struct leader *leader, bool granted)
{
    if (!granted)
        look_for_stuck(leader);
    else if (leader->draining)
        resign(leader);
    else
        lead(leader);
}

static void on_resigned(struct leader *leader)
{
    set_state(leader, LEADER_FOLLOWING);
    ask_in(leader, jittered_us(leader, ELECTION_MS, ELECTION_MS));
}

static void on_membership(struct leader *leader, bool granted)
{
    switch (leader->call.args.membership) {
    case MEMBER_REGISTER: on_registered(leader, granted); return;
    case MEMBER_TRY_LEAD: on_tried(leader, granted); return;
    case MEMBER_RESIGN: on_resigned(leader); return;
    }
    UNREACHABLE("a membership call");
}

static void give_up_session(struct leader *leader, const struct err *why)
{
    leader->why = *why;
    env_of(leader)->drop_control(env_of(leader)->ctx, why);
}

static void on_done(struct db_call *call, const struct db_reply *reply)
{
    struct leader *leader = CONTAINER_OF(call, struct leader, call);

    leader->in_flight = false;
    if (leader->state == LEADER_DOWN)
        return; /* it went with its session */
    if (call->op == DB_MAINTENANCE)
        ask_in(leader, jittered_us(leader, ELECTION_MS, ELECTION_MS));
    else if (reply->outcome == OUTCOME_DONE)
        on_membership(leader, reply->rows.granted);
    else
        give_up_session(leader, &reply->err);
}

/* ---- what happens to it ---- */

void leader_init(struct leader *leader, const struct leader_setup *setup)
{
    struct maintenance_setup maintenance = {.env = setup->env,
                                            .timers = setup->timers,
                                            .promoted = setup->promoted,
                                            .promoted_ctx = setup->ctx,
                                            .failed = on_duty_failed,
                                            .failed_ctx = leader};

    *leader = (struct leader){.with = *setup};
    leader->timer.fire = on_timer;
    leader->call.done = on_done;
    leader->unknown_since_us = now_us(leader);
    maintenance_init(&leader->maintenance, &maintenance);
}

void leader_stop(struct leader *leader)
{
    maintenance_stop(&leader->maintenance);
    timer_stop(leader->with.timers, &leader->timer);
}

void leader_up(struct leader *leader)
{
    set_state(leader, LEADER_REGISTERING);
    ask(leader, MEMBER_REGISTER);
}

void leader_lost(struct leader *leader)
{
    if (leader->state == LEADER_LEADING)
        log_event(LOG_WARN, "leadership_lost", "reason=\"the control connection was lost\"");
    if (leader->state != LEADER_REGISTERING)
        leader->unknown_since_us = now_us(leader);
    set_state(leader, LEADER_DOWN);
    leader_stop(leader);
}

void leader_drain(struct leader *leader)
{
    leader->draining = true;
    if (leader->state == LEADER_LEADING)
        resign(leader);
}

uint64_t leader_unknown_us(const struct leader *leader)
{
    return leader->unknown_since_us == 0 ? 0 : now_us(leader) - leader->unknown_since_us;
}
