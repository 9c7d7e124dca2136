/* plan: see plan.h. */
#include "plan.h"

#include "base/limits.h"

/* Off in half of the runs, otherwise something up to the maximum. */
static unsigned maybe(struct dice *dice, unsigned permille_max)
{
    return dice_below(dice, 2) == 0 ? 0 : (unsigned)dice_between(dice, 1, permille_max);
}

static size_t one_of(struct dice *dice, const size_t *values, size_t count)
{
    return values[dice_below(dice, count)];
}

/* What a reload may change. */
static void draw_limits(struct core_setup *core, struct dice *dice)
{
    static const size_t batches[] = {1, 2, 7, 32, 128, 512, 512, 512};
    static const uint64_t polls_us[] = {1000, 5000, 50000};

    core->claim_batch_size = one_of(dice, batches, 8);
    core->enqueue_batch_size = one_of(dice, batches, 8);
    core->completion_batch_size = one_of(dice, batches, 8);
    core->flush_us = dice_below(dice, 3) * 1000;
    core->poll_min_us = polls_us[dice_below(dice, 3)];
    core->poll_max_us = core->poll_min_us * dice_between(dice, 1, 50);
}

static void draw_core(struct core_setup *core, struct dice *dice)
{
    static const size_t shards[] = {1, 1, 1, 2, 4};
    static const uint64_t graces_us[] = {20000, 500000, 3000000, 30000000};

    draw_limits(core, dice);
    core->completion_shards = one_of(dice, shards, 5);
    core->session_grace_us = graces_us[dice_below(dice, 4)];
    core->unknown_max_us = (uint64_t)15 * 1000000;
}

static void draw_database(struct plan *plan, struct dice *dice)
{
    static const uint64_t latencies_us[] = {100, 1000, 1000, 10000, 200000};
    bool troubled = dice_below(dice, 3) > 0;

    plan->latency_us = latencies_us[dice_below(dice, 5)];
    plan->lanes = maybe(dice, 1000);
    plan->busy_claims = maybe(dice, 300);
    plan->busy_items = maybe(dice, 300);
    plan->zombies = maybe(dice, 600);
    if (!troubled)
        return;
    plan->aborts = maybe(dice, 400);
    plan->refusals = maybe(dice, 250);
    plan->losses = maybe(dice, 200);
    bool long_ones = dice_below(dice, 2) == 0;
    plan->outages = maybe(dice, long_ones ? 8 : 40);
    plan->outage_us_max = (long_ones ? 90 : 2) * (uint64_t)1000000;
    plan->control_losses = maybe(dice, 100);
}

static void draw_clients(struct plan *plan, struct dice *dice)
{
    static const uint64_t thoughts_us[] = {500, 5000, 50000, 1000000};
    static const size_t jobs[] = {1, 3, 10, 120};
    static const size_t sizes_bytes[] = {200, (size_t)100 * 1024, ARGS_BYTES_MAX};

    plan->think_us = thoughts_us[dice_below(dice, 4)];
    plan->jobs_max = (unsigned)one_of(dice, jobs, 4);
    plan->bad_items = maybe(dice, 150);
    plan->rude = maybe(dice, 150);
    plan->vanishing = maybe(dice, 60);
    plan->flooding = dice_below(dice, 10) == 0 ? 10 : 0;
    plan->silence = maybe(dice, 10);
    plan->stalls = maybe(dice, 60);
    plan->job_bytes = sizes_bytes[plan->stalls % 3]; /* no throw of its own */
    plan->resumes = maybe(dice, 900);
    plan->keys = maybe(dice, 500);
    plan->strangers = maybe(dice, 100);
    plan->drains = dice_below(dice, 4) == 0;
}

void plan_draw(struct plan *plan, struct dice *dice)
{
    *plan = (struct plan){.queues = (unsigned)dice_between(dice, 1, QUEUES_MAX),
                          .clients = (unsigned)dice_between(dice, 1, CLIENTS_MAX),
                          .connections = (unsigned)dice_between(dice, 1, 5)};
    draw_core(&plan->core, dice);
    plan->core.claims_in_flight_max = plan->connections;
    plan->enqueue_batch_max = plan->core.enqueue_batch_size;
    plan->reloads = maybe(dice, 30);
    draw_database(plan, dice);
    draw_clients(plan, dice);
    plan->unreadable = maybe(dice, 40);
}

void plan_reload(struct plan *plan, struct dice *dice)
{
    draw_limits(&plan->core, dice);
    if (plan->core.enqueue_batch_size > plan->enqueue_batch_max)
        plan->enqueue_batch_max = plan->core.enqueue_batch_size;
}

bool plan_is_calm(const struct plan *plan)
{
    return plan->aborts + plan->refusals + plan->losses + plan->outages == 0;
}
