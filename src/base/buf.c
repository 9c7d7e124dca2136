/* buf: see buf.h. */
#include "base/buf.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"

enum { BUF_FIRST_BYTES = 512 };

void buf_init(struct buf *buf)
{
    *buf = (struct buf){.memory = NULL, .size_bytes = 0, .head = 0, .tail = 0};
}

void buf_free(struct buf *buf)
{
    mem_free(buf->memory);
    buf_init(buf);
}

static void buf_grow(struct buf *buf, size_t need_bytes)
{
    size_t size_bytes = buf->size_bytes > 0 ? buf->size_bytes : BUF_FIRST_BYTES;

    while (size_bytes < need_bytes)
        size_bytes *= 2;
    buf->memory = mem_realloc(buf->memory, size_bytes);
    buf->size_bytes = size_bytes;
}

uint8_t *buf_reserve(struct buf *buf, size_t len)
{
    size_t content = buf_len(buf);

    if (buf->size_bytes - buf->tail >= len && buf->memory != NULL)
        return buf->memory + buf->tail;
    if (buf->memory != NULL && buf->head > 0 && content > 0)
        memmove(buf->memory, buf->memory + buf->head, content);
    buf->head = 0;
    buf->tail = content;
    if (buf->memory == NULL || buf->size_bytes - content < len)
        buf_grow(buf, content + len);
    return buf->memory + buf->tail;
}

void buf_commit(struct buf *buf, size_t len)
{
    CHECK(buf->size_bytes - buf->tail >= len);
    buf->tail += len;
}

void buf_add(struct buf *buf, const void *data, size_t len)
{
    if (len == 0)
        return;
    memcpy(buf_reserve(buf, len), data, len);
    buf->tail += len;
}

void buf_add_be(struct buf *buf, uint64_t value, size_t width)
{
    uint8_t *out = buf_reserve(buf, width);

    for (size_t i = 0; i < width; i++)
        out[i] = (uint8_t)(value >> (8 * (width - 1 - i)));
    buf->tail += width;
}

void buf_patch_be32(struct buf *buf, size_t at, uint32_t value)
{
    CHECK(at + sizeof value <= buf_len(buf));
    uint8_t *out = buf->memory + buf->head + at;
    for (size_t i = 0; i < sizeof value; i++)
        out[i] = (uint8_t)(value >> (8 * (sizeof value - 1 - i)));
}

void buf_drain(struct buf *buf, size_t len)
{
    CHECK(len <= buf_len(buf));
    buf->head += len;
    if (buf->head == buf->tail) {
        buf->head = 0;
        buf->tail = 0;
    }
}

void buf_clear(struct buf *buf, size_t keep_bytes)
{
    if (buf->size_bytes > keep_bytes)
        buf_free(buf);
    buf->head = 0;
    buf->tail = 0;
}
