// worker.c: claims jobs, has the pool run the handler on them, sends the outcomes.
//
// What: one loop in the calling thread, which owns the connection; a turn sends
// what is due (one Finish with all outcomes there are, one Claim for the free
// room), waits, and takes what has come.
// A lost connection: what has not started waits, what runs goes on, and the
// session is resumed with the list of what is still held. If the proxy does not
// know the session any more, what has not started is released (it may still be
// ours, after a restart of the proxy), and what runs tells its outcome all the
// same: DONE if nobody else got the job, STALE otherwise.
// Leaving (asked to stop, or the proxy drains): nothing is claimed or started.
// Invariants: held (ready, running, waiting) <= capacity, all tasks <= 2 * capacity;
// an outcome is kept until it is answered, so a lost connection loses none.
// Not in it: threads and their lists (pool.c).
#include "internal.h"
#include "pool.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    CLAIM_WAIT_MS = 20000,
    PAUSE_MS = 100, // before a request that failed is repeated
    CONCURRENCY_MAX = 4096,
    PREFETCH_MAX = 65536,
};

// What the Heartbeats that were sent together ask, in one request for each max_items_per_finish of
// them: the first has the id first_id, the next the next.
struct beat {
    struct awa_receipt *receipts;
    size_t count;
    uint64_t first_id;
};

struct awa_worker {
    struct awa_worker_options options;
    size_t capacity; // concurrency and prefetch
    int wake_fd;     // written when an outcome is there, and to stop
    atomic_bool stopping;
    struct pool pool;
    struct awa_connection *connection;
    struct awa_session session; // to resume
    bool has_session;
    bool draining;            // says the proxy
    struct task_list sent;    // in a Finish that is not answered
    struct task_list waiting; // for a connection: what has not started
    uint64_t claim_id;        // request id of the Claim in flight; 0: none
    size_t claim_jobs;        // that it asks for
    uint64_t cancelled_id;    // of the Claim that a CancelRequest names
    uint64_t goodbye_id;      // the same for Goodbye
    bool parted;              // Goodbye is answered
    int64_t paused_until_ms;  // no Claim and no Finish before
    int64_t last_heard_ms, last_pinged_ms;
    struct beat beat; // the newest
    struct awa_worker_stats stats;
};

static bool is_leaving(const struct awa_worker *worker)
{
    return atomic_load(&worker->stopping) || worker->draining;
}

// ---- Requests: sent without waiting; the answers come to on_frame()

static size_t wanted_jobs(struct awa_worker *worker)
{
    struct pool_load load = awai_pool_load(&worker->pool);
    size_t wanted = worker->capacity - load.held; // nothing waits while there is a connection
    size_t room = 2 * worker->capacity - (load.held + load.finished + worker->sent.count);
    size_t allowed = worker->connection->limits.max_claim_jobs;
    wanted = wanted < room ? wanted : room;
    return wanted < allowed ? wanted : allowed;
}

static enum awa_code send_claim(struct awa_worker *worker, struct awa_error *error)
{
    size_t wanted = worker->claim_id == 0 ? wanted_jobs(worker) : 0;
    if (wanted == 0)
        return AWA_OK;
    uint32_t longest_ms = worker->connection->limits.max_wait_ms;
    Awa__V1__Claim claim = AWA__V1__CLAIM__INIT;
    claim.n_queues = worker->options.queue_count;
    claim.queues = (char **)worker->options.queues;
    claim.max_jobs = (uint32_t)wanted;
    claim.wait_ms = longest_ms < CLAIM_WAIT_MS ? longest_ms : CLAIM_WAIT_MS;
    enum awa_code code =
        awai_send_request(worker->connection, AWA__V1__CLIENT_FRAME__REQUEST_CLAIM, &claim, error);
    worker->claim_id = worker->connection->last_request_id;
    worker->claim_jobs = wanted;
    return code;
}

