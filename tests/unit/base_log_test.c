/* log: a logfmt line as a JSON object; and what is never dropped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/log_json.h"

static void becomes(const char *line, const char *expected)
{
    char out[LOG_JSON_BYTES_MAX];
    size_t used = log_json(out, line);

    assert_int_equal(out[used - 1], '\n');
    out[used - 1] = '\0';
    assert_string_equal(out, expected);
}

static void pairs_become_members(void **state)
{
    (void)state;
    becomes(
        "ts=2026-01-02T03:04:05.678Z level=warn event=pg_lost pid=12 reason=\"went away\"",
        "{\"ts\":\"2026-01-02T03:04:05.678Z\",\"level\":\"warn\",\"event\":\"pg_lost\",\"pid\":12,"
        "\"reason\":\"went away\"}");
    becomes("empty= quoted=\"\" last=\"x\"", "{\"empty\":\"\",\"quoted\":\"\",\"last\":\"x\"}");
    becomes("", "{}");
}

static void only_whole_numbers_are_numbers(void **state)
{
    (void)state;
    becomes("a=0 b=-7 c=007 d=1.5 e=- f=123456789012345 g=1234567890123456",
            "{\"a\":0,\"b\":-7,\"c\":\"007\",\"d\":\"1.5\",\"e\":\"-\",\"f\":123456789012345,"
            "\"g\":\"1234567890123456\"}");
    becomes("quoted=\"5\" sqlstate=40001", "{\"quoted\":\"5\",\"sqlstate\":\"40001\"}");
}

static void what_was_cut_is_still_an_object(void **state)
{
    (void)state;
    becomes("reason=\"it ends in the mid", "{\"reason\":\"it ends in the mid\"}");
    becomes("reason=\"Zo\xc3", "{\"reason\":\"Zo?\"}");
    becomes("reason=\"Zo\xc3\"", "{\"reason\":\"Zo?\"}");
    becomes("reason=\"\xf0\x9f\x98\x80\xff\"", "{\"reason\":\"\xf0\x9f\x98\x80?\"}");
    becomes("reason=\"\xc3x\"", "{\"reason\":\"?x\"}");
    becomes("rea", "{\"rea\":\"\"}");
    becomes("path=a\\b", "{\"path\":\"a\\\\b\"}");
}

static void the_longest_line_fits(void **state)
{
    (void)state;
    char line[LOG_LINE_BYTES_MAX + 1];
    char out[LOG_JSON_BYTES_MAX];

    for (size_t i = 0; i < LOG_LINE_BYTES_MAX; i++)
        line[i] = i % 2 == 0 ? 'a' : ' '; /* the most members */
    line[LOG_LINE_BYTES_MAX] = '\0';
    assert_in_range(log_json(out, line), 1, sizeof out);
    memset(line, '\\', LOG_LINE_BYTES_MAX);
    assert_in_range(log_json(out, line), 1, sizeof out);
}

/* Whether the last words of a talkative second are in the log. */
static bool says_the_end(void)
{
    char text[64 * 1024];
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);

    assert_true(file != NULL && before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    for (int i = 0; i < 4 * LOG_LINES_PER_S; i++)
        log_event(LOG_ERROR, "noise", "i=%d", i);
    log_make_room();
    log_event(LOG_INFO, "end", "clean=%s", "yes");
    assert_int_equal(dup2(before, STDERR_FILENO), STDERR_FILENO);
    close(before);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return strstr(text, "event=end ") != NULL;
}

static void what_room_was_made_for_is_not_dropped(void **state)
{
    (void)state;
    assert_true(says_the_end());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_room_was_made_for_is_not_dropped),
        cmocka_unit_test(pairs_become_members),
        cmocka_unit_test(only_whole_numbers_are_numbers),
        cmocka_unit_test(what_was_cut_is_still_an_object),
        cmocka_unit_test(the_longest_line_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
