// Works on queue "mail" until Ctrl-C: ./example-worker unix:/run/awa-proxy/awa.sock
#include <awa.h>
#include <signal.h>
#include <stdio.h>

static awa_worker *worker;

static void on_signal(int number)
{
    (void)number;
    awa_worker_stop(worker);
}

static struct awa_outcome handle(const struct awa_job *job, void *context)
{
    (void)context;
    printf("attempt %u of job %lld: %s\n", job->attempt, (long long)job->id, job->args);
    return fflush(stdout) == 0 ? awa_complete() : awa_retry(1000, "cannot print");
}

int main(int argc, char **argv)
{
    static const char *queues[] = {"mail"};
    struct awa_worker_options options = {.address = argv[argc - 1],
                                         .queues = queues,
                                         .queue_count = 1,
                                         .concurrency = 10,
                                         .handler = handle};
    struct awa_error error;
    if (awa_worker_new(&options, &worker, &error) != AWA_OK)
        return fprintf(stderr, "%s\n", error.message), 1;
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    if (awa_worker_run(worker, &error) != AWA_OK)
        return fprintf(stderr, "%s: %s\n", awa_code_name(error.code), error.message), 1;
    awa_worker_free(worker);
    return 0;
}
