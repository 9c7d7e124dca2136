/* rng: see rng.h. */
#include "base/rng.h"

#include <errno.h>
#include <sys/random.h>

#include "base/check.h"

void rng_init(struct rng *rng)
{
    rng->left = 0;
}

static void refill(struct rng *rng)
{
    ssize_t got;

    do /* at most 256 bytes: once seeded, the kernel never gives fewer */
        got = getrandom(rng->words, sizeof rng->words, 0);
    while (got < 0 && errno == EINTR);
    CHECK(got == (ssize_t)sizeof rng->words);
    rng->left = RNG_WORDS;
}

uint64_t rng_u64(struct rng *rng)
{
    if (rng->left == 0)
        refill(rng);
    uint64_t word = rng->words[--rng->left];
    rng->words[rng->left] = 0; /* a nonce is not left lying in memory */
    return word;
}
