/* bytes: a borrowed run of bytes, and a cursor that reads big-endian numbers from one.
 *
 * Why: lengths travel with their pointer, so that nothing in the proxy depends on a terminating NUL
 * and every read of foreign input (a receipt, a binary array of Postgres) is checked in one place.
 * Invariant: a cursor that once ran out stays failed, yields zeros, and never reads past its end;
 * the caller checks `failed` once after a group of reads. Not here: building output (buf.h).
 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes {
    const uint8_t *data; /* NULL means absent, which is different from empty */
    size_t len;
};

static inline struct bytes bytes_of(const void *data, size_t len)
{
    return (struct bytes){.data = data, .len = len};
}

static inline struct bytes bytes_of_text(const char *text)
{
    return bytes_of(text, strlen(text));
}

static inline bool bytes_equal(struct bytes a, struct bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

struct cursor {
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
};

static inline struct cursor cursor_of(struct bytes bytes)
{
    const uint8_t *end = bytes.data != NULL ? bytes.data + bytes.len : NULL;
    return (struct cursor){.at = bytes.data, .end = end, .failed = false};
}

static inline size_t cursor_left(const struct cursor *c)
{
    return (size_t)(c->end - c->at);
}

/* The next len bytes, borrowed; {NULL, 0} and failed when there are fewer. */
static inline struct bytes cursor_take(struct cursor *c, size_t len)
{
    struct bytes taken = {NULL, 0};

    if (c->failed || cursor_left(c) < len) {
        c->failed = true;
        return taken;
    }
    taken = bytes_of(c->at, len);
    c->at += len;
    return taken;
}

static inline uint64_t cursor_be(struct cursor *c, size_t width)
{
    struct bytes raw = cursor_take(c, width);
    uint64_t value = 0;

    for (size_t i = 0; i < raw.len; i++)
        value = (value << 8) | raw.data[i];
    return value;
}

static inline uint8_t cursor_u8(struct cursor *c)
{
    return (uint8_t)cursor_be(c, 1);
}

static inline uint16_t cursor_u16(struct cursor *c)
{
    return (uint16_t)cursor_be(c, 2);
}

static inline uint32_t cursor_u32(struct cursor *c)
{
    return (uint32_t)cursor_be(c, 4);
}

static inline uint64_t cursor_u64(struct cursor *c)
{
    return cursor_be(c, 8);
}

#endif
