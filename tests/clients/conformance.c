// conformance.c: libawa behind a line protocol, so that the same tests drive it
// and the Python client (see drivers.py).
//
// usage: awa-conformance call              commands on stdin, one answer line each
//        awa-conformance work ADDRESS QUEUE CONCURRENCY PREFETCH
// Fields are separated by tabs; an empty one means the default; receipts are hex.
// An answer is "ok" and fields, or "error", code, retryable, sqlstate, message.
// `work` does what the kind of a job says and prints "start ID ATTEMPT" for
// each; a job of kind "wait" runs until SIGUSR1, one of kind "lost" until it is
// told that it is lost (and fails then), "odd" fails with a text that is none,
// "far" asks for a retry later than there may be.
#include <awa.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FIELDS_MAX = 256, JOB_FIELDS = 9, FINISH_FIELDS = 4, ITEMS_MAX = 64 };

static awa_worker *worker;
static atomic_bool may_end;

struct command {
    char *fields[FIELDS_MAX];
    size_t count;
};

static const char *field(const struct command *command, size_t index)
{
    return index < command->count ? command->fields[index] : "";
}

static int print_error(const struct awa_error *error)
{
    return printf("error\t%s\t%d\t%s\t%s\n", awa_code_name(error->code), error->retryable,
                  error->sqlstate, error->message);
}

static const char *or_null(const char *field)
{
    return *field != '\0' ? field : NULL;
}

static struct awa_receipt read_receipt(const char *hex)
{
    struct awa_receipt receipt = {.length_bytes = 0};
    for (unsigned byte; sscanf(hex, "%2x", &byte) == 1; hex += 2)
        receipt.bytes[receipt.length_bytes++] = (uint8_t)byte;
    return receipt;
}

static void print_receipt(const struct awa_receipt *receipt)
{
    for (size_t i = 0; i < receipt->length_bytes; i++)
        printf("%02x", receipt->bytes[i]);
}

static int call_enqueue(awa_connection *connection, const struct command *command)
{
    struct awa_new_job jobs[ITEMS_MAX];
    struct awa_enqueue_result results[ITEMS_MAX];
    struct awa_error error;
    const char *key = field(command, 1);
    enum awa_code code;
    size_t count = (command->count - 2) / JOB_FIELDS;
    for (size_t i = 0; i < count; i++) {
        size_t at = 2 + i * JOB_FIELDS;
        jobs[i] = (struct awa_new_job){
            .queue = or_null(field(command, at)),
            .kind = or_null(field(command, at + 1)),
            .args = or_null(field(command, at + 2)),
            .priority = (uint32_t)strtoul(field(command, at + 3), NULL, 10),
            .max_attempts = (uint32_t)strtoul(field(command, at + 4), NULL, 10),
            .run_at_us = strtoll(field(command, at + 5), NULL, 10),
            .ordering_key = or_null(field(command, at + 6)),
            .metadata = or_null(field(command, at + 7)),
            .traceparent = or_null(field(command, at + 8)),
        };
    }
    if (*key != '\0')
        code = awa_enqueue_with_key(connection, key, jobs, count, results, &error);
    else
        code = awa_enqueue_many(connection, jobs, count, results, &error);
    if (code != AWA_OK)
        return print_error(&error);
    printf("ok");
    for (size_t i = 0; i < count; i++)
        printf("\t%" PRId64 "\t%s\t%s", results[i].job_id, awa_code_name(results[i].error.code),
               results[i].error.message);
    return printf("\n");
}

static int call_claim(awa_connection *connection, const struct command *command)
{
    struct awa_claim claim = {
        .max_jobs = (uint32_t)strtoul(field(command, 1), NULL, 10),
        .wait_ms = (uint32_t)strtoul(field(command, 2), NULL, 10),
        .queues = (const char *const *)&command->fields[3],
        .queue_count = command->count - 3,
    };
    struct awa_job **jobs;
    size_t count;
    struct awa_error error;
    if (awa_claim(connection, &claim, &jobs, &count, &error) != AWA_OK)
        return print_error(&error);
    printf("ok");
    for (size_t i = 0; i < count; i++) {
        printf("\t%" PRId64 "\t", jobs[i]->id);
        print_receipt(&jobs[i]->receipt);
        printf("\t%s\t%s\t%s\t%u\t%u\t%u\t%" PRId64 "\t%s\t%s", jobs[i]->queue, jobs[i]->kind,
               jobs[i]->args, jobs[i]->priority, jobs[i]->attempt, jobs[i]->max_attempts,
               jobs[i]->created_at_us, jobs[i]->metadata, jobs[i]->traceparent);
    }
    awa_jobs_free(jobs, count);
    return printf("\n");
}

