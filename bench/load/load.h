// load.h: producers and workers of one run, on one epoll loop.
//
// Producers are closed loops (the next request goes out when the last one is
// answered) or one open loop (a tick every 10 ms, whatever the answers do).
// Workers answer in seeded random order: a turn answers a random seven eighths of
// what a worker holds, so that claim batches never come back whole and in order,
// as they would from no-op handlers that answer at once.
// In flight = claimed and unanswered: from the Claim that may bring a job until
// its Finish is sent. All workers together never have more than `inflight`, nor
// more than twice that with those whose DONE is on its way (as libawa's workers).
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include "ledger.h"

#include <stdint.h>

struct load_options {
    const char *path, *queue;
    uint32_t jobs;
    uint32_t producers; // connections
    uint32_t batch;     // jobs a request
    uint32_t workers;   // connections; 0: nobody works
    uint32_t inflight;  // of all workers together
    uint32_t rate;      // jobs/s offered in ticks of 10 ms; 0: closed loops
    uint32_t deadline_s;
    uint64_t seed;
};

enum phase { PHASE_ENQUEUE, PHASE_WORK, PHASE_BOTH };

struct load_result {
    double seconds;          // first request sent -> last answer received
    uint32_t backlog_max;    // acknowledged and not executed
    uint32_t unfinished_max; // executed and not yet DONE: `inflight`, and what the answers took
};

// Runs until every job of the phase is answered; dies at the deadline.
struct load_result load_run(const struct load_options *options, enum phase phase,
                            struct ledger *ledger);

#endif
