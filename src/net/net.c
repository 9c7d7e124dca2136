/* net: see net.h. Raw sockets and our own buffers: one read and one write system call a turn and
 * connection. */
#include "net/net.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/timers.h"
#include "net/listener.h"
#include "wire/frame.h"

enum { SCRATCH_BYTES = 64 * 1024, OUTPUT_KEEP_BYTES = 0 };

enum connection_state {
    CONNECTION_OPEN,
    CONNECTION_CLOSING,
    CONNECTION_LINGERING,
    CONNECTION_DEAD
};

struct connection {
    struct net *net;
    handle self;
    uint64_t user;
    int fd;
    enum connection_state state;
    struct watch *watch;
    struct list_node dirty; /* net->dirty: has something to write, to parse or to bury */
    /* Of the frame that is arriving, the output that does not move, or the linger. */
    struct timer deadline;
    struct buf input; /* the beginning of a frame that is not complete */
    struct buf output;
    uint64_t written_bytes;   /* of all output so far */
    uint64_t frame_since_us;  /* 0: no frame is arriving, or it is not read */
    uint64_t output_since_us; /* 0: nothing is stuck */
    bool reading;             /* what the session wants */
    bool resumed;             /* input may hold frames that were not looked at */
};

struct net {
    struct loop *loop;
    struct net_handlers handlers;
    struct listener *listeners[LISTENERS_MAX];
    size_t listener_count;
    struct slots connections;
    size_t count_max;
    bool full; /* and that was logged */
    struct list dirty;
    struct timers timers;
    struct loop_timer *wake;
    uint8_t scratch[SCRATCH_BYTES];
};

static void set_state(struct connection *connection, enum connection_state next)
{
    static const unsigned legal[] = {
        [CONNECTION_OPEN] = 1u << CONNECTION_CLOSING | 1u << CONNECTION_DEAD,
        [CONNECTION_CLOSING] = 1u << CONNECTION_LINGERING | 1u << CONNECTION_DEAD,
        [CONNECTION_LINGERING] = 1u << CONNECTION_DEAD,
        [CONNECTION_DEAD] = 0,
    };

    CHECK((legal[connection->state] & 1u << next) != 0);
    connection->state = next;
}

static void mark_dirty(struct connection *connection)
{
    if (!list_has(&connection->net->dirty, &connection->dirty))
        list_push_back(&connection->net->dirty, &connection->dirty);
}

static void kill_connection(struct connection *connection)
{
    if (connection->state == CONNECTION_DEAD)
        return;
    set_state(connection, CONNECTION_DEAD);
    mark_dirty(connection);
    loop_again(connection->net->loop);
}

/* ---- what to wait for ---- */

static bool wants_input(const struct connection *connection)
{
    switch (connection->state) {
    case CONNECTION_OPEN:
        return connection->reading && buf_len(&connection->output) < OUTPUT_BYTES_MAX;
    case CONNECTION_CLOSING: return false;
    case CONNECTION_LINGERING: return true;
    case CONNECTION_DEAD: return false;
    }
    return false;
}

static void update_watch(struct connection *connection)
{
    bool stuck = connection->output_since_us != 0;
    watch_want(connection->watch,
               (wants_input(connection) ? WATCH_READ : 0u) | (stuck ? WATCH_WRITE : 0u));
}

/* The earliest thing that may not take longer; TIMER_NEVER when nothing is under way. */
static uint64_t deadline_us(const struct connection *connection)
{
    uint64_t at_us = TIMER_NEVER;

    if (connection->state == CONNECTION_LINGERING)
        return connection->deadline.at_us;
    if (connection->frame_since_us != 0)
        at_us = connection->frame_since_us + (uint64_t)FRAME_MS * US_PER_MS;
    if (connection->output_since_us != 0) {
        uint64_t stall_us = connection->output_since_us + (uint64_t)OUTPUT_STALL_MS * US_PER_MS;
        at_us = stall_us < at_us ? stall_us : at_us;
    }
    return at_us;
}

/* Set lazily: it may fire early, and then looks again. So a frame that comes in two reads costs
 * nothing. */