// Sends as many outcomes as one Finish may hold; *count tells how many.
static enum awa_code send_finish(struct awa_worker *worker, size_t *count, struct awa_error *error)
{
    size_t limit = worker->connection->limits.max_items_per_finish;
    size_t there = awai_pool_load(&worker->pool).finished;
    *count = there < limit ? there : limit;
    if (*count == 0)
        return AWA_OK;
    struct awai_wire_finish *wire = calloc(*count, sizeof *wire + sizeof(Awa__V1__FinishItem *));
    if (wire == NULL)
        return awai_out_of_memory(error);
    Awa__V1__Finish finish = AWA__V1__FINISH__INIT;
    finish.n_items = *count;
    finish.items = (Awa__V1__FinishItem **)(wire + *count);
    for (size_t i = 0; i < *count; i++) {
        struct task *task = awai_pool_pop_finished(&worker->pool); // only this thread takes them
        awai_finish_to_wire(&wire[i], &task->job->receipt, &task->outcome);
        finish.items[i] = &wire[i].item;
        task->request_id = worker->connection->last_request_id + 1;
        awai_list_push(&worker->sent, task);
    }
    enum awa_code code = awai_send_request(worker->connection,
                                           AWA__V1__CLIENT_FRAME__REQUEST_FINISH, &finish, error);
    free(wire);
    return code;
}

static enum awa_code send_finishes(struct awa_worker *worker, struct awa_error *error)
{
    enum awa_code code;
    size_t count;
    do
        code = send_finish(worker, &count, error);
    while (code == AWA_OK && count > 0);
    return code;
}

static enum awa_code send_release(struct awa_worker *worker, ProtobufCBinaryData *receipt,
                                  struct awa_error *error)
{
    Awa__V1__Release release = AWA__V1__RELEASE__INIT;
    release.n_receipts = 1;
    release.receipts = receipt;
    return awai_send_request(worker->connection, AWA__V1__CLIENT_FRAME__REQUEST_RELEASE, &release,
                             error);
}

static enum awa_code release_task(struct awa_worker *worker, struct task *task,
                                  struct awa_error *error)
{
    ProtobufCBinaryData receipt = awai_receipt_to_wire(&task->job->receipt);
    enum awa_code code = send_release(worker, &receipt, error);
    awai_task_free(task);
    return code;
}

// Gives back what no handler has begun.
static enum awa_code release_ready(struct awa_worker *worker, struct awa_error *error)
{
    enum awa_code code = AWA_OK;
    for (struct task *task; code == AWA_OK && (task = awai_pool_pop_ready(&worker->pool)) != NULL;)
        code = release_task(worker, task, error);
    return code;
}

// A new connection: what waits for it starts, or goes back if its session is gone.
static enum awa_code place_waiting(struct awa_worker *worker, struct awa_error *error)
{
    enum awa_code code = AWA_OK;
    for (struct task *task; code == AWA_OK && (task = awai_list_pop(&worker->waiting)) != NULL;) {
        if (worker->connection->resumed && !is_leaving(worker))
            awai_pool_push_ready(&worker->pool, task);
        else
            code = release_task(worker, task, error);
    }
    return code;
}

// Gives back what came after the stop; once Goodbye is sent, that does it.
static enum awa_code release_unwanted(struct awa_worker *worker, const Awa__V1__ClaimOk *ok,
                                      struct awa_error *error)
{
    enum awa_code code = AWA_OK;
    for (size_t i = 0; i < ok->n_jobs && code == AWA_OK && worker->goodbye_id == 0; i++)
        code = send_release(worker, &ok->jobs[i]->receipt, error);
    return code;
}

static enum awa_code send_ping(struct awa_worker *worker, struct awa_error *error)
{
    Awa__V1__Ping ping = AWA__V1__PING__INIT;
    return awai_send_request(worker->connection, AWA__V1__CLIENT_FRAME__REQUEST_PING, &ping, error);
}

static enum awa_code send_heartbeat(struct awa_worker *worker, const struct awa_receipt *receipts,
                                    size_t count, struct awa_error *error)
{
    Awa__V1__Heartbeat *heartbeat = awai_heartbeat_to_wire(receipts, count);
    if (heartbeat == NULL)
        return awai_out_of_memory(error);
    enum awa_code code = awai_send_request(
        worker->connection, AWA__V1__CLIENT_FRAME__REQUEST_HEARTBEAT, heartbeat, error);
    free(heartbeat);
    return code;
}

