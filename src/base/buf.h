/* buf: a growing run of bytes that is filled at the end and drained at the front.
 *
 * What: output waiting for a socket, input waiting to become frames, parameters being encoded.
 * Why: one contiguous run, so that a whole frame can be decoded in place and a write is one system
 * call. Invariant: head <= tail <= size; the bytes in [head, tail) are the content. Pointers into
 * it are valid until the next call that adds. Not here: bounds. The owner compares buf_len() with
 * its own limit before it adds.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

struct buf {
    uint8_t *memory;
    size_t size_bytes;
    size_t head;
    size_t tail;
};

void buf_init(struct buf *buf); /* allocates nothing yet */
void buf_free(struct buf *buf);

static inline size_t buf_len(const struct buf *buf)
{
    return buf->tail - buf->head;
}

static inline const uint8_t *buf_data(const struct buf *buf)
{
    return buf->memory != NULL ? buf->memory + buf->head : NULL;
}

/* Room for at least len more bytes at the end; fill it, then buf_commit what was used. */
uint8_t *buf_reserve(struct buf *buf, size_t len);
void buf_commit(struct buf *buf, size_t len);

void buf_add(struct buf *buf, const void *data, size_t len);
void buf_add_be(struct buf *buf, uint64_t value, size_t width);

/* Overwrites four bytes that were added before, counted from the head; for lengths known only
 * later. */
void buf_patch_be32(struct buf *buf, size_t at, uint32_t value);

void buf_drain(struct buf *buf, size_t len);

/* Empties it; memory above keep_bytes goes back to the system, so that one large frame is not paid
 * for ever. */
void buf_clear(struct buf *buf, size_t keep_bytes);

#endif
