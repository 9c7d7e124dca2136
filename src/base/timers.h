/* timers: deadlines in a binary heap, for code that does not know the event loop.
 *
 * What: the owner embeds a struct timer and gives it a time; timers_run fires what is due. Whoever
 * drives the heap asks timers_next_us how long it may sleep. Why: thousands of waiting claims each
 * have a deadline; core must not know libevent, and a simulator moves the clock by hand. Invariant:
 * a timer is in the heap once or not at all. A timer is out of the heap before it fires, so that
 * its function may set it again or free its owner.
 */
#ifndef BASE_TIMERS_H
#define BASE_TIMERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TIMER_NEVER UINT64_MAX

struct timer {
    void (*fire)(struct timer *timer, uint64_t now_us);
    uint64_t at_us;
    size_t place; /* in the heap, from 1; 0 = not set */
};

struct timers {
    struct timer **heap;
    size_t count;
    size_t size;
};

void timers_init(struct timers *timers);
void timers_free(struct timers *timers);

/* Sets it, or moves it if it was set. */
void timer_set(struct timers *timers, struct timer *timer, uint64_t at_us);
void timer_stop(struct timers *timers, struct timer *timer);

static inline bool timer_is_set(const struct timer *timer)
{
    return timer->place != 0;
}

uint64_t timers_next_us(const struct timers *timers); /* TIMER_NEVER when none is set */
void timers_run(struct timers *timers, uint64_t now_us);

#endif
