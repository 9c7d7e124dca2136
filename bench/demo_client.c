// demo_client.c: the C producer and worker of ./dev demo, on libawa.
//
// usage: awa-demo produce ADDRESS QUEUE COUNT   stores jobs, 100 a request
//        awa-demo work ADDRESS QUEUE            works until SIGTERM
// Both write a record a job to stdout: its id and a time in unix microseconds,
// of the enqueue call or of the start of the handler. bench/demo compares them.
#include <awa.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 100, ARGS_MAX_BYTES = 128, CONCURRENCY = 16, PREFETCH = 240 };

static awa_worker *worker;

static int64_t unix_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int complain(const char *message)
{
    fprintf(stderr, "awa-demo: %s\n", message);
    return 1;
}

static struct awa_new_job make_job(const char *queue, long number, char *args)
{
    if (number % 4 == 0) {
        snprintf(args, ARGS_MAX_BYTES, "{\"invoice\": %ld, \"customer\": %ld, \"format\": \"pdf\"}",
                 number, number % 977);
        return (struct awa_new_job){.queue = queue, .kind = "invoice.render", .args = args};
    }
    snprintf(args, ARGS_MAX_BYTES,
             "{\"to\": \"customer%ld@example.org\", \"template\": \"welcome\", \"locale\": \"en\"}",
             number);
    return (struct awa_new_job){.queue = queue, .kind = "email.send", .args = args};
}

static int produce_batch(awa_connection *connection, const char *queue, long first, size_t count)
{
    char args[BATCH][ARGS_MAX_BYTES];
    struct awa_new_job jobs[BATCH];
    struct awa_enqueue_result results[BATCH];
    struct awa_error error;
    for (size_t i = 0; i < count; i++)
        jobs[i] = make_job(queue, first + (long)i, args[i]);
    int64_t at_us = unix_us();
    if (awa_enqueue_many(connection, jobs, count, results, &error) != AWA_OK)
        return complain(error.message);
    for (size_t i = 0; i < count; i++) {
        if (results[i].job_id == 0)
            return complain(results[i].error.message);
        printf("%lld %lld\n", (long long)results[i].job_id, (long long)at_us);
    }
    return 0;
}

static int produce(const char *address, const char *queue, long count)
{
    awa_connection *connection;
    struct awa_error error;
    if (awa_connect(address, NULL, &connection, &error) != AWA_OK)
        return complain(error.message);
    for (long first = 0; first < count; first += BATCH) {
        size_t part = count - first < BATCH ? (size_t)(count - first) : BATCH;
        if (produce_batch(connection, queue, first, part) != 0)
            return 1;
    }
    return awa_goodbye(connection, NULL, &error) == AWA_OK ? 0 : complain(error.message);
}

static void on_signal(int number)
{
    (void)number;
    awa_worker_stop(worker);
}

static struct awa_outcome handle(const struct awa_job *job, void *context)
{
    (void)context;
    int written = printf("%lld %lld\n", (long long)job->id, (long long)unix_us());
    return written > 0 ? awa_complete() : awa_retry(0, "the record could not be written");
}

static int work(const char *address, const char *queue)
{
    struct awa_worker_options options = {
        .address = address,
        .name = "demo",
        .queues = &queue,
        .queue_count = 1,
        .concurrency = CONCURRENCY,
        .prefetch = PREFETCH,
        .handler = handle,
    };
    struct awa_error error;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); // a record is written before its outcome is sent
    if (awa_worker_new(&options, &worker, &error) != AWA_OK)
        return complain(error.message);
    signal(SIGTERM, on_signal);
    enum awa_code code = awa_worker_run(worker, &error);
    awa_worker_free(worker);
    return code == AWA_OK ? 0 : complain(error.message);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "produce") == 0)
        return produce(argv[2], argv[3], strtol(argv[4], NULL, 10));
    if (argc == 4 && strcmp(argv[1], "work") == 0)
        return work(argv[2], argv[3]);
    return complain("usage: awa-demo produce ADDRESS QUEUE COUNT | work ADDRESS QUEUE");
}
