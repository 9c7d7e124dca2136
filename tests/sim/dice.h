/* dice: all chance of a run, from one seed (splitmix64). Core and the world around it have dice of
 * their own, so that a change in one does not shift the other's throws. */
#ifndef SIM_DICE_H
#define SIM_DICE_H

#include <stdbool.h>
#include <stdint.h>

struct dice {
    uint64_t state;
};

static inline uint64_t dice_u64(struct dice *dice)
{
    uint64_t z = dice->state += UINT64_C(0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* 0 … bound - 1; 0 of nothing. */
static inline uint64_t dice_below(struct dice *dice, uint64_t bound)
{
    return bound > 0 ? dice_u64(dice) % bound : 0;
}

/* Both ends included. */
static inline uint64_t dice_between(struct dice *dice, uint64_t low, uint64_t high)
{
    return low + dice_below(dice, high - low + 1);
}

static inline bool dice_permille(struct dice *dice, unsigned permille)
{
    return dice_below(dice, 1000) < permille;
}

#endif
