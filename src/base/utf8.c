/* utf8: see utf8.h. Each lead byte fixes the range of the byte after it; that range is what
 * excludes overlong forms, surrogates and code points that do not exist. */
#include "base/utf8.h"

struct lead {
    uint8_t last; /* the highest lead byte this row is for; the rows are in order */
    uint8_t tail_bytes;
    uint8_t second_min;
    uint8_t second_max;
};

static const struct lead leads[] = {
    {0xc1, 0, 1, 0}, /* a tail byte, or an overlong lead: no second byte fits */
    {0xdf, 1, 0x80, 0xbf}, {0xe0, 2, 0xa0, 0xbf}, {0xec, 2, 0x80, 0xbf},
    {0xed, 2, 0x80, 0x9f}, {0xef, 2, 0x80, 0xbf}, {0xf0, 3, 0x90, 0xbf},
    {0xf3, 3, 0x80, 0xbf}, {0xf4, 3, 0x80, 0x8f}, {0xff, 0, 1, 0},
};

static bool is_tail(uint8_t byte)
{
    return (byte & 0xc0) == 0x80;
}

/* Of a character that is not ASCII. */
static size_t multibyte_character(const uint8_t *at, size_t left)
{
    const struct lead *lead = leads;

    while (at[0] > lead->last)
        lead++;
    if (left < 2 || left < (size_t)lead->tail_bytes + 1 || at[1] < lead->second_min ||
        at[1] > lead->second_max)
        return 0;
    for (size_t i = 2; i <= lead->tail_bytes; i++) {
        if (!is_tail(at[i]))
            return 0;
    }
    return (size_t)lead->tail_bytes + 1;
}

size_t utf8_character(const uint8_t *at, size_t left)
{
    if (left == 0 || at[0] == '\0')
        return 0;
    return at[0] < 0x80 ? 1 : multibyte_character(at, left);
}

/* Eight bytes that are all ASCII and not NUL: nearly all text is, and this is on the hot path. */
static bool is_plain_word(const uint8_t *at)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    const uint64_t highs = UINT64_C(0x8080808080808080);
    uint64_t word;

    memcpy(&word, at, sizeof word);
    return ((word | (word - ones)) & highs) == 0;
}

bool utf8_valid(struct bytes text)
{
    size_t at = 0;

    while (at < text.len) {
        if (text.len - at >= sizeof(uint64_t) && is_plain_word(text.data + at)) {
            at += sizeof(uint64_t);
            continue;
        }
        size_t len = utf8_character(text.data + at, text.len - at);
        if (len == 0)
            return false;
        at += len;
    }
    return true;
}

void utf8_mend(char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        size_t len = utf8_character((const uint8_t *)text, left);
        if (len == 0) {
            *text = '?';
            len = 1;
        }
        text += len;
        left -= len;
    }
}
