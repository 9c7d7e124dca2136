/* clock: the only place that asks the system for the time.
 *
 * clock_mono_us never goes back and is what every deadline is measured with; clock_wall_us is what
 * the world calls now and is only shown or stored. Core code takes its time from struct env
 * instead, so that a test can move it.
 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

enum { US_PER_MS = 1000, US_PER_S = 1000 * 1000 };

uint64_t clock_mono_us(void);
int64_t clock_wall_us(void);

#endif
