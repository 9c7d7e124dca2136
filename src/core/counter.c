/* counter: see counter.h. */
#include "core/counter.h"

#include "core/retry.h"
#include "core/session.h"

struct count_work {
    struct db_call call;
    struct counter *counter;
    struct request *request;
};

static void on_counted(struct db_call *call, const struct db_reply *reply)
{
    struct count_work *work = CONTAINER_OF(call, struct count_work, call);
    struct counter *counter = work->counter;
    struct answer answer = {.kind = ANSWER_COUNTS, .of.counts = &reply->rows.counts};
    struct err err;

    counter->in_flight--;
    if (reply->outcome == OUTCOME_DONE) {
        sessions_answer(counter->sessions, work->request, &answer);
        return;
    }
    retry_final_err(&reply->err, OUTCOME_NOT_DONE, false, &err); /* a read has no unknown outcome */
    sessions_answer_err(counter->sessions, work->request, &err);
}

void counter_take(struct counter *counter, struct request *request)
{
    struct count_work *work = request_alloc(request, sizeof *work);

    work->counter = counter;
    work->request = request;
    work->call.op = DB_COUNTS;
    work->call.done = on_counted;
    work->call.args.counts_queue = request->in.counts_queue;
    counter->in_flight++;
    counter->env->submit(counter->env->ctx, &work->call);
}
