/* parting: how a session ends, and what becomes of its attempts then.
 *
 * What: the connection is lost (the session is AWAY for the grace, or gone at once if it holds
 * nothing); the grace ends; Goodbye; the proxy drains. Which attempts end how: those whose ClaimOk
 * never left the proxy, and all those of a session that parts in order, go back as released; those
 * of a client that did not come back are lost with their worker. Not here: resuming (session.c).
 */
#ifndef CORE_PARTING_H
#define CORE_PARTING_H

#include "core/session.h"

/* OPEN -> AWAY: from here on the session is its id and its attempts. */
void parting_lose_connection(struct session *session);

/* The end of one that is AWAY. */
void parting_end_away(struct session *session, enum job_outcome as);

void parting_hand_back(struct session *session, enum job_outcome as, handle tell);

/* Of one without attempts and requests. */
void parting_free(struct session *session);

/* The connection's own error: one frame with request id 0, then the close. */
void parting_close_with(struct session *session, const struct err *err);

/* OPEN or NEW -> LEAVING. */
void parting_start(struct session *session);

/* A leaving session goes when nothing is unanswered and nothing is held. */
void parting_try_to_leave(struct session *session);

#endif
