/* receipt: there and back, and nothing that is not ours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/receipt.h"

static const struct receipt sample = {.claim_slot = 5,
                                      .index = 512,
                                      .batch_id = 0x0102030405060708,
                                      .nonce = UINT64_MAX,
                                      .job_id = 1,
                                      .run_lease = 0x7fffffff};

static void golden_bytes(void **state)
{
    (void)state;
    static const uint8_t expected[RECEIPT_BYTES] = {
        1,    5,    2,    0,    1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff};
    uint8_t out[RECEIPT_BYTES];
    struct receipt back;

    receipt_encode(&sample, out);
    assert_memory_equal(out, expected, RECEIPT_BYTES);
    assert_true(receipt_decode(bytes_of(out, RECEIPT_BYTES), &back));
    assert_true(receipt_equal(&sample, &back));
}

static void refuses_changed(size_t at, uint8_t value)
{
    uint8_t out[RECEIPT_BYTES];
    struct receipt back;

    receipt_encode(&sample, out);
    out[at] = value;
    assert_false(receipt_decode(bytes_of(out, RECEIPT_BYTES), &back));
}

static void what_is_out_of_range_is_refused(void **state)
{
    (void)state;
    uint8_t out[RECEIPT_BYTES + 1] = {0};
    struct receipt back;

    refuses_changed(0, 2);     /* version */
    refuses_changed(2, 0x80);  /* index beyond a smallint */
    refuses_changed(4, 0x80);  /* batch id beyond a bigint */
    refuses_changed(27, 0);    /* job id 0 */
    refuses_changed(20, 0x80); /* job id beyond a bigint */
    refuses_changed(28, 0x80); /* run lease beyond an int */
    receipt_encode(&sample, out);
    for (size_t len = 0; len <= RECEIPT_BYTES + 1; len++)
        assert_int_equal(receipt_decode(bytes_of(out, len), &back), len == RECEIPT_BYTES);
}

static void order_is_slot_batch_index(void **state)
{
    (void)state;
    struct receipt a = sample;
    struct receipt b = sample;

    assert_int_equal(receipt_compare(&a, &b), 0);
    b.index = 1;
    assert_true(receipt_compare(&b, &a) < 0);
    b.batch_id++;
    assert_true(receipt_compare(&b, &a) > 0);
    b.claim_slot--;
    assert_true(receipt_compare(&b, &a) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_bytes),
        cmocka_unit_test(what_is_out_of_range_is_refused),
        cmocka_unit_test(order_is_slot_batch_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
