/* loop: the event loop, and its turns. The only place that knows libevent.
 *
 * What: one turn waits for events, runs their callbacks, then runs the turn hooks in the order in
 * which they were added. So callbacks only note what happened, and the hooks do it once for the
 * whole turn: core flushes what came in together, connections write what was answered, the dead are
 * buried. A hook that leaves work for another one asks for loop_again: the next turn does not wait.
 * Rules: single-threaded. A callback may free any watch, timer or signal, its own included.
 */
#ifndef EV_LOOP_H
#define EV_LOOP_H

#include <stdint.h>

struct loop;
struct watch;
struct loop_timer;
struct loop_signal;

enum { WATCH_READ = 1, WATCH_WRITE = 2 };

struct loop *loop_new(void); /* NULL when the system refuses */
void loop_free(struct loop *loop);

/* Runs turns until loop_stop. */
void loop_run(struct loop *loop);
void loop_stop(struct loop *loop);

void loop_add_hook(struct loop *loop, void (*run)(void *ctx), void *ctx);
void loop_again(struct loop *loop);

/* A watch on a file descriptor; `ready` is what it can do now. Watches nothing until watch_want.
 * Free it before the descriptor is closed. */
struct watch *watch_new(struct loop *loop, int fd, void (*on_ready)(void *ctx, unsigned ready),
                        void *ctx);
void watch_want(struct watch *watch, unsigned wanted);
void watch_free(struct watch *watch); /* NULL is fine */

/* A timer fires once at a monotonic time (base/clock.h). */
struct loop_timer *loop_timer_new(struct loop *loop, void (*on_time)(void *ctx), void *ctx);
void loop_timer_set(struct loop_timer *timer, uint64_t at_us);
void loop_timer_stop(struct loop_timer *timer);
void loop_timer_free(struct loop_timer *timer);

struct loop_signal *loop_signal_new(struct loop *loop, int signal_number,
                                    void (*on_signal)(void *ctx), void *ctx);
void loop_signal_free(struct loop_signal *signal);

#endif
