/* doubt: see doubt.h. */
#include "core/doubt.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"

enum {
    ALIVE_PAUSE_US = 2 * US_PER_MS, /* it was just told to end; or the storage was busy */
    ALIVE_DOUBLINGS_MAX = 6,
    FAILED_PAUSE_US = 20 * US_PER_MS, /* the question itself failed */
    FAILED_DOUBLINGS_MAX = 6,
};

static uint64_t now_us(const struct doubt *doubt)
{
    return doubt->env->now_us(doubt->env->ctx);
}

static void submit(struct doubt *doubt)
{
    doubt->env->submit(doubt->env->ctx, &doubt->call);
}

static void pause_then_ask(struct doubt *doubt, uint64_t pause_us, unsigned doublings_max)
{
    unsigned doublings = doubt->tries < doublings_max ? doubt->tries : doublings_max;
    uint64_t delay_us = pause_us << doublings;

    doubt->tries++;
    timer_set(doubt->timers, &doubt->again,
              now_us(doubt) + delay_us / 2 + doubt->env->random_u64(doubt->env->ctx) % delay_us);
}

static void tell_owner(struct doubt *doubt, const struct db_reply *reply)
{
    int pid = (int)doubt->backend.pid;
    uint64_t age_ms = (now_us(doubt) - doubt->since_us) / US_PER_MS;

    if (doubt->known(doubt, reply))
        log_event(LOG_INFO, "outcome_resolved", "pid=%d ms=%llu", pid, (unsigned long long)age_ms);
    else
        pause_then_ask(doubt, ALIVE_PAUSE_US, ALIVE_DOUBLINGS_MAX);
}

static void ask_owner(struct doubt *doubt)
{
    if (doubt->ask(doubt, &doubt->call))
        submit(doubt);
    else
        tell_owner(doubt, NULL);
}

static void ask_gone(struct doubt *doubt)
{
    doubt->call.op = DB_BACKEND_GONE;
    doubt->call.args.backend = doubt->backend;
    submit(doubt);
}

static void on_gone_answer(struct doubt *doubt, bool gone)
{
    if (!gone) {
        pause_then_ask(doubt, ALIVE_PAUSE_US, ALIVE_DOUBLINGS_MAX);
        return;
    }
    doubt->is_gone = true; /* and stays so: a process is never started twice */
    doubt->tries = 0;
    ask_owner(doubt);
}

static void on_done(struct db_call *call, const struct db_reply *reply)
{
    struct doubt *doubt = CONTAINER_OF(call, struct doubt, call);

    if (reply->outcome != OUTCOME_DONE)
        pause_then_ask(doubt, FAILED_PAUSE_US, FAILED_DOUBLINGS_MAX);
    else if (doubt->is_gone)
        tell_owner(doubt, reply);
    else
        on_gone_answer(doubt, reply->rows.gone);
}

static void on_again(struct timer *timer, uint64_t now)
{
    struct doubt *doubt = CONTAINER_OF(timer, struct doubt, again);

    (void)now;
    if (doubt->is_gone)
        ask_owner(doubt);
    else
        ask_gone(doubt);
}

void doubt_raise(struct doubt *doubt, const struct backend *backend, const char *what)
{
    CHECK(backend->pid != 0);
    doubt->call.done = on_done;
    doubt->again.fire = on_again;
    doubt->backend = *backend;
    doubt->since_us = now_us(doubt);
    doubt->tries = 0;
    doubt->is_gone = false;
    log_event(LOG_WARN, "outcome_unknown", "call=%s pid=%d", what, (int)backend->pid);
    ask_gone(doubt);
}
