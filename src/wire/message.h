/* message: one frame of a client, decoded and judged.
 *
 * What: bytes of a frame become an Awa__V1__ClientFrame in an arena, or a refusal that names the
 * thing and the limit. Faults of the request as a whole are found by message_decode; faults of one
 * job or one outcome only by message_check_job and message_check_item, so that one bad item never
 * fails its batch. Why in this order: the raw bytes are scanned first (scan.h), then unpacked with
 * a budgeted allocator, then judged. Nothing is allocated for a frame that is over a limit.
 * Invariant: what passes here has valid enums, lengths, alphabets, UTF-8 without NUL, and JSON.
 * Not here: what is right only in a state (Hello first, request ids in use): net and core.
 */
#ifndef WIRE_MESSAGE_H
#define WIRE_MESSAGE_H

#include "awa/v1/awa.pb-c.h"
#include "base/arena.h"
#include "base/bytes.h"
#include "base/err.h"
#include "wire/scan.h"

enum message_verdict {
    MESSAGE_OK,
    MESSAGE_REFUSED, /* answer *why under message.request_id; the session goes on */
    MESSAGE_BROKEN,  /* no request to answer: send *why under request_id 0 and close */
};

struct message {
    uint64_t request_id;
    const Awa__V1__ClientFrame *frame; /* in the arena; NULL unless MESSAGE_OK */
    struct scan_result scanned;        /* which items' strings are no text */
};

/* The arena's limit is the budget; it is left to the caller to free it, also after a refusal. */
MUST_CHECK enum message_verdict message_decode(struct arena *arena, struct bytes body,
                                               struct message *message, struct err *why);

/* Judges element `index` of Enqueue.jobs. */
MUST_CHECK enum code message_check_job(const struct message *message, size_t index,
                                       struct err *why);

/* Judges element `index` of Finish.items; the receipt itself is core's to read. */
MUST_CHECK enum code message_check_item(const struct message *message, size_t index,
                                        struct err *why);

#endif