static void update_deadline(struct connection *connection)
{
    uint64_t at_us = deadline_us(connection);
    struct net *net = connection->net;

    if (at_us == TIMER_NEVER ||
        (timer_is_set(&connection->deadline) && connection->deadline.at_us <= at_us))
        return;
    timer_set(&net->timers, &connection->deadline, at_us);
    loop_timer_set(net->wake, timers_next_us(&net->timers));
}

static void on_deadline(struct timer *timer, uint64_t now_us)
{
    struct connection *connection = CONTAINER_OF(timer, struct connection, deadline);
    struct net *net = connection->net;
    struct err err;

    if (connection->state == CONNECTION_LINGERING || connection->state == CONNECTION_DEAD) {
        kill_connection(connection);
        return;
    }
    if (deadline_us(connection) > now_us) {
        update_deadline(connection);
        return;
    }
    if (connection->output_since_us != 0 || connection->state != CONNECTION_OPEN) {
        kill_connection(connection); /* it does not read: there is no way to tell it */
        return;
    }
    err_set(&err, CODE_DEADLINE_EXCEEDED, "a frame took longer than %d ms to arrive", FRAME_MS);
    net->handlers.broken(net->handlers.ctx, connection->user, &err);
}

static void on_wake(void *ctx)
{
    struct net *net = ctx;

    timers_run(&net->timers, clock_mono_us());
    if (timers_next_us(&net->timers) != TIMER_NEVER)
        loop_timer_set(net->wake, timers_next_us(&net->timers));
}

/* ---- input ---- */

static void report_broken(struct connection *connection, enum frame_state state,
                          size_t claimed_bytes)
{
    struct net *net = connection->net;
    struct err err;

    if (state == FRAME_TOO_LARGE)
        err_set(&err, CODE_INVALID_ARGUMENT, "a frame of %zu bytes: the limit is %d", claimed_bytes,
                FRAME_BYTES_MAX);
    else
        err_set(&err, CODE_INVALID_ARGUMENT,
                "the length in front of a frame is not a shortest varint of 32 bits");
    net->handlers.broken(net->handlers.ctx, connection->user, &err);
}

/* Hands on every complete frame; returns how many bytes they were. Stops when the connection is not
 * to be read any more, which a frame itself may bring about. */
static size_t take_frames(struct connection *connection, struct bytes input)
{
    struct net *net = connection->net;
    size_t used = 0;

    while (used < input.len && connection->state == CONNECTION_OPEN && wants_input(connection)) {
        struct frame frame;
        enum frame_state state =
            frame_next(bytes_of(input.data + used, input.len - used), FRAME_BYTES_MAX, &frame);
        switch (state) {
        case FRAME_NEED_MORE: return used;
        case FRAME_READY:
            used += frame.need_bytes;
            net->handlers.frame(net->handlers.ctx, connection->user, frame.body);
            break;
        case FRAME_TOO_LARGE:
        case FRAME_MALFORMED: report_broken(connection, state, frame.body.len); return used;
        }
    }
    return used;
}

/* While we do not read it, it is not the peer that is slow. */
static void note_frame_progress(struct connection *connection, size_t used)
{
    if (buf_len(&connection->input) == 0 || !wants_input(connection))
        connection->frame_since_us = 0;
    else if (used > 0 || connection->frame_since_us == 0)
        connection->frame_since_us = clock_mono_us();
}

/* New bytes behind what is already there. */
static void take_input(struct connection *connection, struct bytes fresh)
{
    struct buf *input = &connection->input;
    size_t used = 0;

    if (buf_len(input) == 0) { /* the usual case: whole frames, no copy */
        used = take_frames(connection, fresh);
        buf_add(input, fresh.data + used, fresh.len - used);
    } else {
        buf_add(input, fresh.data, fresh.len);
        used = take_frames(connection, bytes_of(buf_data(input), buf_len(input)));
        buf_drain(input, used);
    }
    if (buf_len(input) == 0)
        buf_clear(input, 0);
    note_frame_progress(connection, used);
}

static void take_buffered(struct connection *connection)
{
    struct buf *input = &connection->input;

    if (buf_len(input) == 0)
        return;
    size_t used = take_frames(connection, bytes_of(buf_data(input), buf_len(input)));

    buf_drain(input, used);
    if (buf_len(input) == 0)
        buf_clear(input, 0);
    note_frame_progress(connection, used);
}

