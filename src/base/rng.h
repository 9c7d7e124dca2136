/* rng: numbers nobody can guess, from the kernel (getrandom), drawn in blocks.
 *
 * Used for nonces, session ids and jitter. The caller owns the state. A test gives core its own
 * source through struct env instead.
 */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stddef.h>
#include <stdint.h>

enum { RNG_WORDS = 32 }; /* 256 bytes: what getrandom gives in one piece */

struct rng {
    uint64_t words[RNG_WORDS];
    size_t left;
};

void rng_init(struct rng *rng);
uint64_t rng_u64(struct rng *rng);

#endif
