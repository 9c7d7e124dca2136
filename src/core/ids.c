/* ids: see ids.h. */
#include "core/ids.h"

#include "base/clock.h"
#include "base/list.h"

enum { AGAIN_FIRST_US = 20 * US_PER_MS, AGAIN_DOUBLINGS_MAX = 6 };

static void on_again(struct timer *timer, uint64_t now_us)
{
    (void)now_us;
    ids_want(CONTAINER_OF(timer, struct ids, again));
}

static void add_run(struct ids *ids, struct id_run run)
{
    bool makes_sense = run.first >= 1 && run.first <= run.last && run.last <= JOB_ID_MAX;

    if (!makes_sense || ids->run_count == ID_RUNS_MAX)
        return; /* of more runs than we keep no id is ever used */
    ids->runs[ids->run_count++] = run;
    ids->available += run.last - run.first + 1;
}

static void on_reserved(struct db_call *call, const struct db_reply *reply)
{
    struct ids *ids = CONTAINER_OF(call, struct ids, call);
    bool stale = ids->stale;

    ids->in_flight = false;
    ids->stale = false;
    if (reply->outcome == OUTCOME_DONE && !stale) {
        ids->failures = 0;
        if (!server_run_equal(&ids->server, &reply->backend.server))
            ids_forget(ids);
        ids->server = reply->backend.server;
        for (size_t i = 0; i < reply->rows.ids.count; i++)
            add_run(ids, reply->rows.ids.runs[i]);
        return;
    }
    unsigned doublings = ids->failures < AGAIN_DOUBLINGS_MAX ? ids->failures : AGAIN_DOUBLINGS_MAX;
    uint64_t delay_us = (uint64_t)AGAIN_FIRST_US << doublings;
    ids->failures += stale ? 0 : 1;
    timer_set(ids->timers, &ids->again,
              ids->env->now_us(ids->env->ctx) + delay_us / 2 +
                  ids->env->random_u64(ids->env->ctx) % delay_us);
    if (reply->outcome != OUTCOME_DONE && ids->run_count == 0)
        ids->failed(ids, &reply->err);
}

void ids_init(struct ids *ids, const struct env *env, struct timers *timers,
              void (*failed)(struct ids *ids, const struct err *err))
{
    *ids = (struct ids){.env = env, .timers = timers, .failed = failed};
    ids->again.fire = on_again;
    ids->call.done = on_reserved;
}

void ids_stop(struct ids *ids)
{
    timer_stop(ids->timers, &ids->again);
}

int64_t ids_take(struct ids *ids)
{
    if (ids->run_count == 0)
        return 0;
    struct id_run *run = &ids->runs[0];
    int64_t id = run->first++;
    ids->available--;
    if (run->first > run->last) {
        ids->run_count--;
        for (size_t i = 0; i < ids->run_count; i++)
            ids->runs[i] = ids->runs[i + 1];
    }
    return id;
}

void ids_want(struct ids *ids)
{
    if (ids->in_flight || timer_is_set(&ids->again) || ids->available > ID_BLOCK_LOW)
        return;
    ids->in_flight = true;
    ids->call.op = DB_RESERVE_IDS;
    ids->call.args.id_count = ID_BLOCK;
    ids->env->submit(ids->env->ctx, &ids->call);
}

void ids_forget(struct ids *ids)
{
    ids->run_count = 0;
    ids->available = 0;
    ids->stale = ids->in_flight;
}