static struct awa_outcome read_outcome(const char *kind, int64_t delay_ms, const char *error)
{
    if (strcmp(kind, "retry") == 0)
        return awa_retry(delay_ms, error);
    if (strcmp(kind, "snooze") == 0)
        return awa_snooze(delay_ms);
    if (strcmp(kind, "fail") == 0)
        return awa_fail(error);
    if (strcmp(kind, "cancel") == 0)
        return awa_cancel(error);
    return awa_complete();
}

static int print_results(const struct awa_finish_result *results, size_t count)
{
    printf("ok");
    for (size_t i = 0; i < count; i++)
        printf("\t%d\t%s\t%s", (int)results[i].status, awa_code_name(results[i].error.code),
               results[i].error.message);
    return printf("\n");
}

static int call_finish(awa_connection *connection, const struct command *command)
{
    struct awa_finish items[ITEMS_MAX];
    struct awa_finish_result results[ITEMS_MAX];
    struct awa_error error;
    size_t count = (command->count - 1) / FINISH_FIELDS;
    for (size_t i = 0; i < count; i++) {
        size_t at = 1 + i * FINISH_FIELDS;
        items[i].receipt = read_receipt(field(command, at));
        items[i].outcome =
            read_outcome(field(command, at + 1), strtoll(field(command, at + 2), NULL, 10),
                         field(command, at + 3));
    }
    if (awa_finish(connection, items, count, results, &error) != AWA_OK)
        return print_error(&error);
    return print_results(results, count);
}

static int call_release(awa_connection *connection, const struct command *command)
{
    struct awa_receipt receipts[ITEMS_MAX];
    struct awa_finish_result results[ITEMS_MAX];
    struct awa_error error;
    size_t count = command->count - 1;
    for (size_t i = 0; i < count; i++)
        receipts[i] = read_receipt(field(command, 1 + i));
    if (awa_release(connection, receipts, count, results, &error) != AWA_OK)
        return print_error(&error);
    return print_results(results, count);
}

static int call_counts(awa_connection *connection, const struct command *command)
{
    struct awa_queue_counts counts;
    struct awa_error error;
    if (awa_queue_counts(connection, field(command, 1), &counts, &error) != AWA_OK)
        return print_error(&error);
    return printf("ok\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64 "\t%" PRId64
                  "\t%" PRId64 "\t%" PRId64 "\n",
                  counts.scheduled, counts.available, counts.running, counts.waiting_external,
                  counts.retryable, counts.completed, counts.failed, counts.cancelled);
}

static int call_connect(awa_connection **connection, const struct command *command)
{
    struct awa_connect_options options = {.worker_name = or_null(field(command, 2)),
                                          .request_timeout_ms = atoi(field(command, 3)),
                                          .safe = atoi(field(command, 5)) != 0};
    struct awa_receipt id = read_receipt(field(command, 4));
    struct awa_session session;
    struct awa_error error;
    if (id.length_bytes == sizeof session.id) {
        memcpy(session.id, id.bytes, sizeof session.id);
        options.resume = &session;
    }
    awa_close(*connection);
    *connection = NULL;
    if (awa_connect(field(command, 1), &options, connection, &error) != AWA_OK)
        return print_error(&error);
    session = awa_connection_session(*connection);
    memcpy(id.bytes, session.id, sizeof session.id);
    id.length_bytes = sizeof session.id;
    printf("ok\t");
    print_receipt(&id);
    return printf("\t%d\n", awa_connection_resumed(*connection));
}

static int call_heartbeat(awa_connection *connection, const struct command *command)
{
    struct awa_receipt receipts[ITEMS_MAX];
    bool lost[ITEMS_MAX];
    struct awa_error error;
    size_t count = command->count - 1;
    for (size_t i = 0; i < count; i++)
        receipts[i] = read_receipt(field(command, 1 + i));
    if (awa_heartbeat(connection, receipts, count, lost, &error) != AWA_OK)
        return print_error(&error);
    printf("ok");
    for (size_t i = 0; i < count; i++)
        printf("\t%d", lost[i]);
    return printf("\n");
}

static int call_ping(awa_connection *connection)
{
    struct awa_error error;
    return awa_ping(connection, &error) == AWA_OK ? printf("ok\n") : print_error(&error);
}

// The same in a child, whose answer it prints; to the parent nothing has happened.
static int call_ping_in_child(awa_connection *connection)
{
    pid_t child = fork();
    if (child == 0) {
        call_ping(connection);
        fflush(stdout);
        _exit(0);
    }
    return (int)waitpid(child, NULL, 0);
}

static int call_goodbye(awa_connection **connection)
{
    struct awa_error error;
    uint32_t released;
    enum awa_code code = awa_goodbye(*connection, &released, &error);
    *connection = NULL;
    return code == AWA_OK ? printf("ok\t%u\n", released) : print_error(&error);
}

