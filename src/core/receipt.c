/* receipt: see receipt.h. */
#include "core/receipt.h"

static uint8_t *put_be(uint8_t *out, uint64_t value, unsigned width)
{
    for (unsigned i = 0; i < width; i++)
        out[i] = (uint8_t)(value >> (8 * (width - 1 - i)));
    return out + width;
}

void receipt_encode(const struct receipt *receipt, uint8_t out[RECEIPT_BYTES])
{
    uint8_t *at = put_be(out, RECEIPT_VERSION, 1);
    at = put_be(at, receipt->claim_slot, 1);
    at = put_be(at, receipt->index, 2);
    at = put_be(at, receipt->batch_id, 8);
    at = put_be(at, receipt->nonce, 8);
    at = put_be(at, receipt->job_id, 8);
    put_be(at, receipt->run_lease, 4);
}

bool receipt_decode(struct bytes token, struct receipt *receipt)
{
    if (token.len != RECEIPT_BYTES)
        return false;
    struct cursor c = cursor_of(token);
    uint8_t version = cursor_u8(&c);
    receipt->claim_slot = cursor_u8(&c);
    receipt->index = cursor_u16(&c);
    receipt->batch_id = cursor_u64(&c);
    receipt->nonce = cursor_u64(&c);
    receipt->job_id = cursor_u64(&c);
    receipt->run_lease = cursor_u32(&c);
    return !c.failed && version == RECEIPT_VERSION && receipt->index >= 1 &&
           receipt->index <= INT16_MAX && receipt->batch_id <= INT64_MAX && receipt->job_id >= 1 &&
           receipt->job_id <= INT64_MAX && receipt->run_lease <= INT32_MAX;
}

int receipt_compare(const struct receipt *a, const struct receipt *b)
{
    if (a->claim_slot != b->claim_slot)
        return a->claim_slot < b->claim_slot ? -1 : 1;
    if (a->batch_id != b->batch_id)
        return a->batch_id < b->batch_id ? -1 : 1;
    if (a->nonce != b->nonce)
        return a->nonce < b->nonce ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

bool receipt_equal(const struct receipt *a, const struct receipt *b)
{
    return receipt_compare(a, b) == 0 && a->job_id == b->job_id && a->run_lease == b->run_lease;
}
