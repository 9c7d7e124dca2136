// connection.c: one session with the proxy, one request at a time.
//
// What: connect, hello, call (send and wait), ping, goodbye, queue counts. What
// the proxy says unasked is passed over: it is for those who wait for nothing
// in particular (worker.c).
// Invariants: at most one request is unanswered, so an answer under another id
// is a violation of the protocol; a call that was not answered in time closes
// the connection, for its late answer could be taken for another's.
#include "internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    PROTOCOL_MAJOR = 1,
    PROTOCOL_MINOR = 0,
    HELLO_MAX_FRAME_BYTES = 1 << 20, // until the proxy has told its limit
    DEFAULT_CONNECT_TIMEOUT_MS = 5000,
    DEFAULT_REQUEST_TIMEOUT_MS = 30000,
};

enum awa_code awai_send_request(struct awa_connection *connection,
                                Awa__V1__ClientFrame__RequestCase kind, void *message,
                                struct awa_error *error)
{
    Awa__V1__ClientFrame request = AWA__V1__CLIENT_FRAME__INIT;
    request.request_id = ++connection->last_request_id;
    request.request_case = kind;
    request.hello = message; // all members of the union are pointers to a message
    return awai_send(&connection->stream, &request, awai_now_ms() + connection->request_timeout_ms,
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
    }
}

enum awa_code awai_call(struct awa_connection *connection, Awa__V1__ClientFrame__RequestCase kind,
                        void *message, uint32_t wait_ms, Awa__V1__ServerFrame **answer,
                        struct awa_error *error)
{
    int64_t deadline_ms = awai_now_ms() + wait_ms + connection->request_timeout_ms;
    enum awa_code code = awai_send_request(connection, kind, message, error);
    if (code == AWA_OK)
        code = receive_answer(connection, deadline_ms, answer, error);
    if (code != AWA_OK)
        return code;
    if (*answer == NULL) {
        awai_stream_close(&connection->stream);
        return awai_fail(error, AWA_DEADLINE_EXCEEDED, "the proxy did not answer in time");
    }
    bool own = (*answer)->request_id == connection->last_request_id;
    if (own && (int)(*answer)->answer_case == (int)kind)
        return AWA_OK;
    bool is_error = (*answer)->answer_case == AWA__V1__SERVER_FRAME__ANSWER_ERROR;
    if (is_error)
        code = awai_fail_from_wire(error, (*answer)->error);
    else
        code = awai_fail(error, AWA_INTERNAL, "the proxy sent an answer that was not asked for");
    if (!own || !is_error)
        awai_stream_close(&connection->stream);
    awa__v1__server_frame__free_unpacked(*answer, NULL);
    return code;
}

static void take_hello(struct awa_connection *connection, const Awa__V1__HelloOk *ok)
{
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
}

static enum awa_code say_hello(struct awa_connection *connection,
                               const struct awa_connect_options *options, Awa__V1__Held *held,
                               struct awa_error *error)
{
    Awa__V1__Hello hello = AWA__V1__HELLO__INIT;
    hello.major = PROTOCOL_MAJOR;
    hello.minor = PROTOCOL_MINOR;
    hello.client_name = "libawa";
    hello.client_version = AWA_VERSION;
    hello.language = "c";
    hello.worker_name = (char *)options->worker_name;
    if (options->resume != NULL) {
        hello.session_id.data = (uint8_t *)options->resume->id;
        hello.session_id.len = sizeof options->resume->id;
        hello.held = held;
    }
    Awa__V1__ServerFrame *answer;
    enum awa_code code =
        awai_call(connection, AWA__V1__CLIENT_FRAME__REQUEST_HELLO, &hello, 0, &answer, error);
    if (code != AWA_OK)
        return code;
    take_hello(connection, answer->hello_ok);
    awa__v1__server_frame__free_unpacked(answer, NULL);
    return AWA_OK;
}

static int or_default(int value, int otherwise)
{
    return value > 0 ? value : otherwise;
}

enum awa_code awai_connect(const char *address, const struct awa_connect_options *options,
                           Awa__V1__Held *held, struct awa_connection **connection,
                           struct awa_error *error)
{
    int timeout_ms = or_default(options->connect_timeout_ms, DEFAULT_CONNECT_TIMEOUT_MS);
    struct awa_connection *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return awai_out_of_memory(error);
    opened->stream = (struct awai_stream){.fd = -1, .max_frame_bytes = HELLO_MAX_FRAME_BYTES};
    opened->request_timeout_ms = timeout_ms;
    enum awa_code code =
        awai_open_socket(address, awai_now_ms() + timeout_ms, &opened->stream.fd, error);
    if (code == AWA_OK)
        code = say_hello(opened, options, held, error);
    if (code != AWA_OK) {
        awa_close(opened);
        return code;
    }
    opened->request_timeout_ms =
        or_default(options->request_timeout_ms, DEFAULT_REQUEST_TIMEOUT_MS);
    *connection = opened;
    return AWA_OK;
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
    Awa__V1__ServerFrame *answer;
    enum awa_code code =
        awai_call(connection, AWA__V1__CLIENT_FRAME__REQUEST_GOODBYE, &goodbye, 0, &answer, error);
    if (code == AWA_OK) {
        if (released != NULL)
            *released = answer->goodbye_ok->released;
        awa__v1__server_frame__free_unpacked(answer, NULL);
    }
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
