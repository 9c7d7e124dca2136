/* request: see request.h. */
#include "core/request.h"

#include "base/check.h"
#include "base/limits.h"

static_assert((int)JOBS_PER_ENQUEUE_MAX == (int)ITEMS_PER_FINISH_MAX, "one budget for both");
static_assert(HELD_RECEIPTS_MAX * sizeof(struct held_receipt) <=
                  (size_t)CORE_ITEM_BYTES * JOBS_PER_ENQUEUE_MAX,
              "what a Hello lists fits that budget too");

struct request *request_new_take(struct arena *arena, enum request_kind kind, uint64_t id,
                                 uint32_t frame_bytes)
{
    struct request *request = arena_zalloc(arena, sizeof *request);

    if (request == NULL)
        return NULL;
    request->arena = *arena;
    request->arena.limit_bytes += (size_t)CORE_ITEM_BYTES * JOBS_PER_ENQUEUE_MAX + CORE_BYTES;
    request->kind = kind;
    request->id = id;
    request->frame_bytes = frame_bytes;
    arena_init(arena, 0);
    return request;
}

void *request_alloc(struct request *request, size_t size_bytes)
{
    void *memory = arena_zalloc(&request->arena, size_bytes);
    CHECK(memory != NULL);
    return memory;
}

const struct err *request_keep_err(struct request *request, const struct err *err)
{
    struct err *kept = request_alloc(request, sizeof *kept);
    *kept = *err;
    return kept;
}

void request_free(struct request *request)
{
    struct arena arena = request->arena;
    arena_free(&arena);
}
