// load.c: see load.h.
#include "load.h"

#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    BATCH_MAX = 1000,  // jobs an Enqueue, items a Finish
    FINISHES_MAX = 64, // unanswered, a worker
    RECEIPT_MAX_BYTES = 64,
    CLAIM_REQUEST_ID = 2,
    FINISH_REQUEST_ID = 3, // and the FINISHES_MAX - 1 after it
    CLAIM_MAX_JOBS = 512,
    CLAIM_WAIT_MS = 60000,
    EVENTS_MAX = 128,
    KEPT_BACK = 8, // one in so many jobs is answered a turn later
};
static const int64_t tick_us = 10000;
static const int64_t straggle_us = 5000; // how long a job is kept back at most

struct load;

struct peer { // what epoll points to: a producer or a worker
    struct load *load;
    struct link *link;
    int is_worker;
    int wants_output; // EPOLLOUT is on
};

struct producer {
    struct peer peer;
    int is_waiting;
};

struct held_job {
    uint32_t seq;
    uint8_t receipt_bytes;
    uint8_t receipt[RECEIPT_MAX_BYTES];
};

struct finish {
    uint32_t count; // 0: free
    uint32_t seqs[BATCH_MAX];
};

struct worker {
    struct peer peer;
    uint32_t limit;    // of this worker's jobs in flight
    uint32_t claiming; // jobs asked for in the waiting Claim
    int64_t claimed_at_us;
    int64_t brought_at_us; // the last ClaimOk with jobs
    int has_new;           // it came since the last Finish
    uint32_t answering;    // jobs in unanswered finishes
    uint32_t held_count;
    struct held_job *held;
    struct finish finishes[FINISHES_MAX];
};

struct load {
    const struct load_options *options;
    enum phase phase;
    struct ledger *ledger;
    uint64_t random;
    uint32_t offered, acknowledged, executed, finished;
    uint32_t backlog_max, unfinished_max;
    int64_t started_us, last_answer_us, ticks;
    struct producer *producers;
    struct worker *workers;
    int epoll_fd, timer_fd;
};

static int64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

// xorshift64*, below `limit`; the bias is of no interest here.
static uint32_t random_below(struct load *load, uint32_t limit)
{
    load->random ^= load->random >> 12;
    load->random ^= load->random << 25;
    load->random ^= load->random >> 27;
    return (uint32_t)((load->random * UINT64_C(2685821657736338717) >> 32) % limit);
}

// ---- Producers

// The request id names the first job, so the answer needs no table.
static void send_jobs(struct load *load, struct producer *producer, uint32_t count, int64_t at_us)
{
    static uint8_t args[BATCH_MAX][ARGS_BYTES];
    static Awa__V1__NewJob jobs[BATCH_MAX];
    static Awa__V1__NewJob *pointers[BATCH_MAX];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t seq = load->offered + i;
        ledger_write_args(seq, args[i]);
        ledger_start_clock(load->ledger, seq, at_us);
        awa__v1__new_job__init(&jobs[i]);
        jobs[i].queue = (char *)load->options->queue;
        jobs[i].kind = "bench.noop";
        jobs[i].args = (ProtobufCBinaryData){.len = ARGS_BYTES, .data = args[i]};
        pointers[i] = &jobs[i];
    }
    Awa__V1__Enqueue enqueue = AWA__V1__ENQUEUE__INIT;
    enqueue.n_jobs = count;
    enqueue.jobs = pointers;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;
    frame.request_id = load->offered + 1;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_ENQUEUE;
    frame.enqueue = &enqueue;
    link_send(producer->peer.link, &frame);
    load->offered += count;
}

static void produce(struct load *load, struct producer *producer)
{
    uint32_t left = load->options->jobs - load->offered;
    uint32_t count = left < load->options->batch ? left : load->options->batch;
    if (producer->is_waiting || count == 0 || load->options->rate != 0)
        return;
    producer->is_waiting = 1;
    send_jobs(load, producer, count, now_us());
}

// Offers the jobs of every tick that is due, late or not, as of the tick's own time.
static void on_tick(struct load *load)
{
    uint64_t expirations;
    if (read(load->timer_fd, &expirations, sizeof expirations) != sizeof expirations)
        return;
    for (; expirations > 0; expirations--) {
        load->ticks++;
        int64_t due = load->ticks * tick_us * load->options->rate / 1000000;
        if (due > load->options->jobs)
            due = load->options->jobs;
        int64_t at_us = load->started_us + load->ticks * tick_us;
        while (load->offered < due) {
            uint32_t left = (uint32_t)due - load->offered;
            send_jobs(load, &load->producers[0],
                      left < load->options->batch ? left : load->options->batch, at_us);
        }
    }
}

