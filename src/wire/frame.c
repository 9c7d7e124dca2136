/* frame: see frame.h. */
#include "wire/frame.h"

#include "base/check.h"
#include "base/limits.h"

enum { VARINT_BITS = 7, VARINT_MASK = 0x7f, VARINT_MORE = 0x80 };

/* Reads the prefix. Its length goes to *prefix_bytes, the value to *value. */
static enum frame_state read_prefix(struct bytes input, size_t *prefix_bytes, uint64_t *value)
{
    *value = 0;
    for (size_t i = 0; i < FRAME_PREFIX_BYTES_MAX; i++) {
        if (i == input.len)
            return FRAME_NEED_MORE;
        uint8_t byte = input.data[i];
        *value |= (uint64_t)(byte & VARINT_MASK) << (VARINT_BITS * i);
        if (byte & VARINT_MORE)
            continue;
        *prefix_bytes = i + 1;
        bool shortest = byte != 0 || i == 0;
        return shortest && *value <= UINT32_MAX ? FRAME_READY : FRAME_MALFORMED;
    }
    return FRAME_MALFORMED;
}

enum frame_state frame_next(struct bytes input, size_t body_bytes_max, struct frame *frame)
{
    size_t prefix_bytes = 0;
    uint64_t body_bytes = 0;
    enum frame_state state = read_prefix(input, &prefix_bytes, &body_bytes);

    *frame = (struct frame){.body = {NULL, 0}, .need_bytes = input.len + 1};
    if (state != FRAME_READY)
        return state;
    frame->body.len = (size_t)body_bytes;
    if (body_bytes > body_bytes_max)
        return FRAME_TOO_LARGE;
    frame->need_bytes = prefix_bytes + (size_t)body_bytes;
    if (input.len < frame->need_bytes)
        return FRAME_NEED_MORE;
    frame->body.data = input.data + prefix_bytes;
    return FRAME_READY;
}

size_t frame_put_prefix(uint8_t *out, uint32_t body_bytes)
{
    size_t len = 0;

    while (body_bytes > VARINT_MASK) {
        out[len++] = (uint8_t)(body_bytes | VARINT_MORE);
        body_bytes >>= VARINT_BITS;
    }
    out[len++] = (uint8_t)body_bytes;
    CHECK(len <= FRAME_PREFIX_BYTES_MAX);
    return len;
}
