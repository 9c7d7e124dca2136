/* conf_nearest: which setting a mistyped name was meant to be. */
#include <string.h>

#include "base/conf_table.h"

enum { WORD_BYTES_MAX = 40 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein's distance: how many letters must be put in, taken out or changed. */
static size_t distance(const char *one, size_t one_len, const char *other, size_t other_len)
{
    size_t row[WORD_BYTES_MAX + 1];

    for (size_t j = 0; j <= other_len; j++)
        row[j] = j;
    for (size_t i = 1; i <= one_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= other_len; j++) {
            size_t changed = diagonal + (one[i - 1] != other[j - 1]);
            diagonal = row[j];
            row[j] = least(changed, least(row[j], row[j - 1]) + 1);
        }
    }
    return row[other_len];
}

const struct conf_row *conf_nearest(const char *name, size_t len, bool in_file)
{
    const struct conf_row *nearest = NULL;
    size_t best = len / 3 + 1; /* farther than that it is another word */

    if (len > WORD_BYTES_MAX)
        return NULL;
    for (size_t i = 0; i < CONF_COUNT; i++) {
        const struct conf_row *row = &conf_rows[i];
        const char *right = in_file ? row->name : row->flag;
        if ((in_file && row->trait == CONF_NOT_IN_FILE) || strlen(right) > WORD_BYTES_MAX)
            continue;
        size_t far = distance(name, len, right, strlen(right));
        if (far < best) {
            best = far;
            nearest = row;
        }
    }
    return nearest;
}
