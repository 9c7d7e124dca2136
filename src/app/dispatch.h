/* dispatch: one frame of a client becomes one request of core.
 *
 * Decodes the frame into an arena, judges its items one by one, and hands the request (which then
 * owns the arena) to its session. What cannot be a request is refused there too. No state of its
 * own.
 */
#ifndef APP_DISPATCH_H
#define APP_DISPATCH_H

#include "base/bytes.h"
#include "core/session.h"

void dispatch_frame(struct sessions *sessions, handle session, struct bytes body);

#endif
