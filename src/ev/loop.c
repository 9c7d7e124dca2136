/* loop: see loop.h. Turns are event_base_loop(EVLOOP_ONCE) calls; what comes after one is ours. */
#include "ev/loop.h"

#include <event2/event.h>
#include <stdbool.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"

enum { HOOKS_MAX = 8 };

struct hook {
    void (*run)(void *ctx);
    void *ctx;
};

struct loop {
    struct event_base *base;
    struct hook hooks[HOOKS_MAX];
    unsigned hook_count;
    bool again;
    bool stop;
};

struct watch {
    struct event_base *base;
    struct event *event;
    int fd;
    unsigned wanted;
    void (*on_ready)(void *ctx, unsigned ready);
    void *ctx;
};

struct loop_timer {
    struct event *event;
    uint64_t at_us; /* UINT64_MAX: not set */
    void (*on_time)(void *ctx);
    void *ctx;
};

struct loop_signal {
    struct event *event;
    void (*on_signal)(void *ctx);
    void *ctx;
};

struct loop *loop_new(void)
{
    struct event_config *config = event_config_new();
    struct loop *loop = NULL;

    if (config == NULL)
        return NULL;
    /* No locks: one thread. Precise timers: a flush waits a millisecond, not two. */
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK | EVENT_BASE_FLAG_PRECISE_TIMER);
    struct event_base *base = event_base_new_with_config(config);
    event_config_free(config);
    if (base == NULL)
        return NULL;
    loop = mem_zalloc(sizeof *loop);
    loop->base = base;
    return loop;
}

void loop_free(struct loop *loop)
{
    event_base_free(loop->base);
    mem_free(loop);
}

void loop_add_hook(struct loop *loop, void (*run)(void *ctx), void *ctx)
{
    CHECK(loop->hook_count < HOOKS_MAX);
    loop->hooks[loop->hook_count++] = (struct hook){.run = run, .ctx = ctx};
}

void loop_again(struct loop *loop)
{
    loop->again = true;
}

void loop_stop(struct loop *loop)
{
    loop->stop = true;
}

void loop_run(struct loop *loop)
{
    loop->again = true; /* the hooks run once before the first wait */
    while (!loop->stop) {
        int flags = EVLOOP_ONCE | (loop->again ? EVLOOP_NONBLOCK : 0);
        loop->again = false;
        CHECK(event_base_loop(loop->base, flags) >= 0); /* else it would not wait, but spin */
        for (unsigned i = 0; i < loop->hook_count; i++)
            loop->hooks[i].run(loop->hooks[i].ctx);
    }
}

/* ---- watches ---- */

static void on_event(evutil_socket_t fd, short what, void *ctx)
{
    const struct watch *watch = ctx;
    unsigned ready = (what & EV_READ ? WATCH_READ : 0u) | (what & EV_WRITE ? WATCH_WRITE : 0u);

    (void)fd;
    watch->on_ready(watch->ctx, ready);
}

struct watch *watch_new(struct loop *loop, int fd, void (*on_ready)(void *ctx, unsigned ready),
                        void *ctx)
{
    struct watch *watch = mem_zalloc(sizeof *watch);

    watch->base = loop->base;
    watch->fd = fd;
    watch->on_ready = on_ready;
    watch->ctx = ctx;
    return watch;
}

void watch_want(struct watch *watch, unsigned wanted)
{
    short what = (short)(EV_PERSIST | (wanted & WATCH_READ ? EV_READ : 0) |
                         (wanted & WATCH_WRITE ? EV_WRITE : 0));

    if (wanted == watch->wanted)
        return;
    watch->wanted = wanted;
    if (watch->event != NULL)
        event_del(watch->event);
    if (wanted == 0)
        return;
    if (watch->event == NULL)
        watch->event = event_new(watch->base, watch->fd, what, on_event, watch);
    else
        event_assign(watch->event, watch->base, watch->fd, what, on_event, watch);
    CHECK(watch->event != NULL && event_add(watch->event, NULL) == 0);
}

void watch_free(struct watch *watch)
{
    if (watch == NULL)
        return;
    if (watch->event != NULL)
        event_free(watch->event);
    mem_free(watch);
}

/* ---- timers ---- */

static void on_timeout(evutil_socket_t fd, short what, void *ctx)
{
    struct loop_timer *timer = ctx;

    (void)fd;
    (void)what;
    timer->at_us = UINT64_MAX;
    timer->on_time(timer->ctx);
}

struct loop_timer *loop_timer_new(struct loop *loop, void (*on_time)(void *ctx), void *ctx)
{
    struct loop_timer *timer = mem_zalloc(sizeof *timer);

    timer->at_us = UINT64_MAX;
    timer->on_time = on_time;
    timer->ctx = ctx;
    timer->event = event_new(loop->base, -1, 0, on_timeout, timer);
    CHECK(timer->event != NULL);
    return timer;
}

void loop_timer_set(struct loop_timer *timer, uint64_t at_us)
{
    uint64_t now_us = clock_mono_us();
    uint64_t wait_us = at_us > now_us ? at_us - now_us : 0;
    struct timeval wait = {.tv_sec = (time_t)(wait_us / US_PER_S),
                           .tv_usec = (suseconds_t)(wait_us % US_PER_S)};

    if (at_us == timer->at_us)
        return;
    timer->at_us = at_us;
    CHECK(event_add(timer->event, &wait) == 0);
}

void loop_timer_stop(struct loop_timer *timer)
{
    if (timer->at_us == UINT64_MAX)
        return;
    timer->at_us = UINT64_MAX;
    event_del(timer->event);
}

void loop_timer_free(struct loop_timer *timer)
{
    if (timer == NULL)
        return;
    event_free(timer->event);
    mem_free(timer);
}

/* ---- signals ---- */

static void on_raised(evutil_socket_t number, short what, void *ctx)
{
    const struct loop_signal *signal = ctx;

    (void)number;
    (void)what;
    signal->on_signal(signal->ctx);
}

struct loop_signal *loop_signal_new(struct loop *loop, int signal_number,
                                    void (*on_signal)(void *ctx), void *ctx)
{
    struct loop_signal *signal = mem_zalloc(sizeof *signal);

    signal->on_signal = on_signal;
    signal->ctx = ctx;
    signal->event = evsignal_new(loop->base, signal_number, on_raised, signal);
    CHECK(signal->event != NULL && event_add(signal->event, NULL) == 0);
    return signal;
}

void loop_signal_free(struct loop_signal *signal)
{
    if (signal == NULL)
        return;
    event_free(signal->event);
    mem_free(signal);
}
