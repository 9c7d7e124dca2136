/* log_json: see log_json.h.
 *
 * The line is key=value, values with spaces in double quotes; log_text() has left no quote and no
 * backslash inside. A line that was cut may end in the middle of a value, or of a character.
 */
#include "base/log_json.h"

#include <stdbool.h>
#include <string.h>

#include "base/utf8.h"

enum { NUMBER_DIGITS_MAX = 15 }; /* more than that and a double would round */

static char *put(char *out, const char *text, size_t len)
{
    memcpy(out, text, len);
    return out + len;
}

static char *put_string(char *out, const char *text, size_t len)
{
    *out++ = '"';
    for (size_t i = 0, step = 0; i < len; i += step) {
        size_t character = utf8_character((const uint8_t *)text + i, len - i);
        step = character > 0 ? character : 1;
        if (character == 0 || (unsigned char)text[i] < ' ')
            *out++ = '?';
        else if (text[i] == '"' || text[i] == '\\')
            out = put(put(out, "\\", 1), text + i, 1);
        else
            out = put(out, text + i, step);
    }
    *out++ = '"';
    return out;
}

static bool is_number(const char *text, size_t len)
{
    size_t sign = len > 0 && text[0] == '-';
    size_t digits = strspn(text + sign, "0123456789");

    return digits > 0 && sign + digits == len && digits <= NUMBER_DIGITS_MAX &&
           (digits == 1 || text[sign] != '0');
}

/* Writes one pair and returns where the next may begin. */
static const char *put_pair(char **out, const char *at, bool is_first)
{
    size_t key = strcspn(at, "= ");
    const char *value = at + key + (at[key] == '=');
    bool quoted = *value == '"';

    value += quoted;
    size_t len = strcspn(value, quoted ? "\"" : " ");
    *out = put(*out, ",", !is_first);
    *out = put_string(*out, at, key);
    *out = put(*out, ":", 1);
    if (!quoted && is_number(value, len) && strncmp(at, "sqlstate=", 9) != 0)
        *out = put(*out, value, len);
    else
        *out = put_string(*out, value, len);
    return value + len + (quoted && value[len] == '"');
}

size_t log_json(char out[LOG_JSON_BYTES_MAX], const char *line)
{
    char *end = put(out, "{", 1);
    const char *at = line + strspn(line, " ");

    for (bool is_first = true; *at != '\0'; is_first = false) {
        at = put_pair(&end, at, is_first);
        at += strspn(at, " ");
    }
    return (size_t)(put(end, "}\n", 2) - out);
}
