// link.c: see link.h.
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    PREFIX_MAX_BYTES = 5,
    READ_STEP_BYTES = 256 * 1024,
    ARENA_BYTES = 16 * 1024 * 1024, // a frame of 4 MiB, unpacked
    ARENA_ALIGNMENT = 16,
};

struct buffer {
    uint8_t *bytes;
    size_t begin, end, capacity;
};

struct link {
    int fd;
    struct buffer in, out;
    uint8_t *arena;
    size_t arena_used;
    ProtobufCAllocator allocator;
};

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("awa-bench: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

// ---- Buffers

static uint8_t *reserve(struct buffer *buffer, size_t room)
{
    if (buffer->begin == buffer->end)
        buffer->begin = buffer->end = 0;
    if (buffer->capacity - buffer->end < room && buffer->begin > 0) {
        memmove(buffer->bytes, buffer->bytes + buffer->begin, buffer->end - buffer->begin);
        buffer->end -= buffer->begin;
        buffer->begin = 0;
    }
    if (buffer->capacity - buffer->end < room) {
        buffer->capacity = 2 * (buffer->end + room);
        buffer->bytes = realloc(buffer->bytes, buffer->capacity);
        if (buffer->bytes == NULL)
            die("out of memory");
    }
    return buffer->bytes + buffer->end;
}

static void *arena_alloc(void *data, size_t size)
{
    struct link *link = data;
    size_t rounded = (size + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    if (ARENA_BYTES - link->arena_used < rounded)
        return NULL;
    void *taken = link->arena + link->arena_used;
    link->arena_used += rounded;
    return taken;
}

static void arena_free(void *data, void *pointer)
{
    (void)data;
    (void)pointer; // all at once, after the frame
}

// ---- Frames

int link_fd(const struct link *link)
{
    return link->fd;
}

int link_has_output(const struct link *link)
{
    return link->out.begin < link->out.end;
}

void link_send(struct link *link, const Awa__V1__ClientFrame *frame)
{
    size_t length = awa__v1__client_frame__get_packed_size(frame);
    uint8_t *out = reserve(&link->out, PREFIX_MAX_BYTES + length);
    size_t prefix = 0, rest = length;
    for (; rest > 0x7f; rest >>= 7)
        out[prefix++] = (uint8_t)(rest | 0x80);
    out[prefix++] = (uint8_t)rest;
    awa__v1__client_frame__pack(frame, out + prefix);
    link->out.end += prefix + length;
}

void link_flush(struct link *link)
{
    while (link_has_output(link)) {
        ssize_t sent = send(link->fd, link->out.bytes + link->out.begin,
                            link->out.end - link->out.begin, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN)
            return;
        if (sent < 0 && errno != EINTR)
            die("cannot send: %s", strerror(errno));
        if (sent > 0)
            link->out.begin += (size_t)sent;
    }
}

// Bytes of the first whole frame in the buffer and of its prefix; 0: not there yet.
static size_t first_frame(const struct buffer *in, size_t *prefix)
{
    size_t length = 0, there = in->end - in->begin;
    for (*prefix = 0; *prefix < there && *prefix < PREFIX_MAX_BYTES;) {
        uint8_t byte = in->bytes[in->begin + *prefix];
        length |= (size_t)(byte & 0x7f) << (7 * *prefix);
        ++*prefix;
        if ((byte & 0x80) == 0)
            return there - *prefix >= length ? length : 0;
    }
    return 0;
}

static void hand_out(struct link *link, frame_handler handle, void *context)
{
    size_t prefix;
    for (size_t length; (length = first_frame(&link->in, &prefix)) > 0;) {
        link->arena_used = 0;
        const Awa__V1__ServerFrame *frame = awa__v1__server_frame__unpack(
            &link->allocator, length, link->in.bytes + link->in.begin + prefix);
        if (frame == NULL)
            die("malformed frame of %zu bytes", length);
        link->in.begin += prefix + length;
        handle(context, frame);
    }
}

void link_receive(struct link *link, frame_handler handle, void *context)
{
    ssize_t got;
    do {
        got = recv(link->fd, reserve(&link->in, READ_STEP_BYTES), READ_STEP_BYTES, MSG_DONTWAIT);
        if (got == 0)
            die("the proxy closed the connection");
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            die("cannot receive: %s", strerror(errno));
        if (got > 0)
            link->in.end += (size_t)got;
        hand_out(link, handle, context);
    } while (got == READ_STEP_BYTES);
}

// ---- Opening

static void on_hello_answer(void *context, const Awa__V1__ServerFrame *frame)
{
    int *greeted = context;
    if (frame->answer_case != AWA__V1__SERVER_FRAME__ANSWER_HELLO_OK)
        die("the proxy refused Hello");
    *greeted = 1;
}

static void say_hello(struct link *link, const char *worker_name)
{
    Awa__V1__Hello hello = AWA__V1__HELLO__INIT;
    hello.major = 1;
    hello.client_name = "awa-bench";
    hello.client_version = AWA_VERSION;
    hello.language = "c";
    hello.worker_name = (char *)worker_name;
    Awa__V1__ClientFrame frame = AWA__V1__CLIENT_FRAME__INIT;
    frame.request_id = 1;
    frame.request_case = AWA__V1__CLIENT_FRAME__REQUEST_HELLO;
    frame.hello = &hello;
    link_send(link, &frame);
    link_flush(link);
    int greeted = 0;
    while (!greeted) {
        struct pollfd watched = {.fd = link->fd, .events = POLLIN};
        if (poll(&watched, 1, 5000) <= 0)
            die("no answer to Hello within 5 s");
        link_receive(link, on_hello_answer, &greeted);
    }
}

struct link *link_open(const char *path, const char *worker_name)
{
    struct link *link = calloc(1, sizeof *link);
    struct sockaddr_un peer = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof peer.sun_path)
        die("the path of the socket is too long");
    memcpy(peer.sun_path, path, strlen(path) + 1);
    if (link == NULL || (link->arena = malloc(ARENA_BYTES)) == NULL)
        die("out of memory");
    link->allocator =
        (ProtobufCAllocator){.alloc = arena_alloc, .free = arena_free, .allocator_data = link};
    link->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link->fd < 0 || connect(link->fd, (struct sockaddr *)&peer, sizeof peer) != 0)
        die("cannot connect to %s: %s", path, strerror(errno));
    say_hello(link, worker_name);
    return link;
}

void link_close(struct link *link)
{
    close(link->fd);
    free(link->in.bytes);
    free(link->out.bytes);
    free(link->arena);
    free(link);
}
