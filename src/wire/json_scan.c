/* json_scan: see json_scan.h. One loop alternates between "a value begins" and "a value has ended";
 * a bit per open level says whether it is an object. */
#include "wire/json_scan.h"

#include "base/limits.h"
#include "base/utf8.h"

static_assert(JSON_DEPTH_MAX <= 64, "a level is one bit of `objects`");

struct scanner {
    const uint8_t *at;
    const uint8_t *end;
    uint64_t objects; /* bit 0 is the innermost open level; 1 = object */
    unsigned depth;
    bool too_deep;
};

static bool peek(const struct scanner *s, uint8_t byte)
{
    return s->at < s->end && *s->at == byte;
}

static bool accept(struct scanner *s, uint8_t byte)
{
    bool there = peek(s, byte);
    s->at += there;
    return there;
}

static void skip_space(struct scanner *s)
{
    while (accept(s, ' ') || accept(s, '\n') || accept(s, '\t') || accept(s, '\r'))
        ;
}

static bool accept_word(struct scanner *s, const char *word)
{
    while (*word != '\0' && accept(s, (uint8_t)*word))
        word++;
    return *word == '\0';
}

static bool accept_digits(struct scanner *s)
{
    const uint8_t *start = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9')
        s->at++;
    return s->at > start;
}

static bool accept_number(struct scanner *s)
{
    accept(s, '-');
    if (!accept(s, '0') && !accept_digits(s))
        return false;
    if (accept(s, '.') && !accept_digits(s))
        return false;
    if (!accept(s, 'e') && !accept(s, 'E'))
        return true;
    if (!accept(s, '+'))
        accept(s, '-');
    return accept_digits(s);
}

static bool is_hex(uint8_t byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'f') ||
           (byte >= 'A' && byte <= 'F');
}

/* After the backslash. */
static bool accept_escape(struct scanner *s)
{
    if (accept(s, 'u')) {
        for (int i = 0; i < 4; i++, s->at++) {
            if (s->at == s->end || !is_hex(*s->at))
                return false;
        }
        return true;
    }
    if (s->at == s->end || memchr("\"\\/bfnrt", *s->at, 8) == NULL)
        return false;
    s->at++;
    return true;
}

static bool accept_string(struct scanner *s)
{
    if (!accept(s, '"'))
        return false;
    while (s->at < s->end && *s->at >= 0x20) {
        if (accept(s, '"'))
            return true;
        if (accept(s, '\\')) {
            if (!accept_escape(s))
                return false;
        } else {
            s->at++;
        }
    }
    return false;
}

static bool accept_scalar(struct scanner *s)
{
    if (peek(s, '"'))
        return accept_string(s);
    if (peek(s, 't'))
        return accept_word(s, "true");
    if (peek(s, 'f'))
        return accept_word(s, "false");
    if (peek(s, 'n'))
        return accept_word(s, "null");
    return accept_number(s);
}

/* The name of a member and its colon; true at once inside an array, which has none. */
static bool accept_name(struct scanner *s)
{
    if (!(s->objects & 1))
        return true;
    skip_space(s);
    if (!accept_string(s))
        return false;
    skip_space(s);
    return accept(s, ':');
}

static bool open_level(struct scanner *s, bool is_object)
{
    s->too_deep = s->depth == JSON_DEPTH_MAX;
    if (s->too_deep)
        return false;
    s->at++;
    s->depth++;
    s->objects = s->objects << 1 | is_object;
    return true;
}

static bool close_level(struct scanner *s)
{
    if (s->depth == 0 || !accept(s, s->objects & 1 ? '}' : ']'))
        return false;
    s->depth--;
    s->objects >>= 1;
    return true;
}

/* Scans from the beginning of a value to the end of a scalar or of an empty array or object. */
static bool accept_value(struct scanner *s)
{
    for (;;) {
        skip_space(s);
        bool is_object = peek(s, '{');
        if (!is_object && !peek(s, '['))
            return accept_scalar(s);
        if (!open_level(s, is_object))
            return false;
        skip_space(s);
        if (close_level(s))
            return true;
        if (!accept_name(s))
            return false;
    }
}

static bool accept_text(struct scanner *s)
{
    for (;;) {
        if (!accept_value(s))
            return false;
        skip_space(s);
        while (close_level(s))
            skip_space(s);
        if (s->depth == 0)
            return s->at == s->end;
        if (!accept(s, ',') || !accept_name(s))
            return false;
    }
}

enum json_verdict json_scan(struct bytes text, size_t *at)
{
    struct scanner s = {.at = text.data, .end = text.data + text.len};

    *at = 0;
    if (!utf8_valid(text))
        return JSON_NOT_UTF8;
    skip_space(&s);
    bool is_object = peek(&s, '{');
    bool ok = accept_text(&s);
    *at = (size_t)(s.at - text.data);
    if (ok)
        return is_object ? JSON_OBJECT : JSON_OTHER;
    return s.too_deep ? JSON_TOO_DEEP : JSON_MALFORMED;
}
