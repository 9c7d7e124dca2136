/* slots: see slots.h. A handle is generation << 32 | index + 1; empty slots form a list. */
#include "base/slots.h"

#include "base/check.h"
#include "base/mem.h"

enum { SLOTS_FIRST = 16 };

struct slot {
    void *object; /* NULL = empty */
    uint32_t generation;
    uint32_t free_next; /* index + 1; 0 = none */
};

void slots_init(struct slots *table, uint32_t count_max)
{
    *table = (struct slots){.slots = NULL, .count_max = count_max};
}

void slots_free(struct slots *table)
{
    mem_free(table->slots);
    *table = (struct slots){.slots = NULL};
}

static void grow(struct slots *table)
{
    uint32_t size = table->size > 0 ? table->size * 2 : SLOTS_FIRST;

    table->slots = mem_realloc(table->slots, size * sizeof *table->slots);
    for (uint32_t i = size; i > table->size; i--) {
        table->slots[i - 1] = (struct slot){.generation = 0, .free_next = table->free_first};
        table->free_first = i;
    }
    table->size = size;
}

handle slots_add(struct slots *table, void *object)
{
    CHECK(object != NULL);
    if (table->count >= table->count_max)
        return HANDLE_NONE;
    if (table->free_first == 0)
        grow(table);
    uint32_t place = table->free_first;
    struct slot *slot = &table->slots[place - 1];
    table->free_first = slot->free_next;
    slot->object = object;
    table->count++;
    return ((handle)slot->generation << 32) | place;
}

static struct slot *find(const struct slots *table, handle h)
{
    uint32_t place = (uint32_t)h;

    if (place == 0 || place > table->size)
        return NULL;
    struct slot *slot = &table->slots[place - 1];
    return slot->object != NULL && slot->generation == (uint32_t)(h >> 32) ? slot : NULL;
}

void *slots_get(const struct slots *table, handle h)
{
    struct slot *slot = find(table, h);
    return slot != NULL ? slot->object : NULL;
}

void slots_remove(struct slots *table, handle h)
{
    struct slot *slot = find(table, h);

    CHECK(slot != NULL);
    slot->object = NULL;
    slot->generation++;
    slot->free_next = table->free_first;
    table->free_first = (uint32_t)h;
    table->count--;
}

void *slots_at(const struct slots *table, uint32_t index)
{
    CHECK(index < table->size);
    return table->slots[index].object;
}
