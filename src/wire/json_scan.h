/* json_scan: whether bytes are one JSON text (RFC 8259), not nested too deep.
 *
 * Why: args and metadata are kept byte for byte, so nothing is parsed into objects; but what
 * Postgres' json type would refuse must be refused here, for that job alone, before it fails a
 * whole batch. Accepts what that type accepts: any number however large, duplicate keys, \u0000 and
 * lone surrogates as escapes. Bounded: one pass, no recursion, no allocation.
 */
#ifndef WIRE_JSON_SCAN_H
#define WIRE_JSON_SCAN_H

#include "base/bytes.h"

enum json_verdict {
    JSON_OBJECT,
    JSON_OTHER, /* an array or a scalar */
    JSON_MALFORMED,
    JSON_TOO_DEEP,
    JSON_NOT_UTF8, /* or a NUL byte */
};

/* At most JSON_DEPTH_MAX (limits.h) arrays and objects inside each other. *at is the offset of the
 * first byte that is wrong. */
enum json_verdict json_scan(struct bytes text, size_t *at);

#endif
