/* maintenance: see maintenance.h. */
#include "core/maintenance.h"

#include <assert.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"

enum {
    PROMOTE_BUSY_MS = 50,
    PROMOTE_BUSY_FOR_MS = 1000,
    FAILED_PAUSE_MS = 1000, /* doubled up to the maximum */
    FAILED_DOUBLINGS_MAX = 4,
};

static const struct {
    const char *name;
    uint64_t period_ms;
} tasks[] = {
#define TASK(suffix, task_name, every_ms)                                                          \
    [TASK_##suffix] = {.name = task_name, .period_ms = every_ms},
#include "core/tasks.def"
#undef TASK
};
static_assert(sizeof tasks / sizeof tasks[0] == TASK_COUNT, "tasks.def lists every task");

static void run_next(struct maintenance *maintenance);

const char *maintenance_task_name(enum maintenance_task task)
{
    return tasks[task].name;
}

static uint64_t now_us(const struct maintenance *maintenance)
{
    return maintenance->env->now_us(maintenance->env->ctx);
}

/* How long until the task runs again, given what it has just moved. */
static uint64_t pause_ms(struct maintenance *maintenance, enum maintenance_task task, int64_t moved)
{
    uint64_t now = now_us(maintenance);

    switch (task) {
    case TASK_SYNC_RING_POINTERS: break;
    case TASK_PROMOTE_DUE:
        if (moved > 0) {
            maintenance->promoted_us = now;
            maintenance->promoted(maintenance->promoted_ctx);
        }
        if (moved >= PROMOTE_PORTION)
            return 0;
        if (now < maintenance->promoted_us + (uint64_t)PROMOTE_BUSY_FOR_MS * US_PER_MS)
            return PROMOTE_BUSY_MS;
        break;
    case TASK_ROTATE_RINGS:
        if (moved > 0)
            maintenance->due_us[TASK_SYNC_RING_POINTERS] = now;
        break;
    case TASK_CARRY_LANES:
        if (moved >= CARRY_PORTION)
            return 0;
        break;
    case TASK_CLOSE_SLOTS:
    case TASK_PRUNE_SLOTS:
    case TASK_COUNT: break;
    }
    return tasks[task].period_ms;
}

static uint64_t failed_pause_ms(struct maintenance *maintenance, enum maintenance_task task,
                                const struct err *err)
{
    unsigned failures = maintenance->failures[task]++;
    char text[ERR_MESSAGE_BYTES];

    if (failures == 0)
        log_event(LOG_WARN, "maintenance_failed", "task=%s sqlstate=%s reason=\"%s\"",
                  tasks[task].name, err->sqlstate, log_text(text, sizeof text, err->message));
    return (uint64_t)FAILED_PAUSE_MS
           << (failures < FAILED_DOUBLINGS_MAX ? failures : FAILED_DOUBLINGS_MAX);
}

static void on_done(struct db_call *call, const struct db_reply *reply)
{
    struct maintenance *maintenance = CONTAINER_OF(call, struct maintenance, call);
    enum maintenance_task task = call->args.task;
    uint64_t wait_ms = 0;

    maintenance->in_flight = false;
    if (reply->outcome == OUTCOME_DONE) {
        maintenance->failures[task] = 0;
        wait_ms = pause_ms(maintenance, task, reply->rows.maintenance);
    } else {
        wait_ms = failed_pause_ms(maintenance, task, &reply->err);
    }
    maintenance->due_us[task] = now_us(maintenance) + wait_ms * US_PER_MS;
    run_next(maintenance);
}

/* The most overdue task; with equal times, the first in tasks.def. */
static enum maintenance_task next_task(const struct maintenance *maintenance)
{
    enum maintenance_task next = TASK_SYNC_RING_POINTERS;

    for (size_t i = 0; i < TASK_COUNT; i++)
        if (maintenance->due_us[i] < maintenance->due_us[next])
            next = (enum maintenance_task)i;
    return next;
}

static void run_next(struct maintenance *maintenance)
{
    enum maintenance_task task = next_task(maintenance);

    if (!maintenance->running || maintenance->in_flight)
        return;
    if (maintenance->due_us[task] > now_us(maintenance)) {
        timer_set(maintenance->timers, &maintenance->timer, maintenance->due_us[task]);
        return;
    }
    maintenance->in_flight = true;
    maintenance->call.op = DB_MAINTENANCE;
    maintenance->call.args.task = task;
    maintenance->env->submit(maintenance->env->ctx, &maintenance->call);
}

static void on_timer(struct timer *timer, uint64_t now)
{
    (void)now;
    run_next(CONTAINER_OF(timer, struct maintenance, timer));
}

void maintenance_init(struct maintenance *maintenance, const struct maintenance_setup *setup)
{
    *maintenance = (struct maintenance){.env = setup->env,
                                        .timers = setup->timers,
                                        .promoted = setup->promoted,
                                        .promoted_ctx = setup->promoted_ctx};
    maintenance->timer.fire = on_timer;
    maintenance->call.done = on_done;
}

void maintenance_start(struct maintenance *maintenance)
{
    uint64_t now = now_us(maintenance);

    for (size_t i = 0; i < TASK_COUNT; i++)
        maintenance->due_us[i] = now + 1;
    maintenance->due_us[TASK_SYNC_RING_POINTERS] = now; /* the first after connecting */
    maintenance->running = true;
    run_next(maintenance);
}

void maintenance_stop(struct maintenance *maintenance)
{
    maintenance->running = false;
    timer_stop(maintenance->timers, &maintenance->timer);
}
