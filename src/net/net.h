/* net: the connections of clients: bytes in, frames out of them; answers in, bytes out.
 *
 * What: owns every connection from accept to close and names it by a handle. Reads frames
 * (wire/frame.h) and gives each to the handler; collects answers per connection and writes them
 * once per loop turn (net_turn). States: OPEN -> CLOSING (what is queued is still sent) ->
 * LINGERING (sent, write side shut; what still arrives is thrown away, so that the peer reads our
 * last words before a reset) -> DEAD, and from each to DEAD. A dead connection is buried, and the
 * handler told, in net_turn: never inside anybody's callback. Limits: a frame has FRAME_MS from its
 * first byte to its last, unsent answers OUTPUT_STALL_MS to move; beyond OUTPUT_BYTES_MAX of unsent
 * answers the connection is not read, and below DEALT_BYTES_MAX the handler is told that the peer
 * has caught up. Memory of an idle connection: no buffers.
 */
#ifndef NET_NET_H
#define NET_NET_H

#include "base/buf.h"
#include "base/err.h"
#include "base/slots.h"
#include "ev/loop.h"
#include "net/address.h"

struct net;

struct net_handlers {
    void *ctx;
    /* May already answer or close. The result is kept and passed to the others. */
    uint64_t (*opened)(void *ctx, handle connection);
    void (*frame)(void *ctx, uint64_t user, struct bytes body);
    /* The stream can not be read on: say so and net_close. */
    void (*broken)(void *ctx, uint64_t user, const struct err *why);
    /* Less than DEALT_BYTES_MAX of its output is unsent, and it was more. Only in net_turn. */
    void (*caught_up)(void *ctx, uint64_t user);
    void (*closed)(void *ctx, uint64_t user); /* the connection takes and gives nothing any more */
};

/* Beyond count_max connections a new one is closed without a word. */
struct net *net_new(struct loop *loop, const struct net_handlers *handlers, size_t count_max);
void net_free(struct net *net); /* closes what is left, without a word */

/* One more address, LISTENERS_MAX at most; and which they are, by number, then NULL. */
enum code net_listen(struct net *net, const struct address *address, struct err *err) MUST_CHECK;
const struct address *net_listening(const struct net *net, size_t at);
void net_stop_listening(struct net *net);

/* Where to append answers; they leave in net_turn. NULL when the connection takes none any more. */
struct buf *net_output(struct net *net, handle which);

/* How many bytes of all that was appended have left for the peer, and how many there were. Known
 * until `closed` has returned. */
uint64_t net_written(const struct net *net, handle which);
uint64_t net_appended(const struct net *net, handle which);

void net_set_reading(struct net *net, handle which, bool reading);

/* Closes once everything queued has been sent. */
void net_close(struct net *net, handle which);

/* Turn hook, the last one. */
void net_turn(struct net *net);

size_t net_count(const struct net *net);

#endif
