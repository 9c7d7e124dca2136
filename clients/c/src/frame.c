// frame.c: protobuf messages over a socket, each behind its length as a varint.
//
// What: send one ClientFrame, receive one ServerFrame, both with a deadline.
// Invariants: the length is checked before anything is kept, so `in` never
// grows past one frame and its prefix; a stream that failed is closed, and
// every later use of it fails with AWA_UNAVAILABLE.
#include "internal.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PREFIX_MAX_BYTES = 5, READ_STEP_BYTES = 64 * 1024 };

int64_t awai_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int awai_left_ms(int64_t deadline_ms)
{
    int64_t left_ms = deadline_ms - awai_now_ms();
    if (left_ms < 0)
        return 0;
    return left_ms < INT_MAX ? (int)left_ms : INT_MAX;
}

void awai_stream_close(struct awai_stream *stream)
{
    if (stream->fd >= 0)
        close(stream->fd);
    free(stream->in);
    *stream = (struct awai_stream){.fd = -1};
}

static enum awa_code lost(struct awai_stream *stream, struct awa_error *error, const char *how)
{
    awai_stream_close(stream);
    awai_fail(error, AWA_DEADLINE_EXCEEDED, "the connection was lost: %s", how);
    return AWA_DEADLINE_EXCEEDED;
}

// Not in a child of the process that opened it: answers to two could not be told apart.
static enum awa_code need_open(struct awai_stream *stream, struct awa_error *error)
{
    if (stream->fd >= 0 && stream->opened_by == getpid())
        return AWA_OK;
    awai_stream_close(stream);
    awai_fail(error, AWA_UNAVAILABLE, "the connection is closed");
    return AWA_UNAVAILABLE;
}

static bool wait_for(int fd, short events, int64_t deadline_ms)
{
    for (;;) {
        struct pollfd watched = {.fd = fd, .events = events};
        int ready = poll(&watched, 1, awai_left_ms(deadline_ms));
        if (ready > 0)
            return true;
        if (ready == 0 || errno != EINTR)
            return false;
    }
}

static size_t put_varint(uint8_t *out, size_t value)
{
    size_t used = 0;
    while (value >= 0x80) {
        out[used++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    out[used++] = (uint8_t)value;
    return used;
}

static enum awa_code write_all(struct awai_stream *stream, const uint8_t *bytes, size_t length,
                               int64_t deadline_ms, struct awa_error *error)
{
    while (length > 0) {
        ssize_t written = send(stream->fd, bytes, length, MSG_NOSIGNAL);
        if (written >= 0) {
            bytes += written;
            length -= (size_t)written;
        } else if (errno == EAGAIN) {
            if (!wait_for(stream->fd, POLLOUT, deadline_ms))
                return lost(stream, error, "the proxy did not read in time");
        } else if (errno != EINTR) {
            return lost(stream, error, strerror(errno));
        }
    }
    return AWA_OK;
}

enum awa_code awai_send(struct awai_stream *stream, const Awa__V1__ClientFrame *frame,
                        int64_t deadline_ms, struct awa_error *error)
{
    enum awa_code code = need_open(stream, error);
    if (code != AWA_OK)
        return code;
    size_t length = awa__v1__client_frame__get_packed_size(frame);
    if (length > stream->max_frame_bytes)
        return awai_fail(error, AWA_INVALID_ARGUMENT, "the request is %zu bytes, the limit is %u",
                         length, stream->max_frame_bytes);
    uint8_t *bytes = malloc(PREFIX_MAX_BYTES + length);
    if (bytes == NULL)
        return awai_out_of_memory(error);
    size_t prefix = put_varint(bytes, length);
    awa__v1__client_frame__pack(frame, bytes + prefix);
    code = write_all(stream, bytes, prefix + length, deadline_ms, error);
    free(bytes);
    return code;
}

// Bytes the prefix takes, 0 when it is not complete, -1 when it is malformed.
static int get_varint(const uint8_t *in, size_t available, uint64_t *value)
{
    *value = 0;
    for (int used = 0; used < PREFIX_MAX_BYTES; used++) {
        if ((size_t)used == available)
            return 0;
        *value |= (uint64_t)(in[used] & 0x7f) << (7 * used);
        if ((in[used] & 0x80) == 0)
            return used + 1;
    }
    return -1;
}

// Takes the first frame out of `in`, or leaves *frame NULL when it is not complete.
static enum awa_code take_frame(struct awai_stream *stream, Awa__V1__ServerFrame **frame,
                                struct awa_error *error)
{
    uint64_t length;
    int prefix = get_varint(stream->in, stream->in_used, &length);
    if (prefix < 0 || (prefix > 0 && length > stream->max_frame_bytes))
        return lost(stream, error, "the proxy sent a frame beyond the limit");
    size_t whole = (size_t)prefix + length;
    if (prefix == 0 || stream->in_used < whole)
        return AWA_OK;
    *frame = awa__v1__server_frame__unpack(NULL, length, stream->in + prefix);
    if (*frame == NULL)
        return lost(stream, error, "the proxy sent a malformed frame");
    stream->in_used -= whole;
    memmove(stream->in, stream->in + whole, stream->in_used);
    return AWA_OK;
}

static enum awa_code make_room(struct awai_stream *stream, struct awa_error *error)
{
    if (stream->in_capacity - stream->in_used >= READ_STEP_BYTES)
        return AWA_OK;
    size_t capacity = stream->in_used + (size_t)2 * READ_STEP_BYTES;
    uint8_t *grown = realloc(stream->in, capacity);
    if (grown == NULL) // and the answer that needs it would be taken for the next request's
        return lost(stream, error, "out of memory for what the proxy sent");
    stream->in = grown;
    stream->in_capacity = capacity;
    return AWA_OK;
}

enum awa_code awai_receive(struct awai_stream *stream, int64_t deadline_ms,
                           Awa__V1__ServerFrame **frame, struct awa_error *error)
{
    *frame = NULL;
    enum awa_code code = need_open(stream, error);
    if (code != AWA_OK)
        return code;
    for (;;) {
        code = take_frame(stream, frame, error);
        if (code != AWA_OK || *frame != NULL)
            return code;
        code = make_room(stream, error);
        if (code != AWA_OK)
            return code;
        ssize_t got = recv(stream->fd, stream->in + stream->in_used, READ_STEP_BYTES, 0);
        if (got > 0)
            stream->in_used += (size_t)got;
        else if (got == 0)
            return lost(stream, error, "closed by the proxy");
        else if (errno == EAGAIN && !wait_for(stream->fd, POLLIN, deadline_ms))
            return AWA_OK;
        else if (errno != EAGAIN && errno != EINTR)
            return lost(stream, error, strerror(errno));
    }
}
