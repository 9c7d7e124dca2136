/* utf8: whether bytes are UTF-8 as Postgres takes it: no NUL, no surrogates, no overlong forms,
 * nothing above U+10FFFF.
 *
 * Why mending: a sentence of Postgres or of a client may be in any encoding, and one that is cut to
 * fit may end inside a character; but a protobuf string has to be UTF-8, and a client that checks
 * that refuses the whole frame.
 */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>

#include "base/bytes.h"

/* The length of the character at `at`, of which `left` bytes are there; 0 when it is none. */
size_t utf8_character(const uint8_t *at, size_t left);

bool utf8_valid(struct bytes text);

/* Puts a '?' for every byte that is not part of a character. */
void utf8_mend(char *text);

#endif