static void on_enqueue_ok(struct load *load, uint64_t request_id, const Awa__V1__EnqueueOk *ok)
{
    for (size_t i = 0; i < ok->n_results; i++) {
        if (ok->results[i]->error != NULL)
            die("a job was refused: %s", ok->results[i]->error->message);
        ledger_acknowledge(load->ledger, (uint32_t)(request_id - 1 + i), ok->results[i]->job_id);
    }
    load->acknowledged += (uint32_t)ok->n_results;
    if (load->acknowledged > load->executed &&
        load->acknowledged - load->executed > load->backlog_max)
        load->backlog_max = load->acknowledged - load->executed;
}

// ---- Workers

static void claim(struct load *load, struct worker *worker)
{
    uint32_t free_room = worker->limit - worker->held_count;
    if (free_room > 2 * worker->limit - worker->held_count - worker->answering)
        free_room = 2 * worker->limit - worker->held_count - worker->answering;
    if (worker->claiming > 0 || free_room == 0 || load->executed == load->options->jobs)
        return;
    Awa__V1__Claim request = AWA__V1__CLAIM__INIT;
    request.n_queues = 1;
    request.queues = (char **)&load->options->queue;
    request.max_jobs = free_room < CLAIM_MAX_JOBS ? free_room : CLAIM_MAX_JOBS;
    request.wait_ms = CLAIM_WAIT_MS;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;
    frame.request_id = CLAIM_REQUEST_ID;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_CLAIM;
    frame.claim = &request;
    link_send(worker->peer.link, &frame);
    worker->claiming = request.max_jobs;
    worker->claimed_at_us = now_us();
}

static uint32_t free_finish(const struct worker *worker)
{
    uint32_t index = 0;
    while (index < FINISHES_MAX && worker->finishes[index].count > 0)
        index++;
    return index;
}

static int is_time_to_answer(const struct worker *worker)
{
    return worker->held_count > 0 &&
           (worker->has_new || now_us() - worker->brought_at_us >= straggle_us);
}

// Answers most of what is held (all but one in KEPT_BACK), in random order; the rest goes with the
// next jobs, or when it has waited long enough.
static void answer(struct load *load, struct worker *worker)
{
    static Awa__V1__Complete complete = AWA__V1__COMPLETE__INIT;
    static struct held_job chosen[BATCH_MAX];
    static Awa__V1__FinishItem items[BATCH_MAX];
    static Awa__V1__FinishItem *pointers[BATCH_MAX];
    uint32_t index = free_finish(worker);
    uint32_t count = worker->held_count - worker->held_count / KEPT_BACK;
    if (!is_time_to_answer(worker) || index == FINISHES_MAX)
        return;
    worker->has_new = 0;
    if (count > BATCH_MAX)
        count = BATCH_MAX;
    struct finish *finish = &worker->finishes[index];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = random_below(load, worker->held_count);
        chosen[i] = worker->held[at];
        worker->held[at] = worker->held[--worker->held_count];
        awa__v1__finish_item__init(&items[i]);
        items[i].receipt =
            (ProtobufCBinaryData){.len = chosen[i].receipt_bytes, .data = chosen[i].receipt};
        items[i].outcome_case = AWA__V1__FINISH_ITEM__OUTCOME_COMPLETE;
        items[i].complete = &complete;
        pointers[i] = &items[i];
        finish->seqs[i] = chosen[i].seq;
    }
    finish->count = count;
    worker->answering += count;
    Awa__V1__Finish request = AWA__V1__FINISH__INIT;
    request.n_items = count;
    request.items = pointers;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;
    frame.request_id = FINISH_REQUEST_ID + index;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_FINISH;
    frame.finish = &request;
    link_send(worker->peer.link, &frame);
}

