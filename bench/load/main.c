// main.c: awa-bench, the load generator; bench/run starts it and knows the rest.
//
// usage: awa-bench SCENARIO --socket PATH --jobs N [--producers P] [--batch B]
//                  [--workers W] [--inflight K] [--rate R] [--seed S] [--deadline-s D]
// Scenarios: drain (enqueue all, then work it off), both (at once).
// Talks to its parent in lines: "ready" before the measured part and one JSON
// object after it; after each it waits for a line (or the end) on stdin, so that
// the parent can look at the cluster meanwhile. Exit code 1: any violation.
#include "load.h"

#include "link.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH_MAX = 1000, FILL_PRODUCERS = 4, FILL_BATCH = 500 };

static uint32_t number(const char *name, const char *text, uint32_t least)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (errno != 0 || *text == '\0' || *end != '\0' || value > UINT32_MAX || value < least)
        die("--%s %s: expected a number, at least %u", name, text, least);
    return (uint32_t)value;
}

static void parse(int argc, char **argv, struct load_options *options)
{
    struct setting {
        const char *name;
        uint32_t *value;
        uint32_t least;
    } settings[] = {
        {"jobs", &options->jobs, 1},
        {"producers", &options->producers, 1},
        {"batch", &options->batch, 1},
        {"workers", &options->workers, 1},
        {"inflight", &options->inflight, 1},
        {"rate", &options->rate, 0},
        {"seed", NULL, 0},
        {"deadline-s", &options->deadline_s, 1},
        {"socket", NULL, 0},
    };
    enum { SETTINGS = sizeof settings / sizeof settings[0], SEED = 6, SOCKET = 8 };
    struct option known[SETTINGS + 1] = {{0}};
    for (int i = 0; i < SETTINGS; i++)
        known[i] = (struct option){.name = settings[i].name, .has_arg = required_argument};
    for (int found = -1; getopt_long(argc, argv, "", known, &found) != -1;) {
        if (found < 0)
            die("unknown option");
        if (found == SOCKET)
            options->path = optarg;
        else if (found == SEED)
            options->seed = number("seed", optarg, 0);
        else
            *settings[found].value = number(settings[found].name, optarg, settings[found].least);
        found = -1;
    }
    if (options->path == NULL || options->jobs == 0)
        die("--socket and --jobs are needed");
    if (options->batch > BATCH_MAX)
        die("--batch is at most %d", BATCH_MAX);
    if (options->workers > options->inflight)
        options->workers = options->inflight;
}

static void wait_for_parent(void)
{
    fflush(stdout);
    for (int byte; (byte = getchar()) != EOF && byte != '\n';)
        ;
}

static void fill(const struct load_options *options, struct ledger *ledger)
{
    struct load_options filling = *options;
    filling.producers = FILL_PRODUCERS;
    filling.batch = FILL_BATCH;
    filling.rate = 0;
    load_run(&filling, PHASE_ENQUEUE, ledger);
}

int main(int argc, char **argv)
{
    struct load_options options = {.queue = "bench",
                                   .producers = 1,
                                   .batch = 100,
                                   .workers = 4,
                                   .inflight = 512,
                                   .deadline_s = 120,
                                   .seed = 1};
    if (argc < 2 || (strcmp(argv[1], "drain") != 0 && strcmp(argv[1], "both") != 0))
        die("the scenario is drain or both");
    int is_drain = strcmp(argv[1], "drain") == 0;
    parse(argc - 1, argv + 1, &options);
    struct ledger *ledger = ledger_new(options.jobs);
    if (is_drain)
        fill(&options, ledger);
    puts("ready");
    wait_for_parent();
    struct load_result result = load_run(&options, is_drain ? PHASE_WORK : PHASE_BOTH, ledger);
    uint64_t violations = ledger_audit(ledger);
    printf("{\"jobs\": %u, \"seconds\": %.6f, \"jobs_per_s\": %.0f, \"p50_ms\": %.3f, "
           "\"p95_ms\": %.3f, \"p99_ms\": %.3f, \"max_ms\": %.3f, \"backlog_max\": %u, "
           "\"unfinished_max\": %u, \"violations\": %llu}\n",
           options.jobs, result.seconds, options.jobs / result.seconds,
           ledger_latency_ms(ledger, 0.5), ledger_latency_ms(ledger, 0.95),
           ledger_latency_ms(ledger, 0.99), ledger_latency_ms(ledger, 1), result.backlog_max,
           result.unfinished_max, (unsigned long long)violations);
    wait_for_parent();
    ledger_free(ledger);
    return violations == 0 ? 0 : 1;
}
