/* slots: a table of objects named by handles instead of pointers.
 *
 * What: slots_add gives an object a 64-bit handle (index and generation); slots_get turns it back,
 * or into NULL once the object was removed, however often the index was used again since. Why: an
 * answer of Postgres can come after its session is gone. It carries a handle, so that it finds
 * nothing instead of freed memory.
 * Invariant: HANDLE_NONE is never given out. The table does not own the objects.
 */
#ifndef BASE_SLOTS_H
#define BASE_SLOTS_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t handle;
#define HANDLE_NONE ((handle)0)

struct slot;

struct slots {
    struct slot *slots;
    uint32_t size;
    uint32_t count;
    uint32_t count_max;
    uint32_t free_first; /* index + 1; 0 = none */
};

void slots_init(struct slots *table, uint32_t count_max);
void slots_free(struct slots *table);

/* HANDLE_NONE when count_max objects are in. */
handle slots_add(struct slots *table, void *object);
void *slots_get(const struct slots *table, handle h);
void slots_remove(struct slots *table, handle h);

/* For walking over all objects: NULL where index is empty, until index reaches table->size. */
void *slots_at(const struct slots *table, uint32_t index);

#endif
