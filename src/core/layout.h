/* layout: the jobs of one enqueue call as the storage wants them: parallel arrays, and a list of
 * distinct queues. Used by the enqueuer and by keyed. */
#ifndef CORE_LAYOUT_H
#define CORE_LAYOUT_H

#include <stdbool.h>

#include "core/db.h"
#include "core/ids.h"

struct layout { /* arrays of the caller, with room for `count` each */
    const struct new_job **jobs;
    struct bytes *queues;
    bool *queue_has_work; /* at once, not scheduled for later */
    uint16_t *queue_of;
    int64_t *ids;
    size_t count;
    size_t queue_count; /* after layout_queues */
};

/* Takes ids for the first jobs; returns for how many there were some. Asks for more in time. */
size_t layout_take_ids(struct layout *layout, struct ids *ids);

void layout_queues(struct layout *layout);

/* Why the storage refused a job, as its client is told. */
void layout_refusal(const struct db_failed_item *failed, struct err *err);

/* The arguments of the call. key: data NULL for none. */
struct db_enqueue layout_args(const struct layout *layout, const struct ids *ids, struct bytes key);

#endif