// A Heartbeat for what this session holds; when that is nothing, a Ping. An attempt of a session
// that is gone would be called lost here, though its Finish may still be DONE.
static enum awa_code send_sign_of_life(struct awa_worker *worker, struct awa_error *error)
{
    struct beat *beat = &worker->beat;
    size_t limit = worker->connection->limits.max_items_per_finish;
    enum awa_code code = AWA_OK;
    worker->last_pinged_ms = awai_now_ms();
    free(beat->receipts);
    *beat = (struct beat){.receipts = calloc(worker->capacity, sizeof *beat->receipts),
                          .first_id = worker->connection->last_request_id + 1};
    if (beat->receipts == NULL)
        return awai_out_of_memory(error);
    beat->count = awai_pool_held(&worker->pool, beat->receipts, worker->capacity);
    if (beat->count == 0)
        return send_ping(worker, error);
    for (size_t at = 0; at < beat->count && code == AWA_OK; at += limit) {
        size_t left = beat->count - at;
        code = send_heartbeat(worker, &beat->receipts[at], left < limit ? left : limit, error);
    }
    return code;
}

// So that nothing is claimed any more that would only be released.
static enum awa_code cancel_claim(struct awa_worker *worker, struct awa_error *error)
{
    if (worker->claim_id == 0 || worker->claim_id == worker->cancelled_id)
        return AWA_OK;
    Awa__V1__CancelRequest cancel = AWA__V1__CANCEL_REQUEST__INIT;
    cancel.request_id = worker->claim_id;
    worker->cancelled_id = worker->claim_id;
    return awai_send_request(worker->connection, AWA__V1__CLIENT_FRAME__REQUEST_CANCEL_REQUEST,
                             &cancel, error);
}

static enum awa_code send_goodbye(struct awa_worker *worker, struct awa_error *error)
{
    Awa__V1__Goodbye goodbye = AWA__V1__GOODBYE__INIT;
    enum awa_code code = awai_send_request(worker->connection,
                                           AWA__V1__CLIENT_FRAME__REQUEST_GOODBYE, &goodbye, error);
    worker->goodbye_id = worker->connection->last_request_id;
    return code;
}

// ---- Answers

static enum awa_code on_jobs(struct awa_worker *worker, uint64_t request_id,
                             const Awa__V1__ClaimOk *ok, struct awa_error *error)
{
    if (worker->claim_id == 0 || request_id != worker->claim_id || ok->n_jobs > worker->claim_jobs)
        return awai_not_asked_for(error);
    worker->claim_id = 0;
    if (is_leaving(worker))
        return release_unwanted(worker, ok, error);
    for (size_t i = 0; i < ok->n_jobs; i++) {
        struct task *task = calloc(1, sizeof *task);
        if (task == NULL)
            return awai_out_of_memory(error);
        enum awa_code code = awai_job_from_wire(ok->jobs[i], &task->job, error);
        if (code != AWA_OK) {
            free(task);
            return code;
        }
        awai_pool_push_ready(&worker->pool, task);
    }
    return AWA_OK;
}

static void send_again(struct awa_worker *worker, struct task *task)
{
    worker->paused_until_ms = awai_now_ms() + PAUSE_MS;
    awai_pool_push_finished(&worker->pool, task);
}

// The attempt is still ours, and would be for as long as this session lasts.
static void send_substitute(struct awa_worker *worker, struct task *task,
                            const Awa__V1__Error *reason)
{
    char text[sizeof task->outcome.error];
    snprintf(text, sizeof text, "the outcome was refused: %s",
             reason != NULL ? reason->message : "");
    task->outcome = awa_retry(0, text);
    task->is_substitute = true;
    awai_pool_push_finished(&worker->pool, task);
}

// This outcome will never be accepted, however often it is sent.
static bool is_refused(const Awa__V1__FinishResult *result)
{
    return result->status == AWA__V1__FINISH_STATUS__INVALID ||
           (result->status == AWA__V1__FINISH_STATUS__STATUS_ABORTED && result->error != NULL &&
            result->error->code == AWA__V1__CODE__INTERNAL);
}

