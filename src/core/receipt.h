/* receipt: the token a worker gets with a job and hands back to end the attempt.
 *
 * What: 32 bytes, big endian: version u8 = 1, claim_slot u8, index u16, batch_id u64, nonce u64,
 * job_id u64, run_lease u32. It says where the storage keeps the claim, so that ending it needs no
 * look-up. Why a nonce: a receipt of a claim that was lost in a crash must not fit its successor.
 * Opaque to clients. Whether it is still good is decided by the storage, never here.
 */
#ifndef CORE_RECEIPT_H
#define CORE_RECEIPT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

enum { RECEIPT_VERSION = 1, RECEIPT_BYTES = 32 };

struct receipt {
    uint64_t batch_id;
    uint64_t nonce;
    uint64_t job_id;
    uint32_t run_lease;
    uint16_t index; /* from 1 */
    uint8_t claim_slot;
};

void receipt_encode(const struct receipt *receipt, uint8_t out[RECEIPT_BYTES]);

/* False when it is not one of ours: length, version, or a number out of the storage's range. */
bool receipt_decode(struct bytes token, struct receipt *receipt);

/* The order complete_batch wants: claim slot, batch, index. A forged nonce makes a batch of its
 * own. */
int receipt_compare(const struct receipt *a, const struct receipt *b);

bool receipt_equal(const struct receipt *a, const struct receipt *b);

#endif
