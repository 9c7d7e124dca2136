/* log: see log.h. */
#include "base/log.h"

#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log_json.h"

enum {
    US_PER_LINE = US_PER_S / LOG_LINES_PER_S,
    AHEAD_US_MAX = (LOG_LINES_AT_ONCE - 1) * US_PER_LINE
};

static struct {
    enum log_level level;
    enum log_format format;
    uint64_t spent_until_us; /* see within_budget */
    unsigned long dropped;
} log_state = {.level = LOG_INFO};

static const char *level_name(enum log_level level)
{
    switch (level) {
    case LOG_DEBUG: return "debug";
    case LOG_INFO: return "info";
    case LOG_WARN: return "warn";
    case LOG_ERROR: return "error";
    }
    return "?";
}

void log_set_level(enum log_level level)
{
    log_state.level = level;
}

void log_set_format(enum log_format format)
{
    log_state.format = format;
}

/* Each line spends US_PER_LINE of the time, and as much as LOG_LINES_AT_ONCE of them need may be
 * spent before it has come. */
static bool within_budget(void)
{
    uint64_t now_us = clock_mono_us();

    if (log_state.spent_until_us < now_us)
        log_state.spent_until_us = now_us;
    if (log_state.spent_until_us > now_us + AHEAD_US_MAX) {
        log_state.dropped++;
        return false;
    }
    log_state.spent_until_us += US_PER_LINE;
    return true;
}

void log_make_room(void)
{
    log_state.spent_until_us = 0;
}

/* What is used after snprintf wanted to write so much. */
static size_t used_after(size_t used, int written)
{
    size_t left = LOG_LINE_BYTES_MAX - used;

    if (written < 0)
        return used;
    return (size_t)written < left ? used + (size_t)written : LOG_LINE_BYTES_MAX - 1;
}

/* A pipe that nobody empties is full some day. One that is writable takes PIPE_BUF bytes at once,
 * so a line of no more does not wait. */
_Static_assert((int)LOG_JSON_BYTES_MAX <= PIPE_BUF, "a line fits into a pipe that is writable");
static bool is_writable(void)
{
    struct pollfd waiting = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&waiting, 1, 0) > 0;
}

/* The line so far has no newline. False: nobody reads, and there is no room for it. */
static bool put_line(char *line, size_t used)
{
    char json[LOG_JSON_BYTES_MAX];
    const char *out = line;

    line[used] = '\0';
    if (log_state.format == LOG_JSON) {
        used = log_json(json, line);
        out = json;
    } else {
        line[used++] = '\n';
    }
    if (!is_writable())
        return false;
    if (write(STDERR_FILENO, out, used) < 0) {
        /* stderr is gone: there is nobody left to tell */
    }
    return true;
}

/* Time, level and name; returns how much of the line is used. */
static size_t begin_line(char *line, const char *level, const char *event)
{
    int64_t wall_us = clock_wall_us();
    time_t seconds = (time_t)(wall_us / US_PER_S);
    struct tm utc;

    gmtime_r(&seconds, &utc);
    size_t used = strftime(line, LOG_LINE_BYTES_MAX, "ts=%Y-%m-%dT%H:%M:%S", &utc);
    return used_after(used,
                      snprintf(line + used, LOG_LINE_BYTES_MAX - used, ".%03dZ level=%s event=%s ",
                               (int)(wall_us / US_PER_MS % 1000), level, event));
}

void log_event(enum log_level level, const char *event, const char *format, ...)
{
    char line[LOG_LINE_BYTES_MAX + 1];
    va_list args;

    if (level < log_state.level || !within_budget())
        return;
    size_t used = begin_line(line, level_name(level), event);
    if (log_state.dropped > 0)
        used = used_after(used, snprintf(line + used, LOG_LINE_BYTES_MAX - used, "log_dropped=%lu ",
                                         log_state.dropped));
    va_start(args, format);
    used = used_after(used, vsnprintf(line + used, LOG_LINE_BYTES_MAX - used, format, args));
    va_end(args);
    log_state.dropped = put_line(line, used) ? 0 : log_state.dropped + 1;
}

void log_fatal(const char *event, const char *format, ...)
{
    char line[LOG_LINE_BYTES_MAX + 1];
    size_t used = begin_line(line, "fatal", event);
    va_list args;

    va_start(args, format);
    used = used_after(used, vsnprintf(line + used, LOG_LINE_BYTES_MAX - used, format, args));
    va_end(args);
    put_line(line, used);
    abort();
}

void log_ready(const char *format, ...)
{
    char line[LOG_LINE_BYTES_MAX + 1];
    size_t used = 0;
    va_list args;

    used = used_after(used, snprintf(line, LOG_LINE_BYTES_MAX, "%s",
                                     log_state.format == LOG_JSON ? "event=ready " : "ready "));
    va_start(args, format);
    used = used_after(used, vsnprintf(line + used, LOG_LINE_BYTES_MAX - used, format, args));
    va_end(args);
    log_state.dropped += !put_line(line, used);
}

const char *log_text(char *out, size_t out_bytes, const char *text)
{
    size_t i = 0;

    for (; i + 1 < out_bytes && text[i] != '\0'; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < ' ')
            out[i] = ' ';
        else if (c == '"' || c == '\\')
            out[i] = '\'';
        else
            out[i] = text[i];
    }
    out[i] = '\0';
    return out;
}
