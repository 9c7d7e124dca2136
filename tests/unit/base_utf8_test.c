/* utf8: what is UTF-8; and texts that are made so, sentences about errors among them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/utf8.h"

static void valid(void **state)
{
    (void)state;
    static const char *const good[] = {
        "",
        "a",
        "\x7f",
        "\xc2\x80",
        "\xdf\xbf",
        "\xe0\xa0\x80",
        "\xed\x9f\xbf",
        "\xee\x80\x80",
        "\xef\xbf\xbf",
        "\xf0\x90\x80\x80",
        "\xf4\x8f\xbf\xbf",
    };
    static const char *const bad[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc1\xbf",
        "\xc2",
        "\xc2\x61",
        "\xe0\x9f\xbf",
        "\xe1\x80",
        "\xe1\x80\x61",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf",
        "\xf1\x80\x80",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xff",
        "a\xfe",
    };

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(utf8_valid(bytes_of_text(good[i])));
        for (size_t len = 1; len < strlen(good[i]); len++) /* cut inside the character */
            assert_false(utf8_valid(bytes_of(good[i], len)));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(utf8_valid(bytes_of_text(bad[i])));
    assert_false(utf8_valid(bytes_of("a\0b", 3)));
}

static void mends(const char *text, const char *expected)
{
    char copy[64];

    snprintf(copy, sizeof copy, "%s", text);
    utf8_mend(copy);
    assert_string_equal(copy, expected);
}

static void what_is_none_becomes_question_marks(void **state)
{
    (void)state;
    mends("", "");
    mends("Z\xc3\xbcrich", "Z\xc3\xbcrich");
    mends("Z\xfcrich", "Z?rich"); /* Latin-1 */
    mends("cut \xf0\x9f\x98", "cut ???");
    mends("\xed\xa0\x80\x80", "????");
}

/* Wherever the cut falls. */
static void a_sentence_that_is_cut_is_still_utf8(void **state)
{
    (void)state;
    char text[2 * ERR_MESSAGE_BYTES + 1];
    struct err err;

    for (size_t before = 0; before < 4; before++) {
        memset(text, 'x', before);
        for (size_t at = before; at + 4 < sizeof text; at += 4)
            memcpy(text + at, "\xf0\x9f\x98\x80", 5);
        err_set(&err, CODE_INTERNAL, "%s", text);
        assert_int_equal(strlen(err.message), ERR_MESSAGE_BYTES - 1);
        assert_true(utf8_valid(bytes_of_text(err.message)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid),
        cmocka_unit_test(what_is_none_becomes_question_marks),
        cmocka_unit_test(a_sentence_that_is_cut_is_still_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
