/* counter: see counter.h. */
#include "core/counter.h"

#include "base/clock.h"
#include "base/limits.h"
#include "core/retry.h"
#include "core/session.h"

struct count_work {
    struct list_node node; /* counter->waiting */
    struct db_call call;
    struct counter *counter;
    struct request *request;
    uint64_t since_us;
};

static void start(struct count_work *work)
{
    struct counter *counter = work->counter;

    counter->in_flight++;
    counter->env->submit(counter->env->ctx, &work->call);
}

/* One that has waited too long is answered without, and so is one of a session that has gone. */
static void start_next(struct counter *counter)
{
    uint64_t now_us = counter->env->now_us(counter->env->ctx);
    struct err err;

    while (counter->waiting.count > 0 && counter->in_flight < COUNTS_IN_FLIGHT_MAX) {
        struct count_work *work =
            CONTAINER_OF(list_pop_front(&counter->waiting), struct count_work, node);
        if (session_of(counter->sessions, work->request->session) == NULL ||
            now_us > work->since_us + (uint64_t)REQUEST_MS * US_PER_MS) {
            err_set(&err, CODE_UNAVAILABLE, "waited %d ms behind other counts", REQUEST_MS);
            sessions_answer_err(counter->sessions, work->request, &err);
        } else {
            start(work);
        }
    }
}

static void answer(struct count_work *work, const struct db_reply *reply)
{
    struct counter *counter = work->counter;
    struct answer answer = {.kind = ANSWER_COUNTS, .of.counts = &reply->rows.counts};
    struct err err;

    if (reply->outcome == OUTCOME_DONE) {
        sessions_answer(counter->sessions, work->request, &answer);
        return;
    }
    retry_final_err(&reply->err, OUTCOME_NOT_DONE, false, &err); /* a read has no unknown outcome */
    sessions_answer_err(counter->sessions, work->request, &err);
}

static void on_counted(struct db_call *call, const struct db_reply *reply)
{
    struct count_work *work = CONTAINER_OF(call, struct count_work, call);
    struct counter *counter = work->counter;

    counter->in_flight--;
    answer(work, reply);
    start_next(counter);
}

void counter_take(struct counter *counter, struct request *request)
{
    struct count_work *work = request_alloc(request, sizeof *work);

    work->counter = counter;
    work->request = request;
    request->work = work;
    work->call.op = DB_COUNTS;
    work->call.done = on_counted;
    work->call.args.counts_queue = request->in.counts_queue;
    work->since_us = counter->env->now_us(counter->env->ctx);
    list_push_back(&counter->waiting, &work->node);
    start_next(counter);
}

void counter_forget(struct counter *counter, struct request *request)
{
    struct count_work *work = request->work;
    struct err err;

    if (!list_has(&counter->waiting, &work->node))
        return;
    list_remove(&counter->waiting, &work->node);
    err_set(&err, CODE_UNAVAILABLE, "the session has gone");
    sessions_answer_err(counter->sessions, request, &err);
}
