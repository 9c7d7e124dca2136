/* params and rows: binary arrays written and read back, and every truncation and lie refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "pg/params.h"
#include "pg/rows.h"

static struct bytes value_of(const struct params *params, int at)
{
    const char *values[PARAMS_MAX];
    int lens[PARAMS_MAX];
    int formats[PARAMS_MAX];

    params_values(params, values, lens, formats);
    assert_int_equal(formats[at], 1);
    return bytes_of(values[at], (size_t)lens[at]);
}

static void golden_array(void **state)
{
    (void)state;
    static const uint8_t expected[] = {0, 0,  0, 1, 0,    0,    0,    1,    0,    0,
                                       0, 21, 0, 0, 0,    2,    0,    0,    0,    1,
                                       0, 0,  0, 2, 0xff, 0xfe, 0xff, 0xff, 0xff, 0xff};
    struct params params;

    params_init(&params);
    params_reset(&params);
    params_int(&params, 1, 4);
    params_array_open(&params, PG_INT2, 2);
    params_item_int(&params, -2, 2);
    params_item_bytes(&params, (struct bytes){NULL, 0});
    params_array_close(&params);
    params_null(&params);
    assert_int_equal(params.count, 3);
    assert_int_equal(value_of(&params, 1).len, sizeof expected);
    assert_memory_equal(value_of(&params, 1).data, expected, sizeof expected);
    assert_null(value_of(&params, 2).data);
    params_free(&params);
}

static void integers_come_back(void **state)
{
    (void)state;
    static const int64_t numbers[] = {0, 1, -1, INT64_MAX, INT64_MIN, 1234567890123};
    struct params params;
    struct array_reader array;
    int64_t number = 0;

    params_init(&params);
    params_array_open(&params, PG_INT8, 6);
    for (size_t i = 0; i < 6; i++)
        params_item_int(&params, numbers[i], 8);
    params_array_close(&params);
    assert_true(array_open(&array, value_of(&params, 0), PG_INT8));
    assert_int_equal(array.count, 6);
    for (size_t i = 0; i < 6; i++) {
        assert_true(array_next_int(&array, 8, &number));
        assert_int_equal(number, numbers[i]);
    }
    assert_false(array_next_int(&array, 8, &number));
    assert_false(array_open(&array, value_of(&params, 0), PG_INT4));
    params_free(&params);
}

static void an_empty_array_is_no_null(void **state)
{
    (void)state;
    struct params params;
    struct array_reader array;

    params_init(&params);
    params_array_open(&params, PG_TEXT, 0);
    params_array_close(&params);
    assert_int_equal(value_of(&params, 0).len, 12);
    assert_true(array_open(&array, value_of(&params, 0), PG_TEXT));
    assert_int_equal(array.count, 0);
    assert_false(array_open(&array, (struct bytes){NULL, 0}, PG_TEXT));
    params_free(&params);
}

/* Walks the whole array; true when it was well-formed to its end. */
static bool reads_whole(struct bytes value)
{
    struct array_reader array;
    struct bytes item;

    if (!array_open(&array, value, PG_TEXT))
        return false;
    for (size_t i = 0; i < array.count; i++)
        if (!array_next(&array, &item))
            return false;
    return true;
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    struct params params;

    params_init(&params);
    params_array_open(&params, PG_TEXT, 3);
    params_item_bytes(&params, bytes_of_text("one"));
    params_item_bytes(&params, (struct bytes){NULL, 0});
    params_item_bytes(&params, bytes_of_text("three"));
    params_array_close(&params);
    struct bytes whole = value_of(&params, 0);
    assert_true(reads_whole(whole));
    for (size_t len = 0; len < whole.len; len++)
        assert_false(reads_whole(bytes_of(whole.data, len)));
    params_free(&params);
}

static void lies_are_refused(void **state)
{
    (void)state;
    static const uint8_t two_dimensions[] = {0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 25, 0, 0, 0, 1,
                                             0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1,  0, 0, 0, 0};
    static const uint8_t a_billion[] = {0,    0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 25,
                                        0x40, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0};
    static const uint8_t long_item[] = {0, 0, 0, 1, 0, 0, 0, 0,    0,    0,    0,    25, 0,
                                        0, 0, 1, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff, 'x'};
    static const uint8_t empty_and_more[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 25, 1};
    struct array_reader array;
    int64_t number = 0;

    assert_false(array_open(&array, bytes_of(a_billion, sizeof a_billion), PG_TEXT));
    assert_false(reads_whole(bytes_of(two_dimensions, sizeof two_dimensions)));
    assert_false(reads_whole(bytes_of(long_item, sizeof long_item)));
    assert_false(reads_whole(bytes_of(empty_and_more, sizeof empty_and_more)));
    assert_false(value_int(bytes_of("\0\0\0", 3), 4, &number));
    assert_false(value_int((struct bytes){NULL, 0}, 4, &number));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_array),
        cmocka_unit_test(integers_come_back),
        cmocka_unit_test(an_empty_array_is_no_null),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(lies_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
