/* arena: see arena.h. A list of chunks, newest first; only the newest has room. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>

#include "base/mem.h"

enum { CHUNK_FIRST_BYTES = 1024, CHUNK_BYTES_MAX = 256 * 1024 };

struct arena_chunk {
    struct arena_chunk *older;
    size_t size_bytes;
    size_t used_bytes;
    alignas(max_align_t) uint8_t memory[];
};

static size_t aligned(size_t size_bytes)
{
    size_t step = alignof(max_align_t);
    return (size_bytes + step - 1) / step * step;
}

static struct arena_chunk *chunk_add(struct arena *arena, size_t need_bytes)
{
    size_t size_bytes = CHUNK_FIRST_BYTES - sizeof(struct arena_chunk);

    if (arena->newest != NULL && arena->newest->size_bytes < CHUNK_BYTES_MAX)
        size_bytes = arena->newest->size_bytes * 2;
    else if (arena->newest != NULL)
        size_bytes = CHUNK_BYTES_MAX;
    if (size_bytes < need_bytes)
        size_bytes = need_bytes;

    struct arena_chunk *chunk = mem_alloc(sizeof *chunk + size_bytes);
    chunk->older = arena->newest;
    chunk->size_bytes = size_bytes;
    chunk->used_bytes = 0;
    arena->newest = chunk;
    return chunk;
}

void arena_init(struct arena *arena, size_t limit_bytes)
{
    *arena = (struct arena){.newest = NULL, .used_bytes = 0, .limit_bytes = limit_bytes};
}

void *arena_alloc(struct arena *arena, size_t size_bytes)
{
    struct arena_chunk *chunk = arena->newest;

    if (size_bytes > arena->limit_bytes) /* also keeps aligned() from overflowing */
        return NULL;
    size_t need_bytes = aligned(size_bytes > 0 ? size_bytes : 1);
    if (need_bytes > arena->limit_bytes - arena->used_bytes)
        return NULL;
    if (chunk == NULL || chunk->size_bytes - chunk->used_bytes < need_bytes)
        chunk = chunk_add(arena, need_bytes);
    void *memory = chunk->memory + chunk->used_bytes;
    chunk->used_bytes += need_bytes;
    arena->used_bytes += need_bytes;
    return memory;
}

void *arena_zalloc(struct arena *arena, size_t size_bytes)
{
    void *memory = arena_alloc(arena, size_bytes);
    if (memory != NULL)
        memset(memory, 0, size_bytes);
    return memory;
}

struct bytes arena_copy(struct arena *arena, struct bytes source)
{
    void *memory = arena_alloc(arena, source.len);
    if (memory == NULL)
        return (struct bytes){NULL, 0};
    if (source.len > 0)
        memcpy(memory, source.data, source.len);
    return bytes_of(memory, source.len);
}

static void free_chain(struct arena_chunk *chunk)
{
    while (chunk != NULL) {
        struct arena_chunk *older = chunk->older;
        mem_free(chunk);
        chunk = older;
    }
}

void arena_reset(struct arena *arena)
{
    if (arena->newest != NULL) {
        free_chain(arena->newest->older);
        arena->newest->older = NULL;
        arena->newest->used_bytes = 0;
    }
    arena->used_bytes = 0;
}

void arena_free(struct arena *arena)
{
    struct arena_chunk *newest = arena->newest;

    arena->newest = NULL;
    arena->used_bytes = 0;
    free_chain(newest);
}
