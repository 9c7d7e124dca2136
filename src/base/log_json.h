/* log_json: a logfmt line of log.c as a JSON object. Only for log.c. */
#ifndef BASE_LOG_JSON_H
#define BASE_LOG_JSON_H

#include <stddef.h>

#include "base/log.h"

/* Two bytes of the line, a key of one letter and a space, may become eight. The line begins with a
 * time, which makes up for the brackets. */
enum { LOG_JSON_BYTES_MAX = 4 * LOG_LINE_BYTES_MAX };

/* Writes the object and a newline; returns how many bytes. A bare whole number becomes a number,
 * everything else a text; sqlstate always is a text, for 40001 and 57P01 must be of one type. */
size_t log_json(char out[LOG_JSON_BYTES_MAX], const char *line);

#endif
