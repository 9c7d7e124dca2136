/* listener: a Unix socket that accepts clients.
 *
 * What: binds the path with mode 0660, replaces the socket file of a dead process, refuses to take
 * that of a living one, and removes its own at the end. When file descriptors run out it accepts
 * and closes one client politely (with a spare descriptor), then pauses: a listener that stays
 * readable would spin the loop.
 */
#ifndef NET_LISTENER_H
#define NET_LISTENER_H

#include "base/err.h"
#include "ev/loop.h"

struct listener;

/* address is "unix:/path". on_accept owns the descriptor, which is non-blocking and close-on-exec.
 */
enum code listener_open(struct loop *loop, const char *address,
                        void (*on_accept)(void *ctx, int fd), void *ctx, struct listener **out,
                        struct err *err) MUST_CHECK;

void listener_close(struct listener *listener); /* NULL is fine */

#endif