static void read_connection(struct connection *connection)
{
    struct net *net = connection->net;
    size_t budget_bytes = READ_BYTES_PER_TURN;

    while (budget_bytes > 0 && wants_input(connection)) {
        ssize_t got = read(connection->fd, net->scratch, sizeof net->scratch);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) { /* gone; what it sent before was handed on already */
            kill_connection(connection);
            return;
        }
        if (connection->state == CONNECTION_OPEN)
            take_input(connection, bytes_of(net->scratch, (size_t)got));
        if ((size_t)got < sizeof net->scratch)
            return;
        budget_bytes -= (size_t)got < budget_bytes ? (size_t)got : budget_bytes;
    }
}

/* ---- output ---- */

static void start_lingering(struct connection *connection)
{
    struct net *net = connection->net;

    set_state(connection, CONNECTION_LINGERING);
    shutdown(connection->fd, SHUT_WR);
    timer_set(&net->timers, &connection->deadline,
              clock_mono_us() + (uint64_t)LINGER_MS * US_PER_MS);
    loop_timer_set(net->wake, timers_next_us(&net->timers));
}

static void note_output_progress(struct connection *connection, bool moved)
{
    if (buf_len(&connection->output) == 0)
        connection->output_since_us = 0;
    else if (moved || connection->output_since_us == 0)
        connection->output_since_us = clock_mono_us();
}

static void note_catching_up(const struct connection *connection, size_t unsent_before)
{
    const struct net *net = connection->net;

    if (unsent_before < DEALT_BYTES_MAX || buf_len(&connection->output) >= DEALT_BYTES_MAX)
        return;
    net->handlers.caught_up(net->handlers.ctx, connection->user);
    loop_again(net->loop); /* for core to look at */
}

static void write_connection(struct connection *connection)
{
    struct buf *output = &connection->output;
    size_t unsent_before = buf_len(output);
    bool moved = false;

    while (buf_len(output) > 0) {
        ssize_t put = send(connection->fd, buf_data(output), buf_len(output), MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno == EAGAIN)
            break;
        if (put < 0) {
            kill_connection(connection);
            return;
        }
        moved = true;
        connection->written_bytes += (size_t)put;
        buf_drain(output, (size_t)put);
    }
    if (buf_len(output) == 0)
        buf_clear(output, OUTPUT_KEEP_BYTES);
    note_output_progress(connection, moved);
    note_catching_up(connection, unsent_before);
    if (connection->state == CONNECTION_CLOSING && buf_len(output) == 0)
        start_lingering(connection);
}

static void on_ready(void *ctx, unsigned ready)
{
    struct connection *connection = ctx;

    if (connection->state == CONNECTION_DEAD)
        return;
    if (ready & WATCH_READ)
        read_connection(connection);
    if (ready & WATCH_WRITE) /* may read again once there is room */
        connection->resumed = connection->resumed || buf_len(&connection->input) > 0;
    mark_dirty(connection);
}

struct buf *net_output(struct net *net, handle which)
{
    struct connection *connection = slots_get(&net->connections, which);

    if (connection == NULL || connection->state != CONNECTION_OPEN)
        return NULL;
    mark_dirty(connection);
    return &connection->output;
}

uint64_t net_written(const struct net *net, handle which)
{
    const struct connection *connection = slots_get(&net->connections, which);
    return connection != NULL ? connection->written_bytes : 0;
}

uint64_t net_appended(const struct net *net, handle which)
{
    const struct connection *connection = slots_get(&net->connections, which);
    return connection != NULL ? connection->written_bytes + buf_len(&connection->output) : 0;
}

void net_set_reading(struct net *net, handle which, bool reading)
{
    struct connection *connection = slots_get(&net->connections, which);

    if (connection == NULL)
        return;
    connection->reading = reading;
    connection->resumed = connection->resumed || reading;
    mark_dirty(connection);
}

void net_close(struct net *net, handle which)
{
    struct connection *connection = slots_get(&net->connections, which);

    if (connection == NULL || connection->state != CONNECTION_OPEN)
        return;
    set_state(connection, CONNECTION_CLOSING);
    mark_dirty(connection);
}

