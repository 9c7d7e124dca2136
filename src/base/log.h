/* log: one event, one line on stderr, as logfmt or as a JSON object.
 *
 * Use: log_event(LOG_WARN, "pg_lost", "pid=%d reason=\"%s\"", pid, reason). The event name is a
 * constant that an operator can search for; the rest is key=value. Quote what may hold spaces with
 * log_text(); a value that stays bare holds no space. docs/operations.md lists every event. Limits:
 * in the long run LOG_LINES_PER_S lines a second, at once LOG_LINES_AT_ONCE (a server that goes and
 * comes back is worth a line a connection, several times over), and none that stderr has no room
 * for: who does not read the log does not hold up the loop. What is dropped is counted and said in
 * the next line.
 * Never called per job or per request, unless something is wrong with it. Never given a secret.
 * State: the level, the format and the line budget are the only mutable static data of the proxy,
 * private to log.c.
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stddef.h>

#include "base/err.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

enum { LOG_LINES_PER_S = 50, LOG_LINES_AT_ONCE = 500, LOG_LINE_BYTES_MAX = 1024 };

enum log_format { LOG_LOGFMT, LOG_JSON };

void log_set_level(enum log_level level);
void log_set_format(enum log_format format);

void log_event(enum log_level level, const char *event, const char *format, ...) PRINTF_LIKE(3, 4);

/* So that what is said next is not dropped, whatever was said just before: for what a person has
 * asked for, and for the end. */
void log_make_room(void);

/* The last line, whatever the level and the budget are; then abort(). */
_Noreturn void log_fatal(const char *event, const char *format, ...) PRINTF_LIKE(2, 3);

/* The one line that a supervisor waits for: whatever the level is, and with nothing before "ready".
 */
void log_ready(const char *format, ...) PRINTF_LIKE(1, 2);

/* Makes foreign text safe inside a quoted value: no quotes, no control characters, cut to fit. */
const char *log_text(char *out, size_t out_bytes, const char *text);

#endif
