/* answers: what core says (core/answer.h) as frames of the wire, appended to a connection's output.
 */
#ifndef APP_ANSWERS_H
#define APP_ANSWERS_H

#include "base/arena.h"
#include "base/buf.h"
#include "core/answer.h"

/* scratch holds the message while it is packed, and is reset. */
void answer_add(struct buf *out, struct arena *scratch, uint64_t request_id,
                const struct answer *answer);

#endif