static void on_result(struct awa_worker *worker, struct task *task,
                      const Awa__V1__FinishResult *result)
{
    Awa__V1__FinishStatus status = result->status;
    bool refused = is_refused(result);
    if (refused && !task->is_substitute) {
        send_substitute(worker, task, result->error);
        return;
    }
    if (status == AWA__V1__FINISH_STATUS__STATUS_ABORTED && !refused) {
        send_again(worker, task);
        return;
    }
    if (status == AWA__V1__FINISH_STATUS__DONE || status == AWA__V1__FINISH_STATUS__ALREADY_DONE)
        worker->stats.done++;
    else
        worker->stats.not_accepted++;
    awai_task_free(task);
}

// Settles the tasks sent in request_id: by their results, or all as aborted (ok is NULL). Returns
// how many there were.
static size_t settle(struct awa_worker *worker, uint64_t request_id, const Awa__V1__FinishOk *ok)
{
    size_t settled = 0;
    for (size_t left = worker->sent.count; left > 0; left--) {
        struct task *task = awai_list_pop(&worker->sent);
        if (task->request_id != request_id) {
            awai_list_push(&worker->sent, task);
            continue;
        }
        if (ok != NULL && settled < ok->n_results)
            on_result(worker, task, ok->results[settled]);
        else
            send_again(worker, task);
        settled++;
    }
    return settled;
}

static enum awa_code on_finish_ok(struct awa_worker *worker, uint64_t request_id,
                                  const Awa__V1__FinishOk *ok, struct awa_error *error)
{
    size_t sent = settle(worker, request_id, ok);
    if (sent == ok->n_results)
        return AWA_OK;
    return awai_fail(error, AWA_INTERNAL, "the proxy answered %zu of %zu items", ok->n_results,
                     sent);
}

static enum awa_code on_error(struct awa_worker *worker, uint64_t request_id,
                              const Awa__V1__Error *wire, struct awa_error *error)
{
    if (request_id == 0 || !wire->retryable)
        return awai_fail_from_wire(error, wire);
    if (request_id == worker->claim_id)
        worker->claim_id = 0;
    worker->paused_until_ms = awai_now_ms() + PAUSE_MS;
    settle(worker, request_id, NULL);
    return AWA_OK;
}

static void on_notice(struct awa_worker *worker, const Awa__V1__Notice *notice)
{
    switch (notice->kind) {
    case AWA__V1__NOTICE_KIND__DRAINING: worker->draining = true; break;
    case AWA__V1__NOTICE_KIND__ATTEMPT_LOST:
        awai_pool_lose(&worker->pool, notice->receipt);
        awai_list_drop(&worker->waiting, notice->receipt);
        break;
    case AWA__V1__NOTICE_KIND__ATTEMPT_CANCELLED:
    case AWA__V1__NOTICE_KIND__NOTICE_KIND_UNSPECIFIED:
    case _AWA__V1__NOTICE_KIND_IS_INT_SIZE: break; // from a newer proxy
    }
}

static void on_heartbeat_ok(struct awa_worker *worker, uint64_t request_id,
                            const Awa__V1__HeartbeatOk *ok)
{
    const struct beat *beat = &worker->beat;
    size_t limit = worker->connection->limits.max_items_per_finish;
    if (request_id < beat->first_id || request_id - beat->first_id > beat->count / limit)
        return; // of an earlier one: the newest will say it again
    size_t at = (size_t)(request_id - beat->first_id) * limit;
    for (size_t i = 0; i < ok->n_statuses && i < limit && at + i < beat->count; i++)
        if (ok->statuses[i] == AWA__V1__HEARTBEAT_STATUS__HEARTBEAT_LOST ||
            ok->statuses[i] == AWA__V1__HEARTBEAT_STATUS__HEARTBEAT_CANCELLED)
            awai_pool_lose(&worker->pool, awai_receipt_to_wire(&beat->receipts[at + i]));
}

