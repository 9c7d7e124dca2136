/* queue_set: see queue_set.h. */
#include "core/queue_set.h"

#include <string.h>

static bool has(const struct queue_set *set, struct bytes queue)
{
    for (size_t i = 0; i < set->count; i++)
        if (bytes_equal(set->names[i], queue))
            return true;
    return false;
}

bool queue_set_add(struct queue_set *set, struct bytes queue)
{
    if (has(set, queue))
        return true;
    if (set->count == QUEUE_SET_MAX || queue.len > NAME_BYTES_MAX)
        return false;
    uint8_t *memory = set->memory[set->count];
    memcpy(memory, queue.data, queue.len);
    set->names[set->count++] = bytes_of(memory, queue.len);
    return true;
}
