/* utf8: whether bytes are UTF-8 as Postgres takes it: no NUL, no surrogates, no overlong forms,
 * nothing above U+10FFFF. */
#ifndef WIRE_UTF8_H
#define WIRE_UTF8_H

#include <stdbool.h>

#include "base/bytes.h"

bool utf8_valid(struct bytes text);

#endif
