/* mem: see mem.h. */
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static void *checked(void *memory, size_t size_bytes)
{
    if (memory == NULL)
        log_fatal("out_of_memory", "bytes=%zu", size_bytes);
    return memory;
}

void *mem_alloc(size_t size_bytes)
{
    size_t wanted = size_bytes > 0 ? size_bytes : 1;
    return checked(malloc(wanted), wanted);
}

void *mem_zalloc(size_t size_bytes)
{
    size_t wanted = size_bytes > 0 ? size_bytes : 1;
    return checked(calloc(1, wanted), wanted);
}

void *mem_realloc(void *old, size_t size_bytes)
{
    size_t wanted = size_bytes > 0 ? size_bytes : 1;
    return checked(realloc(old, wanted), wanted);
}

void *mem_copy(const void *data, size_t size_bytes)
{
    void *copy = mem_alloc(size_bytes);
    if (size_bytes > 0)
        memcpy(copy, data, size_bytes);
    return copy;
}

void mem_free(void *memory)
{
    free(memory);
}
