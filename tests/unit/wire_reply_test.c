/* Answers: packed behind their prefix, several in one buffer, readable by the frame decoder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/limits.h"
#include "wire/frame.h"
#include "wire/reply.h"

static void error_golden(void **state)
{
    (void)state;
    static const uint8_t expected[] = {13,   0x08, 9,    0x7a, 9,   0x08, 14,
                                       0x10, 1,    0x1a, 3,    'a', 'b',  'c'};
    Awa__V1__ServerFrame answer = AWA__V1__SERVER_FRAME__INIT;
    Awa__V1__Error error;
    struct buf out;
    struct err why;

    err_set(&why, CODE_UNAVAILABLE, "abc");
    reply_error_init(&error, &why);
    answer.request_id = 9;
    answer.answer_case = AWA__V1__SERVER_FRAME__ANSWER_ERROR;
    answer.error = &error;
    buf_init(&out);
    reply_add(&out, &answer);
    assert_int_equal(buf_len(&out), sizeof expected);
    assert_memory_equal(buf_data(&out), expected, sizeof expected);
    buf_free(&out);
}

static void frames_follow_each_other(void **state)
{
    (void)state;
    Awa__V1__Pong pong = AWA__V1__PONG__INIT;
    Awa__V1__ServerFrame answer = AWA__V1__SERVER_FRAME__INIT;
    struct buf out;
    struct frame frame;

    answer.answer_case = AWA__V1__SERVER_FRAME__ANSWER_PONG;
    answer.pong = &pong;
    buf_init(&out);
    for (uint64_t id = 1; id <= 3; id++) {
        answer.request_id = id;
        reply_add(&out, &answer);
    }
    for (uint64_t id = 1; id <= 3; id++) {
        struct bytes input = bytes_of(buf_data(&out), buf_len(&out));
        assert_int_equal(frame_next(input, FRAME_BYTES_MAX, &frame), FRAME_READY);
        Awa__V1__ServerFrame *read =
            awa__v1__server_frame__unpack(NULL, frame.body.len, frame.body.data);
        assert_non_null(read);
        assert_int_equal(read->request_id, id);
        assert_int_equal(read->answer_case, AWA__V1__SERVER_FRAME__ANSWER_PONG);
        awa__v1__server_frame__free_unpacked(read, NULL);
        buf_drain(&out, frame.need_bytes);
    }
    assert_int_equal(buf_len(&out), 0);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_golden),
        cmocka_unit_test(frames_follow_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
