/* The length prefix: golden spellings, every truncation, the limit, bad varints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/limits.h"
#include "wire/frame.h"

static enum frame_state next(const void *data, size_t len, size_t max, struct frame *frame)
{
    return frame_next(bytes_of(data, len), max, frame);
}

static void golden_frames(void **state)
{
    (void)state;
    uint8_t stream[2 + 300 + 3] = {0xac, 0x02}; /* 300 bytes, then the next frame */
    struct frame frame;

    assert_int_equal(next(stream, sizeof stream, 300, &frame), FRAME_READY);
    assert_int_equal(frame.body.len, 300);
    assert_ptr_equal(frame.body.data, stream + 2);
    assert_int_equal(frame.need_bytes, 302);

    assert_int_equal(next("\0rest", 5, 300, &frame), FRAME_READY);
    assert_int_equal(frame.body.len, 0);
    assert_int_equal(frame.need_bytes, 1);
}

static void every_truncation_needs_more(void **state)
{
    (void)state;
    uint8_t stream[302] = {0xac, 0x02};
    struct frame frame;

    for (size_t len = 0; len < sizeof stream; len++) {
        assert_int_equal(next(stream, len, 300, &frame), FRAME_NEED_MORE);
        assert_int_equal(frame.need_bytes, len < 2 ? len + 1 : 302);
        assert_null(frame.body.data);
    }
    assert_int_equal(next(stream, sizeof stream, 300, &frame), FRAME_READY);
}

static void limit_is_judged_by_the_prefix_alone(void **state)
{
    (void)state;
    struct frame frame;

    assert_int_equal(next("\xac\x02", 2, 299, &frame), FRAME_TOO_LARGE);
    assert_int_equal(frame.body.len, 300);
    assert_int_equal(next("\xac\x02", 2, 300, &frame), FRAME_NEED_MORE);
    assert_int_equal(next("\xff\xff\xff\xff\x0f", 5, FRAME_BYTES_MAX, &frame), FRAME_TOO_LARGE);
    assert_int_equal(frame.body.len, UINT32_MAX);
}

static void bad_varints(void **state)
{
    (void)state;
    struct frame frame;

    assert_int_equal(next("\x80\x80\x80\x80\x80\x01", 6, 10, &frame), FRAME_MALFORMED);
    assert_int_equal(next("\xff\xff\xff\xff\x1f", 5, 10, &frame), FRAME_MALFORMED);
    assert_int_equal(next("\x81\x00x", 3, 10, &frame), FRAME_MALFORMED);
    assert_int_equal(next("\x80\x00", 2, 10, &frame), FRAME_MALFORMED);
    assert_int_equal(next("\xff\xff\xff\xff", 4, 10, &frame), FRAME_NEED_MORE);
    assert_int_equal(next("\xff\xff\xff\xff\xff", 5, 10, &frame), FRAME_MALFORMED);
}

static void prefix_and_decoder_agree(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, 1, 127, 128, 16383, 16384, 2097151, 2097152, UINT32_MAX};
    static const size_t prefix_bytes[] = {1, 1, 1, 2, 2, 3, 3, 4, 5};
    uint8_t prefix[FRAME_PREFIX_BYTES_MAX];
    struct frame frame;

    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        assert_int_equal(frame_put_prefix(prefix, lengths[i]), prefix_bytes[i]);
        enum frame_state state_now = next(prefix, prefix_bytes[i], UINT32_MAX, &frame);
        assert_int_equal(state_now, lengths[i] == 0 ? FRAME_READY : FRAME_NEED_MORE);
        assert_int_equal(frame.body.len, lengths[i]);
        assert_int_equal(frame.need_bytes, prefix_bytes[i] + lengths[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_frames),
        cmocka_unit_test(every_truncation_needs_more),
        cmocka_unit_test(limit_is_judged_by_the_prefix_alone),
        cmocka_unit_test(bad_varints),
        cmocka_unit_test(prefix_and_decoder_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
