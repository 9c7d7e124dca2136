/* frame: the varint length prefix in front of every message of a stream.
 *
 * What: finds the next frame at the start of the bytes received so far, and writes the prefix of
 * one. Why: it keeps no state and no bytes. The length is judged as soon as its varint is complete,
 * so the caller never buffers a frame that is too large. Invariant: only the shortest varint is
 * accepted; a length has one spelling. Not here: what a frame holds (message.h), reading sockets.
 */
#ifndef WIRE_FRAME_H
#define WIRE_FRAME_H

#include <stdint.h>

#include "base/bytes.h"

enum frame_state {
    FRAME_NEED_MORE, /* come back with at least frame.need_bytes bytes */
    FRAME_READY,
    FRAME_TOO_LARGE, /* frame.body.len says how long it claims to be */
    FRAME_MALFORMED, /* the prefix is no varint of 32 bits, or not the shortest */
};

struct frame {
    struct bytes body; /* borrowed from the input; data is NULL unless FRAME_READY */
    size_t need_bytes; /* prefix and body; what the caller drains after FRAME_READY */
};

enum frame_state frame_next(struct bytes input, size_t body_bytes_max, struct frame *frame);

/* Writes the prefix of a body of so many bytes to out (room for FRAME_PREFIX_BYTES_MAX); returns
 * its length. */
size_t frame_put_prefix(uint8_t *out, uint32_t body_bytes);

#endif
