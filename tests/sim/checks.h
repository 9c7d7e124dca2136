/* checks: what must be true after every turn, of core's insides as its headers state them, and of
 * core and the world together. Each ends the run with a sentence when it is not so. */
#ifndef SIM_CHECKS_H
#define SIM_CHECKS_H

#include "core/db.h"

struct sim;

/* Of a call, when core submits it: its form and its right to be made. */
void check_call(struct sim *sim, const struct db_call *call);

/* After every turn. */
void check_turn(struct sim *sim);

/* When nothing is under way or waiting: then nothing may be owed either. */
void check_quiet(struct sim *sim);

/* At the very end: every job that was promised has ended. */
void check_end(struct sim *sim);

#endif