static enum awa_code on_frame(struct awa_worker *worker, const Awa__V1__ServerFrame *frame,
                              struct awa_error *error)
{
    worker->last_heard_ms = awai_now_ms();
    switch (frame->answer_case) {
    case AWA__V1__SERVER_FRAME__ANSWER_CLAIM_OK:
        return on_jobs(worker, frame->request_id, frame->claim_ok, error);
    case AWA__V1__SERVER_FRAME__ANSWER_FINISH_OK:
        return on_finish_ok(worker, frame->request_id, frame->finish_ok, error);
    case AWA__V1__SERVER_FRAME__ANSWER_ERROR:
        return on_error(worker, frame->request_id, frame->error, error);
    case AWA__V1__SERVER_FRAME__ANSWER_GOODBYE_OK: worker->parted = true; return AWA_OK;
    case AWA__V1__SERVER_FRAME__ANSWER_NOTICE: on_notice(worker, frame->notice); return AWA_OK;
    case AWA__V1__SERVER_FRAME__ANSWER_HEARTBEAT_OK:
        on_heartbeat_ok(worker, frame->request_id, frame->heartbeat_ok);
        return AWA_OK;
    case AWA__V1__SERVER_FRAME__ANSWER_PONG:
    case AWA__V1__SERVER_FRAME__ANSWER_CANCEL_REQUEST_OK:
    case AWA__V1__SERVER_FRAME__ANSWER_RELEASE_OK: return AWA_OK;
    case AWA__V1__SERVER_FRAME__ANSWER_HELLO_OK:
    case AWA__V1__SERVER_FRAME__ANSWER_ENQUEUE_OK:
    case AWA__V1__SERVER_FRAME__ANSWER_QUEUE_COUNTS_OK:
    case AWA__V1__SERVER_FRAME__ANSWER__NOT_SET:
    case _AWA__V1__SERVER_FRAME__ANSWER__CASE_IS_INT_SIZE: break;
    }
    return awai_not_asked_for(error);
}

static enum awa_code receive_what_is_there(struct awa_worker *worker, struct awa_error *error)
{
    for (;;) {
        Awa__V1__ServerFrame *frame;
        enum awa_code code = awai_receive(&worker->connection->stream, 0, &frame, error);
        if (code != AWA_OK || frame == NULL)
            return code;
        code = on_frame(worker, frame, error);
        awa__v1__server_frame__free_unpacked(frame, NULL);
        if (code != AWA_OK || worker->parted)
            return code;
    }
}

// ---- The loop

// Nothing heard for a third of the idle timeout: ask. For two thirds: the connection is lost,
// before the proxy, to which we are as silent, gives us up and our session with us.
static enum awa_code keep_alive(struct awa_worker *worker, struct awa_error *error)
{
    int64_t now_ms = awai_now_ms();
    int64_t timeout_ms = worker->connection->limits.idle_timeout_ms;
    if (now_ms - worker->last_heard_ms >= timeout_ms / 3 * 2)
        return awai_fail(error, AWA_DEADLINE_EXCEEDED, "the proxy has gone silent");
    bool quiet = now_ms - worker->last_heard_ms >= timeout_ms / 3;
    bool pinged = now_ms - worker->last_pinged_ms < timeout_ms / 3;
    return quiet && !pinged ? send_sign_of_life(worker, error) : AWA_OK;
}

// Leaving, and nothing is left to do or to be answered.
static bool is_drained(struct awa_worker *worker)
{
    struct pool_load load = awai_pool_load(&worker->pool);
    return is_leaving(worker) && load.held == 0 && load.finished == 0 && worker->sent.count == 0 &&
           worker->waiting.count == 0;
}

static enum awa_code send_what_is_due(struct awa_worker *worker, struct awa_error *error)
{
    bool leaving = is_leaving(worker);
    enum awa_code code = keep_alive(worker, error);
    if (code == AWA_OK)
        code = place_waiting(worker, error);
    if (code == AWA_OK && leaving)
        code = cancel_claim(worker, error);
    if (code == AWA_OK && leaving)
        code = release_ready(worker, error);
    if (code == AWA_OK && awai_now_ms() >= worker->paused_until_ms) {
        code = send_finishes(worker, error);
        if (code == AWA_OK && !leaving)
            code = send_claim(worker, error);
    }
    if (code == AWA_OK && leaving && worker->goodbye_id == 0 && is_drained(worker))
        code = send_goodbye(worker, error);
    return code;
}

