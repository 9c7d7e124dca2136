// connection.c: a connection to the proxy, one request at a time.
//
// What: connect, hello, call (send and wait), ping, goodbye, queue counts. What
// the proxy says unasked is passed over: it is for those who wait for nothing
// in particular (worker.c).
// A call that finds the connection lost connects again, to a new session: one
// that holds nothing loses nothing by it. One that may hold attempts is left
// closed, since only its user knows what he still works on.
// Invariants: at most one request is unanswered, so an answer under another id
// is a violation of the protocol; a call that was not answered in time closes
// the connection, for its late answer could be taken for another's.
#include "internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PROTOCOL_MAJOR = 1,
    PROTOCOL_MINOR = 0,
    HELLO_MAX_FRAME_BYTES = 1 << 20, // until the proxy has told its limit
    DEFAULT_CONNECT_TIMEOUT_MS = 5000,
    // The proxy itself says after 30 s that nothing was done, or up to 20 s later: who gives up
    // earlier does not learn it.
    DEFAULT_REQUEST_TIMEOUT_MS = 60000,
};

static enum awa_code send_until(struct awa_connection *connection,
                                Awa__V1__ClientFrame__RequestCase kind, void *message,
                                int64_t deadline_ms, struct awa_error *error)
{
    Awa__V1__ClientFrame request = AWA__V1__CLIENT_FRAME__INIT;
    request.request_id = ++connection->last_request_id;
    request.request_case = kind;
    request.hello = message; // all members of the union are pointers to a message
    return awai_send(&connection->stream, &request, deadline_ms, error);
}

enum awa_code awai_send_request(struct awa_connection *connection,
                                Awa__V1__ClientFrame__RequestCase kind, void *message,
                                struct awa_error *error)
{
    return send_until(connection, kind, message, awai_now_ms() + connection->request_timeout_ms,
                      error);
}

static enum awa_code receive_answer(struct awa_connection *connection, int64_t deadline_ms,
                                    Awa__V1__ServerFrame **answer, struct awa_error *error)
{
    for (;;) {
        enum awa_code code = awai_receive(&connection->stream, deadline_ms, answer, error);
        if (code != AWA_OK || *answer == NULL ||
            (*answer)->answer_case != AWA__V1__SERVER_FRAME__ANSWER_NOTICE)
            return code;
        awa__v1__server_frame__free_unpacked(*answer, NULL);
        *answer = NULL;
        if (awai_now_ms() >= deadline_ms)
            return AWA_OK;
    }
}

// Sends and waits for the answer, over the connection as it is.
static enum awa_code exchange(struct awa_connection *connection,
                              Awa__V1__ClientFrame__RequestCase kind, void *message,
                              int64_t deadline_ms, Awa__V1__ServerFrame **answer,
                              struct awa_error *error)
{
    if (kind == AWA__V1__CLIENT_FRAME__REQUEST_CLAIM)
        connection->may_hold = true; // whatever becomes of its answer
    enum awa_code code = send_until(connection, kind, message, deadline_ms, error);
    if (code == AWA_OK)
        code = receive_answer(connection, deadline_ms, answer, error);
    if (code != AWA_OK)
        return code;
    if (*answer == NULL) {
        awai_stream_close(&connection->stream);
        awai_fail(error, AWA_DEADLINE_EXCEEDED, "the proxy did not answer in time");
        return AWA_DEADLINE_EXCEEDED;
    }
    bool own = (*answer)->request_id == connection->last_request_id;
    if (own && (int)(*answer)->answer_case == (int)kind)
        return AWA_OK;
    bool is_error = (*answer)->answer_case == AWA__V1__SERVER_FRAME__ANSWER_ERROR;
    if (is_error)
        code = awai_fail_from_wire(error, (*answer)->error);
    else
        code = awai_not_asked_for(error);
    if (!own || !is_error)
        awai_stream_close(&connection->stream);
    awa__v1__server_frame__free_unpacked(*answer, NULL);
    return code;
}

static enum awa_code take_hello(struct awa_connection *connection, const Awa__V1__HelloOk *ok,
                                struct awa_error *error)
{
    if (ok->max_frame_bytes == 0 || ok->max_jobs_per_enqueue == 0 || ok->max_claim_jobs == 0 ||
        ok->max_items_per_finish == 0 || ok->idle_timeout_ms == 0)
        return awai_fail(error, AWA_INTERNAL, "the proxy says that a limit is 0");
    connection->limits = (struct awa_limits){
        .max_frame_bytes = ok->max_frame_bytes,
        .max_args_bytes = ok->max_args_bytes,
        .max_jobs_per_enqueue = ok->max_jobs_per_enqueue,
        .max_claim_jobs = ok->max_claim_jobs,
        .max_items_per_finish = ok->max_items_per_finish,
        .max_wait_ms = ok->max_wait_ms,
        .idle_timeout_ms = ok->idle_timeout_ms,
        .heartbeat_interval_ms = ok->heartbeat_interval_ms,
        .session_grace_ms = ok->session_grace_ms,
    };
    connection->resumed = ok->resumed != 0;
    if (ok->session_id.len == sizeof connection->session.id)
        memcpy(connection->session.id, ok->session_id.data, sizeof connection->session.id);
    connection->stream.max_frame_bytes = ok->max_frame_bytes;
    return AWA_OK;
}

