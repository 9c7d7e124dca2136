// internal.h: what the files of libawa share and its users never see.
//
// What: errors, framing, the connection, and the translation between wire
// messages and the structs of awa.h. Names begin with awai_ so that they
// cannot meet a name of the program libawa is linked into.
// Times are milliseconds of CLOCK_MONOTONIC; a deadline is such a time.
#ifndef AWAI_INTERNAL_H
#define AWAI_INTERNAL_H

#include "awa.h"

#include "awa/v1/awa.pb-c.h"

#include <stdatomic.h>
#include <sys/types.h>

// ---- error.c

// Fills error (may be NULL) and returns code. retryable follows from the code.
__attribute__((format(printf, 3, 4))) enum awa_code
awai_fail(struct awa_error *error, enum awa_code code, const char *format, ...);
enum awa_code awai_fail_from_wire(struct awa_error *error, const Awa__V1__Error *wire);
enum awa_code awai_out_of_memory(struct awa_error *error);
enum awa_code awai_not_asked_for(struct awa_error *error);

// ---- address.c

// A connected socket in *fd, non-blocking.
AWA_CHECKED enum awa_code awai_open_socket(const char *address, int64_t deadline_ms, int *fd,
                                           struct awa_error *error);

// ---- frame.c

struct awai_stream {
    int fd;          // non-blocking; -1: closed
    pid_t opened_by; // in a child of fork() it is closed at its first use
    uint32_t max_frame_bytes;
    uint8_t *in; // received, not yet handed out
    size_t in_used, in_capacity;
};

int64_t awai_now_ms(void);
int awai_left_ms(int64_t deadline_ms); // until then, as poll() takes it: 0 .. INT_MAX
void awai_stream_close(struct awai_stream *stream);

// Any failure closes the stream: half a frame cannot be taken back.
AWA_CHECKED enum awa_code awai_send(struct awai_stream *stream, const Awa__V1__ClientFrame *frame,
                                    int64_t deadline_ms, struct awa_error *error);

// Next frame, or NULL when none came before the deadline. Free it with
// awa__v1__server_frame__free_unpacked(frame, NULL). Any failure closes the stream.
AWA_CHECKED enum awa_code awai_receive(struct awai_stream *stream, int64_t deadline_ms,
                                       Awa__V1__ServerFrame **frame, struct awa_error *error);

// ---- connection.c

struct awa_connection {
    struct awai_stream stream;
    char *address, *worker_name; // to connect again; owned
    int connect_timeout_ms, request_timeout_ms;
    bool safe;     // every Enqueue has a key
    bool may_hold; // attempts: it has claimed, or was to resume a session
    struct awa_limits limits;
    struct awa_session session;
    bool resumed;
    uint64_t last_request_id;
};

enum { AWAI_HELD_MAX = 8192 }; // as awa.proto has it

// awa_connect(); held (NULL: not said) is what the client still holds of options->resume.
AWA_CHECKED enum awa_code awai_connect(const char *address,
                                       const struct awa_connect_options *options,
                                       Awa__V1__Held *held, struct awa_connection **connection,
                                       struct awa_error *error);

// Sends `message`, a request of this kind, under a new id.
AWA_CHECKED enum awa_code awai_send_request(struct awa_connection *connection,
                                            Awa__V1__ClientFrame__RequestCase kind, void *message,
                                            struct awa_error *error);
// The same, and waits for the answer, which is of the kind with the same number
// (awa.proto numbers them so). Connects first when the connection is lost.
AWA_CHECKED enum awa_code awai_call_until(struct awa_connection *connection,
                                          Awa__V1__ClientFrame__RequestCase kind, void *message,
                                          int64_t deadline_ms, Awa__V1__ServerFrame **answer,
                                          struct awa_error *error);
// The same, for as long as a request may take. wait_ms: how long it asks to wait itself.
AWA_CHECKED enum awa_code awai_call(struct awa_connection *connection,
                                    Awa__V1__ClientFrame__RequestCase kind, void *message,
                                    uint32_t wait_ms, Awa__V1__ServerFrame **answer,
                                    struct awa_error *error);

// Between two attempts to connect.
enum { AWAI_BACKOFF_MIN_MS = 100, AWAI_BACKOFF_MAX_MS = 5000 };
int awai_pause_ms(int longest_ms); // half of it to all of it, at random

// Waits about *backoff_ms (0: the first time) and lengthens it. False, at once: the next attempt
// would not have as long as the pause; cut short it could end in a doubt that was not there before.
bool awai_back_off(int *backoff_ms, int64_t deadline_ms);

// ---- jobs.c

struct awai_wire_finish {
    Awa__V1__FinishItem item;
    union {
        Awa__V1__Complete complete;
        Awa__V1__Retry retry;
        Awa__V1__Snooze snooze;
        Awa__V1__Fail fail;
        Awa__V1__Cancel cancel;
    } outcome;
};

// What awa_job pointers of this library point to.
struct awai_job {
    struct awa_job job;
    atomic_bool lost;
};

ProtobufCBinaryData awai_receipt_to_wire(const struct awa_receipt *receipt);
bool awai_receipt_is(const struct awa_receipt *receipt, ProtobufCBinaryData wire);

// *wire points into *receipt and *how.
void awai_finish_to_wire(struct awai_wire_finish *wire, const struct awa_receipt *receipt,
                         const struct awa_outcome *how);
// Points into *receipts. To be freed with free(); NULL when there is no memory.
Awa__V1__Heartbeat *awai_heartbeat_to_wire(const struct awa_receipt *receipts, size_t count);
// One allocation in *job, to be freed with free().
AWA_CHECKED enum awa_code awai_job_from_wire(const Awa__V1__Job *wire, struct awa_job **job,
                                             struct awa_error *error);

#endif
