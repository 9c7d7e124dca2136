/* scan: one pass over the raw bytes of a ClientFrame before anything is allocated for it.
 *
 * Why: protobuf-c unpacks without limits of its own: it recurses as deep as the bytes say,
 * allocates for every element and unknown field, does not look whether a string is UTF-8, and cuts
 * it at a NUL. What: checks the wire format, the depth, the number of elements and unknown fields;
 * finds the request_id and the kind of request; notes which items hold a string that is no text,
 * and in which field.
 * Invariant: after SCAN_OK the frame unpacks, unless the arena's budget is used up.
 * Not here: the meaning of a field (message.c).
 */
#ifndef WIRE_SCAN_H
#define WIRE_SCAN_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/err.h"
#include "base/limits.h"

/* Elements of Enqueue.jobs or Finish.items. */
enum { SCAN_ITEMS_MAX = JOBS_PER_ENQUEUE_MAX };
static_assert((int)SCAN_ITEMS_MAX >= (int)ITEMS_PER_FINISH_MAX, "every item has its place");

/* Not cleared for each frame as a whole: a field's name is there only where the bit is set. */
struct scan_faults {
    uint8_t bits[(SCAN_ITEMS_MAX + CHAR_BIT - 1) / CHAR_BIT];
    const char *fields[SCAN_ITEMS_MAX];
};

/* The field of the item that is no text; NULL: none. */
static inline const char *scan_fault_at(const struct scan_faults *faults, size_t item)
{
    bool is_faulty = faults->bits[item / CHAR_BIT] >> (item % CHAR_BIT) & 1;
    return is_faulty ? faults->fields[item] : NULL;
}

enum scan_verdict {
    SCAN_OK,
    SCAN_REFUSED, /* *why is for request_id */
    SCAN_BROKEN,  /* the bytes are no ClientFrame */
};

struct scan_result {
    uint64_t request_id;
    struct scan_faults faults;
};

MUST_CHECK enum scan_verdict scan_frame(struct bytes body, struct scan_result *result,
                                        struct err *why);

#endif