static enum awa_code say_hello(struct awa_connection *connection, const struct awa_session *resume,
                               Awa__V1__Held *held, int64_t deadline_ms, struct awa_error *error)
{
    Awa__V1__Hello hello = AWA__V1__HELLO__INIT;
    hello.major = PROTOCOL_MAJOR;
    hello.minor = PROTOCOL_MINOR;
    hello.client_name = "libawa";
    hello.client_version = AWA_VERSION;
    hello.language = "c";
    hello.worker_name = connection->worker_name;
    if (resume != NULL) {
        hello.session_id.data = (uint8_t *)resume->id;
        hello.session_id.len = sizeof resume->id;
        hello.held = held;
    }
    Awa__V1__ServerFrame *answer;
    enum awa_code code = exchange(connection, AWA__V1__CLIENT_FRAME__REQUEST_HELLO, &hello,
                                  deadline_ms, &answer, error);
    if (code != AWA_OK)
        return code;
    code = take_hello(connection, answer->hello_ok, error);
    awa__v1__server_frame__free_unpacked(answer, NULL);
    return code;
}

// Of a connection that is closed. It still is when this fails.
static enum awa_code open_once(struct awa_connection *connection, const struct awa_session *resume,
                               Awa__V1__Held *held, int64_t deadline_ms, struct awa_error *error)
{
    int64_t own_deadline_ms = awai_now_ms() + connection->connect_timeout_ms;
    if (own_deadline_ms < deadline_ms)
        deadline_ms = own_deadline_ms;
    connection->stream.max_frame_bytes = HELLO_MAX_FRAME_BYTES;
    connection->stream.opened_by = getpid();
    enum awa_code code =
        awai_open_socket(connection->address, deadline_ms, &connection->stream.fd, error);
    if (code == AWA_OK)
        code = say_hello(connection, resume, held, deadline_ms, error);
    if (code != AWA_OK)
        awai_stream_close(&connection->stream);
    return code;
}

// ---- Connecting again

int awai_pause_ms(int longest_ms)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return longest_ms / 2 + (int)(now.tv_nsec / 1000 % (longest_ms / 2)); // random enough
}

bool awai_back_off(int *backoff_ms, int64_t deadline_ms)
{
    int longest_ms = *backoff_ms == 0 ? AWAI_BACKOFF_MIN_MS : *backoff_ms;
    int64_t pause_ms = awai_pause_ms(longest_ms);
    if (awai_now_ms() + 2 * pause_ms >= deadline_ms)
        return false;
    nanosleep(&(struct timespec){pause_ms / 1000, pause_ms % 1000 * 1000000L}, NULL);
    *backoff_ms = 2 * longest_ms < AWAI_BACKOFF_MAX_MS ? 2 * longest_ms : AWAI_BACKOFF_MAX_MS;
    return true;
}

// Between two requests: closes what the proxy has ended meanwhile, so that
// nothing is sent into it whose outcome would be unknown.
static void close_if_ended(struct awa_connection *connection, int64_t deadline_ms)
{
    Awa__V1__ServerFrame *frame;
    while (awai_now_ms() < deadline_ms &&
           awai_receive(&connection->stream, 0, &frame, NULL) == AWA_OK && frame != NULL) {
        if (frame->answer_case != AWA__V1__SERVER_FRAME__ANSWER_NOTICE)
            awai_stream_close(&connection->stream); // an Error of the connection
        awa__v1__server_frame__free_unpacked(frame, NULL);
    }
}

// Whatever goes wrong here, the request that needs the connection is surely not done.
static enum awa_code be_connected(struct awa_connection *connection, int64_t deadline_ms,
                                  struct awa_error *error)
{
    struct awa_error failure = {.code = AWA_OK};
    int backoff_ms = 0;
    if (connection->may_hold)
        return AWA_OK;
    close_if_ended(connection, deadline_ms);
    while (connection->stream.fd < 0) {
        enum awa_code code = open_once(connection, NULL, NULL, deadline_ms, &failure);
        if (code == AWA_OK)
            return AWA_OK;
        if (failure.retryable && awai_back_off(&backoff_ms, deadline_ms))
            continue;
        if (code == AWA_DEADLINE_EXCEEDED)
            failure.code = AWA_UNAVAILABLE;
        if (error != NULL)
            *error = failure;
        return failure.code;
    }
    return AWA_OK;
}

enum awa_code awai_call_until(struct awa_connection *connection,
                              Awa__V1__ClientFrame__RequestCase kind, void *message,
                              int64_t deadline_ms, Awa__V1__ServerFrame **answer,
                              struct awa_error *error)
{
    enum awa_code code = be_connected(connection, deadline_ms, error);
    if (code != AWA_OK)
        return code;
    return exchange(connection, kind, message, deadline_ms, answer, error);
}

