/* listener: a socket that accepts clients, Unix or TCP.
 *
 * What: binds a Unix socket with mode 0660, replaces the socket file of a dead process, refuses to
 * take that of a living one, and removes its own at the end. Accepted TCP sockets send at once and
 * notice a peer that is gone. When file descriptors run out it accepts and closes one client
 * politely (with a spare descriptor), then pauses: a listener that stays readable would spin the
 * loop.
 */
#ifndef NET_LISTENER_H
#define NET_LISTENER_H

#include "base/err.h"
#include "ev/loop.h"
#include "net/address.h"

struct listener;

/* on_accept owns the descriptor, which is non-blocking and close-on-exec. */
enum code listener_open(struct loop *loop, const struct address *address,
                        void (*on_accept)(void *ctx, int fd), void *ctx, struct listener **out,
                        struct err *err) MUST_CHECK;

/* With the port that the system chose, if it was left to it. */
const struct address *listener_address(const struct listener *listener);

void listener_close(struct listener *listener); /* NULL is fine */

#endif
