/* Any bytes, cut at any place: the decoder gives the same frames as when it sees them whole. The
 * first byte of the input chooses where the stream is cut. */
#include <stdlib.h>

#include "base/check.h"
#include "wire/frame.h"

enum { BODY_BYTES_MAX = 300 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_cut(struct bytes whole, const struct frame *expected, size_t cut)
{
    struct frame frame;
    enum frame_state state = frame_next(bytes_of(whole.data, cut), BODY_BYTES_MAX, &frame);

    if (cut >= expected->need_bytes) {
        CHECK(state == FRAME_READY && frame.body.len == expected->body.len);
    } else {
        CHECK(state == FRAME_NEED_MORE);
        CHECK(frame.need_bytes > cut && frame.need_bytes <= expected->need_bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    struct bytes left = bytes_of(data + 1, size - 1);
    struct frame frame;

    while (frame_next(left, BODY_BYTES_MAX, &frame) == FRAME_READY) {
        CHECK(frame.body.data + frame.body.len == left.data + frame.need_bytes);
        check_cut(left, &frame, left.len * data[0] / UINT8_MAX);
        left = bytes_of(left.data + frame.need_bytes, left.len - frame.need_bytes);
    }
    return 0;
}
