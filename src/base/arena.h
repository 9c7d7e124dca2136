/* arena: memory that is freed all at once, with a budget.
 *
 * What: bump allocation from chunks that double in size. One arena per request (it holds the
 * unpacked frame and the core's objects of that request) or per flush. Why: a frame of a few bytes
 * can ask for kilobytes of objects; the budget bounds that before it is allocated, and freeing
 * after a half-finished unpack is one call. Invariant: used_bytes <= limit_bytes. Memory is aligned
 * for any type and stays put until the reset.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

#include "base/bytes.h"

struct arena_chunk;

struct arena {
    struct arena_chunk *newest;
    size_t used_bytes;
    size_t limit_bytes;
};

/* Allocates nothing yet. */
void arena_init(struct arena *arena, size_t limit_bytes);

/* NULL when the budget would be exceeded; never for another reason. */
void *arena_alloc(struct arena *arena, size_t size_bytes);
void *arena_zalloc(struct arena *arena, size_t size_bytes);

/* A copy in the arena; {NULL, 0} when the budget would be exceeded. */
struct bytes arena_copy(struct arena *arena, struct bytes source);

/* Forgets all allocations, keeps the newest chunk for the next use. */
void arena_reset(struct arena *arena);

/* Frees everything. The struct itself may live inside the arena: it is not touched after the free.
 */
void arena_free(struct arena *arena);

#endif
