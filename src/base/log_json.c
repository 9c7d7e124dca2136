/* log_json: see log_json.h.
 *
 * The line is key=value, values with spaces in double quotes; log_text() has left no quote and no
 * backslash inside. A line that was cut may end in the middle of a value, or of a character.
 */
#include "base/log_json.h"

#include <stdbool.h>
#include <string.h>

enum { NUMBER_DIGITS_MAX = 15 }; /* more than that and a double would round */

/* How many bytes the UTF-8 character at `at` has; 0 when it is none. Not exact about which are
 * assigned: it only has to keep the object readable. */
static size_t character_len(const char *at)
{
    const unsigned char *byte = (const unsigned char *)at;
    size_t len = byte[0] < 0x80                      ? 1
                 : byte[0] >= 0xc2 && byte[0] < 0xe0 ? 2
                 : byte[0] >= 0xe0 && byte[0] < 0xf0 ? 3
                 : byte[0] >= 0xf0 && byte[0] < 0xf5 ? 4
                                                     : 0;
    for (size_t i = 1; i < len; i++)
        if ((byte[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

static char *put(char *out, const char *text, size_t len)
{
    memcpy(out, text, len);
    return out + len;
}

static char *put_string(char *out, const char *text, size_t len)
{
    *out++ = '"';
    for (size_t i = 0, step = 0; i < len; i += step) {
        size_t character = character_len(text + i);
        step = character > 0 && i + character <= len ? character : 1;
        if (character == 0 || i + character > len || (unsigned char)text[i] < ' ')
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
