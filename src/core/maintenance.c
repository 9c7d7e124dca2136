/* maintenance: see maintenance.h. */
#include "core/maintenance.h"

#include <assert.h>
#include <inttypes.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"

enum {
    PROMOTE_BUSY_MS = 50,
    PROMOTE_BUSY_FOR_MS = 1000,
    FAILED_PAUSE_MS = 1000, /* doubled each time */
};

static const struct {
    const char *name;
    uint64_t period_ms;
    uint32_t portion;
} tasks[] = {
#define TASK(suffix, task_name, every_ms, portion_rows)                                            \
    [TASK_##suffix] = {.name = task_name, .period_ms = every_ms, .portion = portion_rows},
#include "core/tasks.def"
#undef TASK
};
static_assert(sizeof tasks / sizeof tasks[0] == TASK_COUNT, "tasks.def lists every task");

static void run_next(struct maintenance *maintenance);

const char *maintenance_task_name(enum maintenance_task task)
{
    return tasks[task].name;
}

uint32_t maintenance_portion(enum maintenance_task task)
{
    return tasks[task].portion;
}

static uint64_t now_us(const struct maintenance *maintenance)
{
    return maintenance->with.env->now_us(maintenance->with.env->ctx);
}

/* What follows from what the task has just moved. */
static void note_moved(struct maintenance *maintenance, enum maintenance_task task, int64_t moved)
{
    switch (task) {
    case TASK_PROMOTE_DUE:
        maintenance->promoted_us = now_us(maintenance);
        maintenance->with.promoted(maintenance->with.promoted_ctx);
        return;
    case TASK_ROTATE_RINGS:
        maintenance->synced = false;
        maintenance->due_us[TASK_SYNC_RING_POINTERS] = now_us(maintenance);
        return;
    case TASK_RESCUE_INSTANCES:
    case TASK_END_STUCK_BACKENDS:
        log_event(LOG_WARN, "rescue", "task=%s count=%" PRId64, tasks[task].name, moved);
        return;
    case TASK_SYNC_RING_POINTERS:
    case TASK_CARRY_LANES:
    case TASK_CLOSE_SLOTS:
    case TASK_PRUNE_SLOTS:
    case TASK_PURGE_IDEMPOTENCY_KEYS:
    case TASK_COUNT: return;
    }
}

static bool promotes_often(const struct maintenance *maintenance, enum maintenance_task task)
{
    uint64_t until_us = maintenance->promoted_us + (uint64_t)PROMOTE_BUSY_FOR_MS * US_PER_MS;
    return task == TASK_PROMOTE_DUE && now_us(maintenance) < until_us;
}

/* How long until the task runs again, given what it has just moved. */
static uint64_t pause_ms(const struct maintenance *maintenance, enum maintenance_task task,
                         int64_t moved)
{
    if (tasks[task].portion > 0 && moved >= tasks[task].portion)
        return 0;
    if (task == TASK_RESCUE_INSTANCES && moved > 0)
        return 0; /* it stops for other reasons too */
    return promotes_often(maintenance, task) ? PROMOTE_BUSY_MS : tasks[task].period_ms;
}

static void on_success(struct maintenance *maintenance, enum maintenance_task task, int64_t moved)
{
    maintenance->failures[task] = 0;
    if (task == TASK_SYNC_RING_POINTERS)
        maintenance->synced = true;
    if (moved > 0)
        note_moved(maintenance, task, moved);
    maintenance->due_us[task] =
        now_us(maintenance) + pause_ms(maintenance, task, moved) * US_PER_MS;
}

static void on_failure(struct maintenance *maintenance, enum maintenance_task task,
                       const struct err *err)
{
    unsigned failures = maintenance->failures[task]++;
    uint64_t wait_us = (uint64_t)FAILED_PAUSE_MS * US_PER_MS << failures;
    char text[ERR_MESSAGE_BYTES];

    if (failures == 0)
        log_event(LOG_WARN, "maintenance_failed", "task=%s sqlstate=%s reason=\"%s\"",
                  tasks[task].name, err->sqlstate, log_text(text, sizeof text, err->message));
    maintenance->due_us[task] = now_us(maintenance) + wait_us;
    if (failures + 1 >= TASK_FAILURES_MAX)
        maintenance->with.failed(maintenance->with.failed_ctx, task, err);
}

static void on_done(struct db_call *call, const struct db_reply *reply)
{
    struct maintenance *maintenance = CONTAINER_OF(call, struct maintenance, call);

    maintenance->in_flight = false;
    if (!maintenance->running)
        return;
    if (reply->outcome == OUTCOME_DONE)
        on_success(maintenance, call->args.task, reply->rows.maintenance);
    else
        on_failure(maintenance, call->args.task, &reply->err);
    run_next(maintenance);
}

/* The most overdue task; with equal times, the first in tasks.def. */
static enum maintenance_task next_task(const struct maintenance *maintenance)
{
    enum maintenance_task next = TASK_SYNC_RING_POINTERS;

    for (size_t i = 0; i < TASK_COUNT && maintenance->synced; i++)
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
        timer_set(maintenance->with.timers, &maintenance->timer, maintenance->due_us[task]);
        return;
    }
    maintenance->in_flight = true;
    maintenance->call.op = DB_MAINTENANCE;
    maintenance->call.args.task = task;
    maintenance->with.env->submit(maintenance->with.env->ctx, &maintenance->call);
}

static void on_timer(struct timer *timer, uint64_t now)
{
    (void)now;
    run_next(CONTAINER_OF(timer, struct maintenance, timer));
}

void maintenance_init(struct maintenance *maintenance, const struct maintenance_setup *setup)
{
    *maintenance = (struct maintenance){.with = *setup};
    maintenance->timer.fire = on_timer;
    maintenance->call.done = on_done;
}

void maintenance_start(struct maintenance *maintenance)
{
    uint64_t now = now_us(maintenance);

    CHECK(!maintenance->running && !maintenance->in_flight);
    for (size_t i = 0; i < TASK_COUNT; i++) {
        maintenance->due_us[i] = now;
        maintenance->failures[i] = 0;
    }
    maintenance->synced = false;
    maintenance->running = true;
    run_next(maintenance);
}

void maintenance_stop(struct maintenance *maintenance)
{
    maintenance->running = false;
    timer_stop(maintenance->with.timers, &maintenance->timer);
}