enum awa_code awai_call(struct awa_connection *connection, Awa__V1__ClientFrame__RequestCase kind,
                        void *message, uint32_t wait_ms, Awa__V1__ServerFrame **answer,
                        struct awa_error *error)
{
    int64_t deadline_ms = awai_now_ms() + wait_ms + connection->request_timeout_ms;
    return awai_call_until(connection, kind, message, deadline_ms, answer, error);
}

// ---- Opening and closing

static int or_default(int value, int otherwise)
{
    return value > 0 ? value : otherwise;
}

// Closed yet; NULL when there is no memory.
static struct awa_connection *new_connection(const char *address,
                                             const struct awa_connect_options *options)
{
    const char *name = options->worker_name != NULL ? options->worker_name : "";
    struct awa_connection *made = calloc(1, sizeof *made);
    if (made == NULL)
        return NULL;
    *made = (struct awa_connection){
        .stream = {.fd = -1},
        .address = strdup(address != NULL ? address : ""),
        .worker_name = strdup(name),
        .connect_timeout_ms = or_default(options->connect_timeout_ms, DEFAULT_CONNECT_TIMEOUT_MS),
        .request_timeout_ms = or_default(options->request_timeout_ms, DEFAULT_REQUEST_TIMEOUT_MS),
        .safe = options->safe,
        .may_hold = options->resume != NULL,
    };
    if (made->address != NULL && made->worker_name != NULL)
        return made;
    awa_close(made);
    return NULL;
}

enum awa_code awai_connect(const char *address, const struct awa_connect_options *options,
                           Awa__V1__Held *held, struct awa_connection **connection,
                           struct awa_error *error)
{
    struct awa_connection *opened = new_connection(address, options);
    if (opened == NULL)
        return awai_out_of_memory(error);
    enum awa_code code = open_once(opened, options->resume, held, INT64_MAX, error);
    if (code == AWA_OK)
        *connection = opened;
    else
        awa_close(opened);
    return code;
}

enum awa_code awa_connect(const char *address, const struct awa_connect_options *options,
                          awa_connection **connection, struct awa_error *error)
{
    static const struct awa_connect_options defaults = {0};
    return awai_connect(address, options != NULL ? options : &defaults, NULL, connection, error);
}

void awa_close(awa_connection *connection)
{
    if (connection == NULL)
        return;
    awai_stream_close(&connection->stream);
    free(connection->address);
    free(connection->worker_name);
    free(connection);
}

const struct awa_limits *awa_connection_limits(const awa_connection *connection)
{
    return &connection->limits;
}

struct awa_session awa_connection_session(const awa_connection *connection)
{
    return connection->session;
}

bool awa_connection_resumed(const awa_connection *connection)
{
    return connection->resumed;
}

enum awa_code awa_goodbye(awa_connection *connection, uint32_t *released, struct awa_error *error)
{
    Awa__V1__Goodbye goodbye = AWA__V1__GOODBYE__INIT;
    int64_t deadline_ms = awai_now_ms() + connection->request_timeout_ms;
    Awa__V1__ServerFrame *answer = NULL;
    enum awa_code code = AWA_OK;
    if (!connection->may_hold)
        close_if_ended(connection, deadline_ms);
    if (connection->may_hold || connection->stream.fd >= 0) // else there is nothing to hand back
        code = exchange(connection, AWA__V1__CLIENT_FRAME__REQUEST_GOODBYE, &goodbye, deadline_ms,
                        &answer, error);
    if (code == AWA_OK && released != NULL)
        *released = answer != NULL ? answer->goodbye_ok->released : 0;
    if (code == AWA_OK && answer != NULL)
        awa__v1__server_frame__free_unpacked(answer, NULL);
    awa_close(connection);
    return code;
}

enum awa_code awa_ping(awa_connection *connection, struct awa_error *error)
{
    Awa__V1__Ping ping = AWA__V1__PING__INIT;
    Awa__V1__ServerFrame *answer;
    enum awa_code code =
        awai_call(connection, AWA__V1__CLIENT_FRAME__REQUEST_PING, &ping, 0, &answer, error);
    if (code == AWA_OK)
        awa__v1__server_frame__free_unpacked(answer, NULL);
    return code;
}

enum awa_code awa_queue_counts(awa_connection *connection, const char *queue,
                               struct awa_queue_counts *counts, struct awa_error *error)
{
    Awa__V1__QueueCounts which = AWA__V1__QUEUE_COUNTS__INIT;
    which.queue = (char *)queue;
    Awa__V1__ServerFrame *answer;
    enum awa_code code = awai_call(connection, AWA__V1__CLIENT_FRAME__REQUEST_QUEUE_COUNTS, &which,
                                   0, &answer, error);
    if (code != AWA_OK)
        return code;
    const Awa__V1__QueueCountsOk *ok = answer->queue_counts_ok;
    *counts = (struct awa_queue_counts){
        .scheduled = ok->scheduled,
        .available = ok->available,
        .running = ok->running,
        .waiting_external = ok->waiting_external,
        .retryable = ok->retryable,
        .completed = ok->completed,
        .failed = ok->failed,
        .cancelled = ok->cancelled,
    };
    awa__v1__server_frame__free_unpacked(answer, NULL);
    return AWA_OK;
}
