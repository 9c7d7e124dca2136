/* timers: see timers.h. heap[0] is due first; the children of place p (from 1) are 2p and 2p + 1.
 */
#include "base/timers.h"

#include "base/check.h"
#include "base/mem.h"

enum { TIMERS_FIRST = 64 };

void timers_init(struct timers *timers)
{
    *timers = (struct timers){.heap = NULL};
}

void timers_free(struct timers *timers)
{
    mem_free(timers->heap);
    timers_init(timers);
}

static struct timer *at(const struct timers *timers, size_t place)
{
    return timers->heap[place - 1];
}

static void put(struct timers *timers, size_t place, struct timer *timer)
{
    timers->heap[place - 1] = timer;
    timer->place = place;
}

static void sift_up(struct timers *timers, struct timer *timer)
{
    size_t place = timer->place;

    while (place > 1 && at(timers, place / 2)->at_us > timer->at_us) {
        put(timers, place, at(timers, place / 2));
        place /= 2;
    }
    put(timers, place, timer);
}

static void sift_down(struct timers *timers, struct timer *timer)
{
    size_t place = timer->place;

    for (;;) {
        size_t child = place * 2;
        if (child > timers->count)
            break;
        if (child < timers->count && at(timers, child + 1)->at_us < at(timers, child)->at_us)
            child++;
        if (at(timers, child)->at_us >= timer->at_us)
            break;
        put(timers, place, at(timers, child));
        place = child;
    }
    put(timers, place, timer);
}

void timer_set(struct timers *timers, struct timer *timer, uint64_t at_us)
{
    timer->at_us = at_us;
    if (timer->place == 0) {
        if (timers->count == timers->size) {
            timers->size = timers->size > 0 ? timers->size * 2 : TIMERS_FIRST;
            timers->heap = mem_realloc(timers->heap, timers->size * sizeof *timers->heap);
        }
        timers->count++;
        put(timers, timers->count, timer);
    }
    sift_up(timers, timer);
    sift_down(timers, timer);
}

void timer_stop(struct timers *timers, struct timer *timer)
{
    size_t place = timer->place;

    if (place == 0)
        return;
    CHECK(at(timers, place) == timer);
    struct timer *last = at(timers, timers->count);
    timers->count--;
    timer->place = 0;
    if (last == timer)
        return;
    put(timers, place, last);
    sift_up(timers, last);
    sift_down(timers, last);
}

uint64_t timers_next_us(const struct timers *timers)
{
    return timers->count > 0 ? timers->heap[0]->at_us : TIMER_NEVER;
}

void timers_run(struct timers *timers, uint64_t now_us)
{
    while (timers->count > 0 && timers->heap[0]->at_us <= now_us) {
        struct timer *due = timers->heap[0];
        timer_stop(timers, due);
        due->fire(due, now_us);
    }
}