/* ---- coming and going ---- */

static void on_accept(void *ctx, int fd)
{
    struct net *net = ctx;

    if (net->connections.count >= net->count_max) {
        if (!net->full)
            log_event(LOG_WARN, "connections_refused", "connected=%u", net->connections.count);
        net->full = true;
        close(fd);
        return;
    }
    net->full = false;
    struct connection *connection = mem_zalloc(sizeof *connection);
    connection->net = net;
    connection->fd = fd;
    connection->reading = true;
    connection->deadline.fire = on_deadline;
    buf_init(&connection->input);
    buf_init(&connection->output);
    connection->self = slots_add(&net->connections, connection);
    CHECK(connection->self != HANDLE_NONE);
    connection->watch = watch_new(net->loop, fd, on_ready, connection);
    connection->user = net->handlers.opened(net->handlers.ctx, connection->self);
    mark_dirty(connection);
}

/* Tells its user, then frees it. */
static void bury(struct connection *connection)
{
    struct net *net = connection->net;

    net->handlers.closed(net->handlers.ctx, connection->user);
    if (list_has(&net->dirty, &connection->dirty)) /* it may have tried to close it */
        list_remove(&net->dirty, &connection->dirty);
    timer_stop(&net->timers, &connection->deadline);
    watch_free(connection->watch); /* before the number can be used again */
    close(connection->fd);
    buf_free(&connection->input);
    buf_free(&connection->output);
    slots_remove(&net->connections, connection->self);
    mem_free(connection);
}

static void turn_connection(struct connection *connection)
{
    struct net *net = connection->net;

    if (connection->state != CONNECTION_DEAD)
        write_connection(connection);
    if (connection->resumed && wants_input(connection)) {
        connection->resumed = false;
        take_buffered(connection);
        loop_again(net->loop); /* for core to look at */
    }
    if (connection->state == CONNECTION_DEAD) {
        bury(connection);
        loop_again(net->loop);
        return;
    }
    note_frame_progress(connection, 0);
    update_watch(connection);
    update_deadline(connection);
}

void net_turn(struct net *net)
{
    size_t count = net->dirty.count; /* what gets dirty meanwhile has the next turn */

    for (size_t i = 0; i < count && net->dirty.first != NULL; i++) {
        struct list_node *node = list_pop_front(&net->dirty);
        turn_connection(CONTAINER_OF(node, struct connection, dirty));
    }
    if (net->dirty.count > 0)
        loop_again(net->loop);
}

struct net *net_new(struct loop *loop, const struct net_handlers *handlers, size_t count_max)
{
    struct net *net = mem_zalloc(sizeof *net);

    net->loop = loop;
    net->handlers = *handlers;
    net->count_max = count_max;
    slots_init(&net->connections, UINT32_MAX);
    timers_init(&net->timers);
    net->wake = loop_timer_new(loop, on_wake, net);
    return net;
}

enum code net_listen(struct net *net, const struct address *address, struct err *err)
{
    CHECK(net->listener_count < LISTENERS_MAX);
    enum code code = listener_open(net->loop, address, on_accept, net,
                                   &net->listeners[net->listener_count], err);
    net->listener_count += code == CODE_OK;
    return code;
}

const struct address *net_listening(const struct net *net, size_t at)
{
    return at < net->listener_count ? listener_address(net->listeners[at]) : NULL;
}

void net_stop_listening(struct net *net)
{
    while (net->listener_count > 0)
        listener_close(net->listeners[--net->listener_count]);
}

size_t net_count(const struct net *net)
{
    return net->connections.count;
}

void net_free(struct net *net)
{
    net_stop_listening(net);
    while (net->dirty.first != NULL)
        list_pop_front(&net->dirty);
    for (uint32_t i = 0; i < net->connections.size; i++) {
        struct connection *connection = slots_at(&net->connections, i);
        if (connection == NULL)
            continue;
        if (connection->state != CONNECTION_DEAD)
            set_state(connection, CONNECTION_DEAD);
        bury(connection);
    }
    timers_free(&net->timers);
    slots_free(&net->connections);
    loop_timer_free(net->wake);
    mem_free(net);
}
