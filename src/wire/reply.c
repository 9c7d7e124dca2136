/* reply: see reply.h. */
#include "wire/reply.h"

#include "base/check.h"
#include "base/limits.h"
#include "wire/frame.h"

static_assert((int)CODE_UNAUTHENTICATED == (int)AWA__V1__CODE__UNAUTHENTICATED, "one numbering");

void reply_add(struct buf *out, const Awa__V1__ServerFrame *frame)
{
    size_t body_bytes = awa__v1__server_frame__get_packed_size(frame);
    CHECK(body_bytes <= FRAME_BYTES_MAX);

    uint8_t *at = buf_reserve(out, FRAME_PREFIX_BYTES_MAX + body_bytes);
    size_t prefix_bytes = frame_put_prefix(at, (uint32_t)body_bytes);
    size_t packed_bytes = awa__v1__server_frame__pack(frame, at + prefix_bytes);
    CHECK(packed_bytes == body_bytes);
    buf_commit(out, prefix_bytes + body_bytes);
}

void reply_error_init(Awa__V1__Error *error, const struct err *why)
{
    awa__v1__error__init(error);
    error->code = (Awa__V1__Code)why->code;
    error->retryable = why->retryable;
    error->message = (char *)(uintptr_t)why->message; /* protobuf-c knows no const; it only reads */
    error->sqlstate = (char *)(uintptr_t)why->sqlstate;
}