static void drain_wakes(const struct awa_worker *worker)
{
    uint64_t wakes;
    while (read(worker->wake_fd, &wakes, sizeof wakes) > 0)
        ;
}

static void wait_for_events(struct awa_worker *worker)
{
    int64_t timeout_ms = worker->connection->limits.idle_timeout_ms / 6;
    int64_t pause_ms = worker->paused_until_ms - awai_now_ms();
    if (pause_ms > 0 && pause_ms < timeout_ms)
        timeout_ms = pause_ms;
    struct pollfd watched[] = {{.fd = worker->connection->stream.fd, .events = POLLIN},
                               {.fd = worker->wake_fd, .events = POLLIN}};
    poll(watched, 2, (int)timeout_ms);
    drain_wakes(worker);
}

// Until Goodbye is answered, or the connection fails. AWA_OK: the worker is done.
static enum awa_code run_session(struct awa_worker *worker, struct awa_error *error)
{
    worker->claim_id = worker->cancelled_id = worker->goodbye_id = 0;
    worker->parted = false;
    worker->last_heard_ms = awai_now_ms();
    if (!worker->connection->resumed)
        awai_pool_disown(&worker->pool);
    enum awa_code code = receive_what_is_there(worker, error); // notices that came with HelloOk
    while (code == AWA_OK && !worker->parted) {
        code = send_what_is_due(worker, error);
        if (code == AWA_OK) {
            wait_for_events(worker);
            code = receive_what_is_there(worker, error);
        }
    }
    // Everything was answered before Goodbye, so what goes wrong after it is no loss.
    if (worker->goodbye_id == 0)
        return code;
    worker->has_session = false;
    if (atomic_load(&worker->stopping))
        return AWA_OK;
    return awai_fail(error, AWA_UNAVAILABLE, "the proxy is shutting down");
}

// All tasks whose attempts have not ended for sure. False: too many to tell.
static bool list_held(struct awa_worker *worker, Awa__V1__Held *held)
{
    held->receipts = calloc(AWAI_HELD_MAX, sizeof *held->receipts);
    if (held->receipts == NULL)
        return false;
    size_t count = awai_pool_receipts(&worker->pool, held->receipts, AWAI_HELD_MAX);
    for (const struct task *task = worker->waiting.first; task != NULL; task = task->next) {
        if (count < AWAI_HELD_MAX)
            held->receipts[count] = awai_receipt_to_wire(&task->job->receipt);
        count++;
    }
    held->n_receipts = count;
    return count <= AWAI_HELD_MAX;
}

static enum awa_code open_connection(struct awa_worker *worker, struct awa_error *error)
{
    struct awa_connect_options options = {.worker_name = worker->options.name};
    Awa__V1__Held held = AWA__V1__HELD__INIT;
    bool is_told = false;
    if (worker->has_session) {
        options.resume = &worker->session;
        is_told = list_held(worker, &held);
    }
    enum awa_code code = awai_connect(worker->options.address, &options, is_told ? &held : NULL,
                                      &worker->connection, error);
    free(held.receipts);
    if (code == AWA_OK) {
        worker->session = worker->connection->session;
        worker->has_session = true;
    }
    return code;
}

static void wait_before_reconnect(struct awa_worker *worker, int backoff_ms)
{
    int64_t until_ms = awai_now_ms() + awai_pause_ms(backoff_ms);
    struct pollfd watched = {.fd = worker->wake_fd, .events = POLLIN};
    for (int left_ms; (left_ms = awai_left_ms(until_ms)) > 0;) {
        if (atomic_load(&worker->stopping))
            return;
        poll(&watched, 1, left_ms);
        drain_wakes(worker);
    }
}

// What had not started waits; outcomes without an answer are sent again.
static void drop_connection(struct awa_worker *worker)
{
    awa_close(worker->connection);
    worker->connection = NULL;
    worker->draining = false;
    for (struct task *task; (task = awai_pool_pop_ready(&worker->pool)) != NULL;)
        awai_list_push(&worker->waiting, task);
    for (struct task *task; (task = awai_list_pop(&worker->sent)) != NULL;)
        awai_pool_push_finished(&worker->pool, task);
}

