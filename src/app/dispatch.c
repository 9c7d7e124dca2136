/* dispatch: see dispatch.h. */
#include "app/dispatch.h"

#include "base/check.h"
#include "base/limits.h"
#include "wire/message.h"

static struct bytes bytes_of_binary(ProtobufCBinaryData binary)
{
    return bytes_of(binary.data, binary.len);
}

static struct bytes none_if_empty(struct bytes bytes)
{
    return bytes.len > 0 ? bytes : (struct bytes){NULL, 0};
}

/* ---- Enqueue ---- */

/* Defaults are filled in here, once. */
static struct new_job job_of(const Awa__V1__NewJob *in)
{
    struct bytes args = bytes_of_binary(in->args);

    return (struct new_job){
        .queue = bytes_of_text(in->queue),
        .kind = bytes_of_text(in->kind),
        .args = args.len > 0 ? args : bytes_of_text("{}"),
        .ordering_key = none_if_empty(bytes_of_text(in->ordering_key)),
        .metadata = none_if_empty(bytes_of_binary(in->metadata)),
        .traceparent = none_if_empty(bytes_of_text(in->traceparent)),
        .run_at_us = in->run_at_us,
        .max_attempts =
            (uint16_t)(in->max_attempts > 0 ? in->max_attempts : ATTEMPTS_PER_JOB_DEFAULT),
        .priority = (uint8_t)(in->priority > 0 ? in->priority : PRIORITY_DEFAULT),
    };
}

static void fill_enqueue(struct request *request, const struct message *message)
{
    const Awa__V1__Enqueue *enqueue = message->frame->enqueue;
    struct enqueue_order *orders = request_alloc(request, enqueue->n_jobs * sizeof *orders);
    struct err err;

    for (size_t i = 0; i < enqueue->n_jobs; i++) {
        if (message_check_job(message, i, &err) != CODE_OK)
            orders[i].invalid = request_keep_err(request, &err);
        else
            orders[i].job = job_of(enqueue->jobs[i]);
    }
    request->in.enqueue.orders = orders;
    request->in.enqueue.count = enqueue->n_jobs;
    request->in.enqueue.key = none_if_empty(bytes_of_text(enqueue->idempotency_key));
}

/* ---- Claim ---- */

static void fill_claim(struct request *request, const Awa__V1__Claim *claim)
{
    struct bytes *queues = request_alloc(request, claim->n_queues * sizeof *queues);

    for (size_t i = 0; i < claim->n_queues; i++)
        queues[i] = bytes_of_text(claim->queues[i]);
    request->in.claim.queues = queues;
    request->in.claim.queue_count = claim->n_queues;
    request->in.claim.jobs_max = claim->max_jobs;
    request->in.claim.wait_ms = claim->wait_ms;
}

/* ---- Finish and Release ---- */

static struct finish_order order_of(const Awa__V1__FinishItem *item)
{
    struct finish_order order = {.outcome = JOB_COMPLETE};

    switch (item->outcome_case) {
    case AWA__V1__FINISH_ITEM__OUTCOME_COMPLETE: break;
    case AWA__V1__FINISH_ITEM__OUTCOME_RETRY:
        order.outcome = JOB_RETRY;
        order.delay_ms = item->retry->delay_ms;
        order.error = none_if_empty(bytes_of_text(item->retry->error));
        break;
    case AWA__V1__FINISH_ITEM__OUTCOME_SNOOZE:
        order.outcome = JOB_SNOOZE;
        order.delay_ms = item->snooze->delay_ms;
        break;
    case AWA__V1__FINISH_ITEM__OUTCOME_FAIL:
        order.outcome = JOB_FAIL;
        order.error = none_if_empty(bytes_of_text(item->fail->error));
        break;
    case AWA__V1__FINISH_ITEM__OUTCOME_CANCEL:
        order.outcome = JOB_CANCEL;
        order.error = none_if_empty(bytes_of_text(item->cancel->error));
        break;
    case AWA__V1__FINISH_ITEM__OUTCOME__NOT_SET:
    case _AWA__V1__FINISH_ITEM__OUTCOME__CASE_IS_INT_SIZE:
        UNREACHABLE("message_check_item let it pass");
    }
    return order;
}

static enum code read_receipt(struct bytes token, struct finish_order *order, struct err *err)
{
    if (receipt_decode(token, &order->receipt))
        return CODE_OK;
    return err_set(err, CODE_INVALID_ARGUMENT, "receipt: not one that this proxy gives out");
}

static void fill_finish(struct request *request, const struct message *message)
{
    const Awa__V1__Finish *finish = message->frame->finish;
    struct finish_input *inputs = request_alloc(request, finish->n_items * sizeof *inputs);
    struct err err;

    for (size_t i = 0; i < finish->n_items; i++) {
        const Awa__V1__FinishItem *item = finish->items[i];
        enum code code = message_check_item(message, i, &err);
        if (code == CODE_OK) {
            inputs[i].order = order_of(item);
            code = read_receipt(bytes_of_binary(item->receipt), &inputs[i].order, &err);
        }
        if (code != CODE_OK)
            inputs[i].invalid = request_keep_err(request, &err);
    }
    request->in.finish.inputs = inputs;
    request->in.finish.count = finish->n_items;
}