static void on_claim_ok(struct load *load, struct worker *worker, const Awa__V1__ClaimOk *ok)
{
    int64_t at_us = now_us();
    if (ok->n_jobs > worker->claiming)
        die("%zu jobs were sent, %u asked for", ok->n_jobs, worker->claiming);
    int64_t since_us = load->phase == PHASE_WORK ? worker->claimed_at_us : 0;
    for (size_t i = 0; i < ok->n_jobs; i++) {
        const Awa__V1__Job *job = ok->jobs[i];
        struct held_job *held = &worker->held[worker->held_count++];
        if (job->receipt.len > RECEIPT_MAX_BYTES)
            die("a receipt of %zu bytes", job->receipt.len);
        held->receipt_bytes = (uint8_t)job->receipt.len;
        memcpy(held->receipt, job->receipt.data, job->receipt.len);
        held->seq = ledger_execute(load->ledger, job->args.data, job->args.len, job->job_id,
                                   since_us, at_us);
    }
    if (ok->n_jobs > 0) {
        worker->has_new = 1;
        worker->brought_at_us = at_us;
    }
    load->executed += (uint32_t)ok->n_jobs;
    if (load->executed - load->finished > load->unfinished_max)
        load->unfinished_max = load->executed - load->finished;
    worker->claiming = 0;
}

static void on_finish_ok(struct load *load, struct worker *worker, uint64_t request_id,
                         const Awa__V1__FinishOk *ok)
{
    uint64_t index = request_id - FINISH_REQUEST_ID;
    if (index >= FINISHES_MAX || ok->n_results != worker->finishes[index].count)
        die("a FinishOk that was not asked for");
    struct finish *finish = &worker->finishes[index];
    for (uint32_t i = 0; i < finish->count; i++)
        ledger_finish(load->ledger, finish->seqs[i],
                      ok->results[i]->status == AWA__V1__FINISH_STATUS__DONE);
    load->finished += finish->count;
    worker->answering -= finish->count;
    finish->count = 0;
}

// ---- The loop

static void on_frame(void *context, const Awa__V1__ServerFrame *frame)
{
    struct peer *peer = context;
    struct load *load = peer->load;
    if (frame->answer_case == AWA__V1__SERVER_FRAME__ANSWER_ERROR)
        die("the proxy answered: %s", frame->error->message);
    load->last_answer_us = now_us();
    if (frame->answer_case == AWA__V1__SERVER_FRAME__ANSWER_ENQUEUE_OK && !peer->is_worker) {
        ((struct producer *)peer)->is_waiting = 0;
        on_enqueue_ok(load, frame->request_id, frame->enqueue_ok);
    } else if (frame->answer_case == AWA__V1__SERVER_FRAME__ANSWER_CLAIM_OK && peer->is_worker) {
        on_claim_ok(load, (struct worker *)peer, frame->claim_ok);
    } else if (frame->answer_case == AWA__V1__SERVER_FRAME__ANSWER_FINISH_OK && peer->is_worker) {
        on_finish_ok(load, (struct worker *)peer, frame->request_id, frame->finish_ok);
    } else {
        die("an answer that was not asked for");
    }
}

static void flush(struct load *load, struct peer *peer)
{
    link_flush(peer->link);
    int wanted = link_has_output(peer->link);
    if (wanted == peer->wants_output)
        return;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    if (wanted)
        event.events |= EPOLLOUT;
    epoll_ctl(load->epoll_fd, EPOLL_CTL_MOD, link_fd(peer->link), &event);
    peer->wants_output = wanted;
}

static void take_turn(struct load *load, struct peer *peer)
{
    if (peer->is_worker) {
        answer(load, (struct worker *)peer);
        claim(load, (struct worker *)peer);
    } else {
        produce(load, (struct producer *)peer);
    }
    flush(load, peer);
}

static int is_over(const struct load *load)
{
    uint32_t jobs = load->options->jobs;
    return load->phase == PHASE_ENQUEUE ? load->acknowledged == jobs
                                        : load->finished == jobs && load->acknowledged == jobs;
}

static void handle_event(struct load *load, const struct epoll_event *event)
{
    struct peer *peer = event->data.ptr;
    if (peer == NULL) { // the timer
        on_tick(load);
        flush(load, &load->producers[0].peer);
        return;
    }
    if ((event->events & ~(uint32_t)EPOLLOUT) != 0)
        link_receive(peer->link, on_frame, peer);
    take_turn(load, peer);
}

static void answer_stragglers(struct load *load)
{
    for (uint32_t i = 0; i < load->options->workers; i++)
        if (is_time_to_answer(&load->workers[i]))
            take_turn(load, &load->workers[i].peer);
}

