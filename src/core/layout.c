/* layout: see layout.h. */
#include "core/layout.h"

size_t layout_take_ids(struct layout *layout, struct ids *ids)
{
    size_t taken = 0;

    while (taken < layout->count && (layout->ids[taken] = ids_take(ids)) != 0)
        taken++;
    ids_want(ids);
    return taken;
}

/* The place (from 1) of the queue in the list of distinct queues. Jobs of one queue tend to come
 * together: the last one found is tried first. */
static uint16_t queue_place(struct layout *layout, uint16_t last, struct bytes queue)
{
    if (last > 0 && bytes_equal(layout->queues[last - 1], queue))
        return last;
    for (size_t i = 0; i < layout->queue_count; i++)
        if (bytes_equal(layout->queues[i], queue))
            return (uint16_t)(i + 1);
    layout->queue_has_work[layout->queue_count] = false;
    layout->queues[layout->queue_count++] = queue;
    return (uint16_t)layout->queue_count;
}

void layout_queues(struct layout *layout)
{
    uint16_t place = 0;

    layout->queue_count = 0;
    for (size_t i = 0; i < layout->count; i++) {
        const struct new_job *job = layout->jobs[i];
        place = queue_place(layout, place, job->queue);
        layout->queue_of[i] = place;
        if (job->run_at_us == 0)
            layout->queue_has_work[place - 1] = true;
    }
}

void layout_refusal(const struct db_failed_item *failed, struct err *err)
{
    err_set(err, CODE_INVALID_ARGUMENT, "%s", failed->message);
    err_set_sqlstate(err, failed->sqlstate);
}

struct db_enqueue layout_args(const struct layout *layout, const struct ids *ids, struct bytes key)
{
    return (struct db_enqueue){.queues = layout->queues,
                               .queue_count = layout->queue_count,
                               .jobs = layout->jobs,
                               .queue_of = layout->queue_of,
                               .ids = layout->ids,
                               .count = layout->count,
                               .server = ids->server,
                               .key = key};
}