static void fill_release(struct request *request, const Awa__V1__Release *release)
{
    struct finish_input *inputs = request_alloc(request, release->n_receipts * sizeof *inputs);
    struct err err;

    for (size_t i = 0; i < release->n_receipts; i++) {
        inputs[i].order.outcome = JOB_RELEASE;
        if (read_receipt(bytes_of_binary(release->receipts[i]), &inputs[i].order, &err) != CODE_OK)
            inputs[i].invalid = request_keep_err(request, &err);
    }
    request->in.finish.inputs = inputs;
    request->in.finish.count = release->n_receipts;
}

/* ---- Hello and Heartbeat ---- */

static struct held_receipt held_of(ProtobufCBinaryData binary)
{
    struct held_receipt held = {.token = bytes_of_binary(binary)};

    held.valid = receipt_decode(held.token, &held.receipt);
    return held;
}

static void fill_hello(struct request *request, const Awa__V1__Hello *hello)
{
    size_t count = hello->held != NULL ? hello->held->n_receipts : 0;
    struct held_receipt *held = request_alloc(request, count * sizeof *held);

    for (size_t i = 0; i < count; i++)
        held[i] = held_of(hello->held->receipts[i]);
    request->in.hello.session_id = bytes_of_binary(hello->session_id);
    request->in.hello.says_held = hello->held != NULL;
    request->in.hello.held = held;
    request->in.hello.held_count = count;
}

static void fill_heartbeat(struct request *request, const Awa__V1__Heartbeat *heartbeat)
{
    struct held_receipt *items = request_alloc(request, heartbeat->n_items * sizeof *items);

    for (size_t i = 0; i < heartbeat->n_items; i++)
        items[i] = held_of(heartbeat->items[i]->receipt);
    request->in.heartbeat.items = items;
    request->in.heartbeat.count = heartbeat->n_items;
}

/* ---- all ---- */

static enum request_kind kind_of(const Awa__V1__ClientFrame *frame)
{
    switch (frame->request_case) {
    case AWA__V1__CLIENT_FRAME__REQUEST_HELLO: return REQUEST_HELLO;
    case AWA__V1__CLIENT_FRAME__REQUEST_PING: return REQUEST_PING;
    case AWA__V1__CLIENT_FRAME__REQUEST_GOODBYE: return REQUEST_GOODBYE;
    case AWA__V1__CLIENT_FRAME__REQUEST_ENQUEUE: return REQUEST_ENQUEUE;
    case AWA__V1__CLIENT_FRAME__REQUEST_CLAIM: return REQUEST_CLAIM;
    case AWA__V1__CLIENT_FRAME__REQUEST_FINISH: return REQUEST_FINISH;
    case AWA__V1__CLIENT_FRAME__REQUEST_RELEASE: return REQUEST_RELEASE;
    case AWA__V1__CLIENT_FRAME__REQUEST_QUEUE_COUNTS: return REQUEST_COUNTS;
    case AWA__V1__CLIENT_FRAME__REQUEST_HEARTBEAT: return REQUEST_HEARTBEAT;
    case AWA__V1__CLIENT_FRAME__REQUEST_CANCEL_REQUEST: return REQUEST_CANCEL;
    case AWA__V1__CLIENT_FRAME__REQUEST__NOT_SET:
    case _AWA__V1__CLIENT_FRAME__REQUEST__CASE_IS_INT_SIZE: break;
    }
    UNREACHABLE("message_decode let it pass");
}

static void fill_request(struct request *request, const struct message *message)
{
    switch (request->kind) {
    case REQUEST_ENQUEUE: fill_enqueue(request, message); return;
    case REQUEST_CLAIM: fill_claim(request, message->frame->claim); return;
    case REQUEST_FINISH: fill_finish(request, message); return;
    case REQUEST_RELEASE: fill_release(request, message->frame->release); return;
    case REQUEST_COUNTS:
        request->in.counts_queue = bytes_of_text(message->frame->queue_counts->queue);
        return;
    case REQUEST_HEARTBEAT: fill_heartbeat(request, message->frame->heartbeat); return;
    case REQUEST_CANCEL: request->in.cancel_id = message->frame->cancel_request->request_id; return;
    case REQUEST_HELLO: fill_hello(request, message->frame->hello); return;
    case REQUEST_PING:
    case REQUEST_GOODBYE: return; /* nothing core needs to know */
    }
}

static void take_message(struct sessions *sessions, handle session, const struct message *message,
                         struct arena *arena, size_t frame_bytes)
{
    struct request *request = request_new_take(arena, kind_of(message->frame), message->request_id,
                                               (uint32_t)frame_bytes);
    struct err err;

    if (request == NULL) {
        err_set(&err, CODE_INVALID_ARGUMENT,
                "the request needs too much memory: send it in smaller parts");
        session_refuse(sessions, session, message->request_id, &err);
        return;
    }
    fill_request(request, message);
    sessions_take_request(sessions, session, request);
}

void dispatch_frame(struct sessions *sessions, handle session, struct bytes body)
{
    struct arena arena;
    struct message message;
    struct err err;

    arena_init(&arena, UNPACK_BYTES_MAX);
    switch (message_decode(&arena, body, &message, &err)) {
    case MESSAGE_OK: take_message(sessions, session, &message, &arena, body.len); break;
    case MESSAGE_REFUSED: session_refuse(sessions, session, message.request_id, &err); break;
    case MESSAGE_BROKEN: session_refuse(sessions, session, 0, &err); break;
    }
    arena_free(&arena); /* empty when a request took it */
}