// A worker that is stopping tries once.
static enum awa_code reconnect(struct awa_worker *worker, struct awa_error *error)
{
    for (int backoff_ms = AWAI_BACKOFF_MIN_MS;; backoff_ms = 2 * backoff_ms) {
        if (backoff_ms > AWAI_BACKOFF_MAX_MS)
            backoff_ms = AWAI_BACKOFF_MAX_MS;
        wait_before_reconnect(worker, backoff_ms);
        enum awa_code code = open_connection(worker, error);
        if (code == AWA_OK) {
            worker->stats.reconnects++;
            worker->stats.resumed += worker->connection->resumed;
        }
        if (code == AWA_OK || !error->retryable || atomic_load(&worker->stopping))
            return code;
    }
}

static enum awa_code run_sessions(struct awa_worker *worker, struct awa_error *error)
{
    for (;;) {
        enum awa_code code = run_session(worker, error);
        if (code == AWA_OK || !error->retryable)
            return code;
        drop_connection(worker);
        code = reconnect(worker, error);
        if (code == AWA_OK)
            continue;
        awai_list_clear(&worker->waiting);         // the proxy ends them by itself
        return is_drained(worker) ? AWA_OK : code; // who stops with nothing to tell needs no proxy
    }
}

// ---- Public

enum awa_code awa_worker_run(awa_worker *worker, struct awa_error *error)
{
    struct awa_error failure = {.code = AWA_OK};
    enum awa_code code = open_connection(worker, &failure);
    if (code == AWA_OK)
        code = awai_pool_start(&worker->pool, &failure);
    if (code == AWA_OK)
        code = run_sessions(worker, &failure);
    awai_pool_stop(&worker->pool);
    awa_close(worker->connection);
    worker->connection = NULL;
    worker->stats.executed = worker->pool.executed;
    if (code != AWA_OK && error != NULL)
        *error = failure;
    return code;
}

void awa_worker_stop(awa_worker *worker)
{
    atomic_store(&worker->stopping, true);
    awai_wake(worker->wake_fd);
}

struct awa_worker_stats awa_worker_get_stats(const awa_worker *worker)
{
    return worker->stats;
}

enum awa_code awa_worker_new(const struct awa_worker_options *options, awa_worker **worker,
                             struct awa_error *error)
{
    if (options->handler == NULL || options->queue_count == 0)
        return awai_fail(error, AWA_INVALID_ARGUMENT, "a worker needs a handler and a queue");
    if (options->concurrency > CONCURRENCY_MAX || options->prefetch > PREFETCH_MAX ||
        options->prefetch < AWA_NO_PREFETCH)
        return awai_fail(error, AWA_INVALID_ARGUMENT, "concurrency is beyond %d or prefetch %d",
                         CONCURRENCY_MAX, PREFETCH_MAX);
    struct awa_worker *made = calloc(1, sizeof *made);
    if (made == NULL)
        return awai_out_of_memory(error);
    made->options = *options;
    if (options->concurrency == 0)
        made->options.concurrency = 1;
    size_t prefetch = made->options.concurrency;
    if (options->prefetch != 0)
        prefetch = options->prefetch == AWA_NO_PREFETCH ? 0 : (size_t)options->prefetch;
    made->capacity = made->options.concurrency + prefetch;
    awai_list_init(&made->sent);
    awai_list_init(&made->waiting);
    made->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!awai_pool_init(&made->pool, &made->options, made->wake_fd) || made->wake_fd < 0) {
        awa_worker_free(made);
        return awai_fail(error, AWA_RESOURCE_EXHAUSTED, "no memory or no file descriptor left");
    }
    *worker = made;
    return AWA_OK;
}

void awa_worker_free(awa_worker *worker)
{
    if (worker == NULL)
        return;
    awai_list_clear(&worker->sent);
    awai_list_clear(&worker->waiting);
    free(worker->beat.receipts);
    awai_pool_destroy(&worker->pool);
    if (worker->wake_fd >= 0)
        close(worker->wake_fd);
    free(worker);
}