static void loop(struct load *load)
{
    struct epoll_event events[EVENTS_MAX];
    int64_t deadline_us = load->started_us + (int64_t)load->options->deadline_s * 1000000;
    while (!is_over(load)) {
        int is_holding = load->executed > load->finished;
        int count = epoll_wait(load->epoll_fd, events, EVENTS_MAX, is_holding ? 1 : 1000);
        if (count < 0 && errno != EINTR)
            die("epoll_wait: %s", strerror(errno));
        for (int i = 0; i < count; i++)
            handle_event(load, &events[i]);
        answer_stragglers(load);
        if (now_us() > deadline_us)
            die("not over after %u s: %u of %u acknowledged, %u executed, %u finished",
                load->options->deadline_s, load->acknowledged, load->options->jobs, load->executed,
                load->finished);
    }
}

// ---- Setting up and taking down

static void watch(struct load *load, int fd, struct peer *peer)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
    if (epoll_ctl(load->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        die("epoll_ctl: %s", strerror(errno));
}

static void open_peer(struct load *load, struct peer *peer, int is_worker)
{
    *peer = (struct peer){
        .load = load,
        .link = link_open(load->options->path, is_worker ? "bench-worker" : "bench-producer"),
        .is_worker = is_worker,
    };
    watch(load, link_fd(peer->link), peer);
}

static void open_peers(struct load *load)
{
    const struct load_options *options = load->options;
    load->producers = calloc(options->producers, sizeof *load->producers);
    load->workers = calloc(options->workers, sizeof *load->workers);
    if (load->producers == NULL || load->workers == NULL)
        die("out of memory");
    for (uint32_t i = 0; i < options->producers && load->phase != PHASE_WORK; i++)
        open_peer(load, &load->producers[i].peer, 0);
    for (uint32_t i = 0; i < options->workers && load->phase != PHASE_ENQUEUE; i++) {
        struct worker *worker = &load->workers[i];
        open_peer(load, &worker->peer, 1);
        // The remainder goes to the first ones, so that the sum is `inflight`.
        worker->limit = options->inflight / options->workers +
                        (i < options->inflight % options->workers ? 1 : 0);
        worker->held = calloc(worker->limit, sizeof *worker->held);
        if (worker->held == NULL)
            die("out of memory");
    }
}

static void start_ticks(struct load *load)
{
    int64_t first_us = load->started_us + tick_us;
    struct itimerspec every_tick = {
        .it_interval = {.tv_nsec = tick_us * 1000},
        .it_value = {.tv_sec = first_us / 1000000, .tv_nsec = first_us % 1000000 * 1000},
    };
    load->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (load->timer_fd < 0 ||
        timerfd_settime(load->timer_fd, TFD_TIMER_ABSTIME, &every_tick, NULL) != 0)
        die("timerfd: %s", strerror(errno));
    watch(load, load->timer_fd, NULL);
}

static void start(struct load *load)
{
    load->started_us = now_us();
    if (load->options->rate != 0 && load->phase != PHASE_WORK)
        start_ticks(load);
    for (uint32_t i = 0; i < load->options->workers; i++)
        if (load->workers[i].peer.link != NULL)
            take_turn(load, &load->workers[i].peer);
    for (uint32_t i = 0; i < load->options->producers; i++)
        if (load->producers[i].peer.link != NULL)
            take_turn(load, &load->producers[i].peer);
}

static void close_peers(struct load *load)
{
    for (uint32_t i = 0; i < load->options->producers; i++)
        if (load->producers[i].peer.link != NULL)
            link_close(load->producers[i].peer.link);
    for (uint32_t i = 0; i < load->options->workers; i++) {
        if (load->workers[i].peer.link != NULL)
            link_close(load->workers[i].peer.link);
        free(load->workers[i].held);
    }
    free(load->producers);
    free(load->workers);
    close(load->epoll_fd);
    if (load->timer_fd >= 0)
        close(load->timer_fd);
}

struct load_result load_run(const struct load_options *options, enum phase phase,
                            struct ledger *ledger)
{
    struct load load = {
        .options = options,
        .phase = phase,
        .ledger = ledger,
        .random = options->seed | 1,
        .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
        .timer_fd = -1,
    };
    if (phase == PHASE_WORK)
        load.offered = load.acknowledged = options->jobs;
    if (load.epoll_fd < 0)
        die("epoll_create1: %s", strerror(errno));
    open_peers(&load);
    start(&load);
    loop(&load);
    close_peers(&load);
    return (struct load_result){
        .seconds = (double)(load.last_answer_us - load.started_us) / 1e6,
        .backlog_max = load.backlog_max,
        .unfinished_max = load.unfinished_max,
    };
}
