/* news: see news.h. */
#include "core/news.h"

#include "base/clock.h"
#include "base/list.h"

void news_heard(struct news *news, struct bytes queue)
{
    if (!queue_set_add(&news->heard, queue))
        news->heard_too_many = true;
}

void news_committed(struct news *news, struct bytes queue)
{
    queue_set_add(&news->to_tell, queue); /* no room: the poll finds it */
}

static void wake(struct news *news)
{
    if (news->heard_too_many)
        broker_wake_all(news->broker);
    else
        for (size_t i = 0; i < news->heard.count; i++)
            broker_wake(news->broker, news->heard.names[i]);
    news->heard_too_many = false;
    queue_set_clear(&news->heard);
}

static void tell(struct news *news)
{
    queue_set_clear(&news->telling);
    for (size_t i = 0; i < news->to_tell.count; i++)
        queue_set_add(&news->telling, news->to_tell.names[i]);
    queue_set_clear(&news->to_tell);
    news->in_flight = true;
    news->call.op = DB_ANNOUNCE;
    news->call.args.announce = (struct db_announce){news->telling.names, news->telling.count};
    news->env->submit(news->env->ctx, &news->call);
}

void news_turn(struct news *news)
{
    wake(news);
    if (news->connected && !news->in_flight && !timer_is_set(&news->timer) &&
        news->to_tell.count > 0)
        tell(news);
}

/* However it ended: a hint is not repeated. */
static void on_told(struct db_call *call, const struct db_reply *reply)
{
    struct news *news = CONTAINER_OF(call, struct news, call);
    uint64_t now_us = news->env->now_us(news->env->ctx);

    (void)reply;
    news->in_flight = false;
    timer_set(news->timers, &news->timer, now_us + (uint64_t)ANNOUNCE_MS * US_PER_MS);
}

static void on_pause_over(struct timer *timer, uint64_t now)
{
    (void)timer;
    (void)now; /* the turn tells what came meanwhile */
}

void news_connected(struct news *news, bool connected)
{
    news->connected = connected;
}

void news_init(struct news *news, const struct env *env, struct timers *timers,
               struct broker *broker)
{
    *news = (struct news){.env = env, .timers = timers, .broker = broker};
    news->timer.fire = on_pause_over;
    news->call.done = on_told;
}

void news_stop(struct news *news)
{
    timer_stop(news->timers, &news->timer);
}
