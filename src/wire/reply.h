/* reply: the frames the proxy sends, packed straight into an output buffer.
 *
 * Invariant: a frame is never longer than FRAME_BYTES_MAX; whoever builds one keeps to it (a
 * ClaimOk is cut by bytes), so a longer one is a mistake of the programmer. Not here: deciding what
 * to answer.
 */
#ifndef WIRE_REPLY_H
#define WIRE_REPLY_H

#include "awa/v1/awa.pb-c.h"
#include "base/buf.h"
#include "base/err.h"

/* Appends length prefix and message. */
void reply_add(struct buf *out, const Awa__V1__ServerFrame *frame);

/* Fills the wire's form of an error; it borrows the texts of *why. */
void reply_error_init(Awa__V1__Error *error, const struct err *why);

#endif
