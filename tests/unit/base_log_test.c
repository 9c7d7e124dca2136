/* log: a logfmt line as a JSON object; and what is never dropped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/check.h"
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
    static const char beginning[] = "ts=2026-01-02T03:04:05.678Z level=info event=x ";
    char line[LOG_LINE_BYTES_MAX + 1];
    char out[LOG_JSON_BYTES_MAX];

    for (size_t i = 0; i < LOG_LINE_BYTES_MAX; i++)
        line[i] = i % 2 == 0 ? '\\' : ' '; /* the most members, and what has to be escaped */
    memcpy(line, beginning, sizeof beginning - 1);
    line[LOG_LINE_BYTES_MAX] = '\0';
    assert_in_range(log_json(out, line), LOG_JSON_BYTES_MAX * 9 / 10, sizeof out);
    memset(line, '\\', LOG_LINE_BYTES_MAX);
    assert_in_range(log_json(out, line), 1, sizeof out);
}

/* What is written while this many lines of noise come at once, and then an end for which there is
 * room, or not. To be freed. */
static char *said(int lines, bool room)
{
    enum { BYTES_MAX = 256 * 1024 };
    char *text = malloc(BYTES_MAX);
    FILE *file = tmpfile();
    int before = dup(STDERR_FILENO);

    assert_true(text != NULL && file != NULL && before >= 0);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    log_make_room();
    for (int i = 0; i < lines; i++)
        log_event(LOG_ERROR, "noise", "i=%d.", i);
    if (room)
        log_make_room();
    log_event(LOG_INFO, "end", "clean=%s", "yes");
    assert_int_equal(dup2(before, STDERR_FILENO), STDERR_FILENO);
    close(before);
    rewind(file);
    text[fread(text, 1, BYTES_MAX - 1, file)] = '\0';
    fclose(file);
    return text;
}

static void a_burst_is_not_dropped(void **state)
{
    (void)state;
    char *text = said(LOG_LINES_AT_ONCE - 1, false);

    for (int i = 0; i < LOG_LINES_AT_ONCE - 1; i++) {
        char line[32];
        snprintf(line, sizeof line, "event=noise i=%d.", i);
        assert_non_null(strstr(text, line));
    }
    assert_non_null(strstr(text, "event=end clean=yes"));
    free(text);
}

static void what_room_was_made_for_is_not_dropped(void **state)
{
    (void)state;
    char *text = said(4 * LOG_LINES_AT_ONCE, true);

    assert_non_null(strstr(text, "event=end log_dropped="));
    free(text);
}

/* Until not a byte more goes in without waiting. */
static void fill_pipe(int fd)
{
    static const char byte = 'x';

    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    while (write(fd, &byte, 1) == 1)
        continue;
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(fd, F_SETFL, 0), 0);
}

/* What can be read of it. */
static size_t drain_pipe(int fd, char *text, size_t room)
{
    size_t len = 0;

    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    for (ssize_t got = 1; got > 0 && len<room; len += got> 0 ? (size_t)got : 0)
        got = read(fd, text + len, room - len);
    return len;
}

static void who_does_not_read_the_log_holds_up_nobody(void **state)
{
    (void)state;
    static char text[256 * 1024];
    int ends[2];
    int before = dup(STDERR_FILENO);

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    fill_pipe(ends[1]);
    alarm(30); /* it ends the test where a line waits for room */
    log_make_room();
    log_event(LOG_ERROR, "unread", "n=%d", 1);
    log_event(LOG_ERROR, "unread", "n=%d", 2);
    drain_pipe(ends[0], text, sizeof text);
    log_event(LOG_ERROR, "read", "n=%d", 3);
    alarm(0);
    dup2(before, STDERR_FILENO);
    text[drain_pipe(ends[0], text, sizeof text - 1)] = '\0';
    assert_null(strstr(text, "event=unread"));
    assert_non_null(strstr(text, "event=read log_dropped=2 n=3"));
    close(before);
    close(ends[0]);
    close(ends[1]);
}

/* In a child, whose stderr is read here. */
static void a_fatal_line_is_of_the_format_of_all(void **state)
{
    (void)state;
    char text[1024];
    int ends[2];
    int status = 0;

    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        log_set_format(LOG_JSON);
        check_failed("strcmp(a, \"b\") == 0", "f.c", 7);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    text[drain_pipe(ends[0], text, sizeof text - 1)] = '\0';
    assert_non_null(strstr(text,
                           "\"level\":\"fatal\",\"event\":\"check_failed\","
                           "\"condition\":\"strcmp(a, 'b') == 0\",\"file\":\"f.c\",\"line\":7}"));
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_burst_is_not_dropped),
        cmocka_unit_test(what_room_was_made_for_is_not_dropped),
        cmocka_unit_test(who_does_not_read_the_log_holds_up_nobody),
        cmocka_unit_test(a_fatal_line_is_of_the_format_of_all),
        cmocka_unit_test(pairs_become_members),
        cmocka_unit_test(only_whole_numbers_are_numbers),
        cmocka_unit_test(what_was_cut_is_still_an_object),
        cmocka_unit_test(the_longest_line_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
