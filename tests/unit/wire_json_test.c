/* JSON and UTF-8: what is accepted, what is refused, and where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "wire/json_scan.h"

static enum json_verdict scan(const char *text)
{
    size_t at = 0;
    return json_scan(bytes_of_text(text), &at);
}

static void accepted(void **state)
{
    (void)state;
    static const char *const objects[] = {
        "{}",
        " {\n\t\"a\" : [ ] , \"a\":{\"\":[{}]}}\r\n",
        "{\"n\":1e131071,\"big\":123456789012345678901234567890,\"lone\":\"\\ud800\"}",
        "{\"nul\":\"\\u0000\",\"e\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\",\"u\":\"\xf0\x9f\x98\x80\"}",
    };
    static const char *const others[] = {
        "0",  "-0.0e-0",   "12.5E+7", "true",    "false",       "null", "\"\"",
        "[]", "[1,[2,3]]", " \"x\" ", "[{},{}]", "[{\"a\":1}]", "-1",   "[null,true,\"\"]",
    };

    for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++)
        assert_int_equal(scan(objects[i]), JSON_OBJECT);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_int_equal(scan(others[i]), JSON_OTHER);
}

static void malformed(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "{]",
        "[}",
        "[1,]",
        "[,1]",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{1:1}",
        "01",
        "+1",
        "1.",
        ".5",
        "1e",
        "1e+",
        "-",
        "--1",
        "tru",
        "True",
        "nul",
        "NaN",
        "\"",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u123\"",
        "\"a\nb\"",
        "'a'",
        "1 2",
        "{} {}",
        "[1 2]",
        "{\"a\" 1}",
        "[1]]",
        "{\"a\":1}}",
        "\xef\xbb\xbf{}",
        "\"\\u12",
        "[1,2",
        "{\"a\":1",
        "truex",
        "\x01",
        "\"\\",
        "{\"a\":1 \"b\":2}",
    };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (scan(texts[i]) != JSON_MALFORMED)
            fail_msg("accepted: %s", texts[i]);
    }
}

static void says_where(void **state)
{
    (void)state;
    size_t at = 0;

    assert_int_equal(json_scan(bytes_of_text("{\"a\": tru}"), &at), JSON_MALFORMED);
    assert_int_equal(at, 9);
}

static void every_truncation_is_malformed(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":[1.5e3,\"\\u00e9\\n\",{\"b\":null}],\"c\":-0}";
    size_t at = 0;

    for (size_t len = 0; len < strlen(text); len++) {
        char *copy = malloc(len + 1); /* exact, so that a read past the end is seen */
        memcpy(copy, text, len);
        assert_int_equal(json_scan(bytes_of(copy, len), &at), JSON_MALFORMED);
        free(copy);
    }
    assert_int_equal(scan(text), JSON_OBJECT);
}

static enum json_verdict scan_nested(size_t depth, const char *open, char close)
{
    size_t open_bytes = strlen(open);
    char *text = malloc(depth * (open_bytes + 1) + 2);
    size_t len = 0;
    size_t at = 0;

    for (size_t i = 0; i < depth; i++, len += open_bytes)
        memcpy(text + len, open, open_bytes + 1);
    text[len++] = '1';
    memset(text + len, close, depth);
    enum json_verdict verdict = json_scan(bytes_of(text, len + depth), &at);
    free(text);
    return verdict;
}

static void depth(void **state)
{
    (void)state;
    assert_int_equal(scan_nested(JSON_DEPTH_MAX, "[", ']'), JSON_OTHER);
    assert_int_equal(scan_nested(JSON_DEPTH_MAX + 1, "[", ']'), JSON_TOO_DEEP);
    assert_int_equal(scan_nested(JSON_DEPTH_MAX, "{\"a\":", '}'), JSON_OBJECT);
    assert_int_equal(scan_nested(JSON_DEPTH_MAX + 1, "{\"a\":", '}'), JSON_TOO_DEEP);
    assert_int_equal(scan_nested(200000, "[", ']'), JSON_TOO_DEEP);
}

static void not_utf8(void **state)
{
    (void)state;
    assert_int_equal(scan("\"\xff\""), JSON_NOT_UTF8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted),   cmocka_unit_test(malformed),
        cmocka_unit_test(says_where), cmocka_unit_test(every_truncation_is_malformed),
        cmocka_unit_test(depth),      cmocka_unit_test(not_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