static int call(awa_connection **connection, const struct command *command)
{
    const char *name = field(command, 0);
    if (strcmp(name, "connect") == 0)
        return call_connect(connection, command);
    if (strcmp(name, "enqueue") == 0)
        return call_enqueue(*connection, command);
    if (strcmp(name, "claim") == 0)
        return call_claim(*connection, command);
    if (strcmp(name, "finish") == 0)
        return call_finish(*connection, command);
    if (strcmp(name, "release") == 0)
        return call_release(*connection, command);
    if (strcmp(name, "heartbeat") == 0)
        return call_heartbeat(*connection, command);
    if (strcmp(name, "counts") == 0)
        return call_counts(*connection, command);
    if (strcmp(name, "ping") == 0)
        return call_ping(*connection);
    if (strcmp(name, "ping_in_child") == 0)
        return call_ping_in_child(*connection);
    return call_goodbye(connection);
}

static int serve_calls(void)
{
    awa_connection *connection = NULL;
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        struct command command = {.count = 0};
        char *rest = line;
        line[strcspn(line, "\n")] = '\0';
        while (command.count < FIELDS_MAX && rest != NULL)
            command.fields[command.count++] = strsep(&rest, "\t");
        call(&connection, &command);
        fflush(stdout);
    }
    free(line);
    awa_close(connection);
    return 0;
}

static void on_signal(int number)
{
    if (number == SIGUSR1)
        atomic_store(&may_end, true);
    else
        awa_worker_stop(worker);
}

static void wait_for_permission(void)
{
    while (!atomic_load(&may_end))
        usleep(1000);
}

// 509 bytes, and then a character of two bytes, and so on: wherever it is cut.
static const char *odd_text(void)
{
    static char text[1024];
    snprintf(text, sizeof text, "\xff\xc3(\xed\xa0\x80%501s", "");
    for (size_t at = strlen(text); at + 2 < sizeof text; at += 2)
        memcpy(text + at, "\xc3\xa9", 3);
    return text;
}

// Whether a job has been snoozed here before: its next run is the first attempt too.
// Remembers it; more of them than there is room for are a fault of the test.
static bool was_snoozed(int64_t job_id)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static int64_t snoozed[ITEMS_MAX];
    static size_t count;
    size_t i = 0;
    pthread_mutex_lock(&mutex);
    while (i < count && snoozed[i] != job_id)
        i++;
    bool found = i < count;
    if (!found && count == ITEMS_MAX)
        abort();
    if (!found)
        snoozed[count++] = job_id;
    pthread_mutex_unlock(&mutex);
    return found;
}

// "retry", "snooze", "fail" and "cancel" do so once and complete after that, "far" too.
static struct awa_outcome handle(const struct awa_job *job, void *context)
{
    (void)context;
    printf("start %" PRId64 " %u\n", job->id, job->attempt);
    fflush(stdout);
    if (strcmp(job->kind, "wait") == 0)
        wait_for_permission();
    while (strcmp(job->kind, "lost") == 0 && !awa_job_lost(job))
        usleep(1000);
    if (strcmp(job->kind, "odd") == 0)
        return awa_fail(odd_text());
    if (strcmp(job->kind, "far") == 0 && job->attempt == 1)
        return awa_retry(31LL * 24 * 3600 * 1000, "much later");
    bool is_first = job->attempt == 1;
    if (strcmp(job->kind, "snooze") == 0)
        is_first = !was_snoozed(job->id);
    return is_first ? read_outcome(job->kind, 500, "asked for by the test") : awa_complete();
}

static int work(char **argv)
{
    const char *queue = argv[1];
    struct awa_worker_options options = {
        .address = argv[0],
        .name = "conformance",
        .queues = &queue,
        .queue_count = 1,
        .concurrency = (unsigned)atoi(argv[2]),
        .prefetch = atoi(argv[3]) == 0 ? AWA_NO_PREFETCH : atoi(argv[3]),
        .handler = handle,
    };
    struct awa_error error;
    if (awa_worker_new(&options, &worker, &error) != AWA_OK)
        return print_error(&error), 1;
    signal(SIGTERM, on_signal);
    signal(SIGUSR1, on_signal);
    enum awa_code code = awa_worker_run(worker, &error);
    struct awa_worker_stats stats = awa_worker_get_stats(worker);
    awa_worker_free(worker);
    if (code != AWA_OK)
        return print_error(&error), 1;
    printf("ok %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", stats.executed,
           stats.done, stats.not_accepted, stats.reconnects, stats.resumed);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "call") == 0)
        return serve_calls();
    if (argc == 6 && strcmp(argv[1], "work") == 0)
        return work(argv + 2);
    fprintf(stderr, "usage: see the top of conformance.c\n");
    return 2;
}
