// ledger.h: what has become of every job of a run, and whether that is right.
//
// What: each job has a sequence number, written into its args. The ledger notes
// its id when acknowledged and when claimed, its executions, its final status
// and its latency, and at the end says what is wrong.
// A violation: a job executed not exactly once, a finish that is not DONE, an
// id given twice or another at the claim than at the enqueue, args that differ.
#ifndef BENCH_LEDGER_H
#define BENCH_LEDGER_H

#include <stddef.h>
#include <stdint.h>

enum { ARGS_BYTES = 80 };

struct ledger;

struct ledger *ledger_new(uint32_t jobs);
void ledger_free(struct ledger *ledger);

// The args of job seq: exactly ARGS_BYTES of JSON.
void ledger_write_args(uint32_t seq, uint8_t args[ARGS_BYTES]);

// Latency is counted from at_us, unless ledger_execute() is told another time.
void ledger_start_clock(struct ledger *ledger, uint32_t seq, int64_t at_us);
void ledger_acknowledge(struct ledger *ledger, uint32_t seq, int64_t id);
// The handler starts: finds out which job it is and returns its seq. Its latency is counted from
// since_us, or from its own clock when that is 0.
uint32_t ledger_execute(struct ledger *ledger, const uint8_t *args, size_t length, int64_t id,
                        int64_t since_us, int64_t now_us);
void ledger_finish(struct ledger *ledger, uint32_t seq, int is_done);

// Checks every job; returns the number of violations, of which the first were printed.
uint64_t ledger_audit(struct ledger *ledger);
// Latency of the executed jobs in ms; quantile 0..1. Sorts: call it when the run is over.
double ledger_latency_ms(struct ledger *ledger, double quantile);

#endif
