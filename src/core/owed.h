/* owed: the requests that a session has not been answered yet, and its credit.
 *
 * What: an owed request is on its session's list and in the table of request ids, and has taken the
 * credit it costs; removing it gives that back. A session without credit is not read.
 * Invariants: what is given back was taken; Finish and Release cost no credit but are counted, so
 * that their number stays bounded too. What a session leaves behind is counted: a client that comes
 * and goes would have no bound otherwise.
 */
#ifndef CORE_OWED_H
#define CORE_OWED_H

#include "core/session.h"

/* The request that the session waits for under this id; NULL: none. */
struct request *owed_find(const struct sessions *sessions, handle session, uint64_t request_id);
void owed_add(struct session *session, struct request *request);

/* From then on its answer goes nowhere. */
void owed_remove(struct session *session, struct request *request);

/* The same, because the session goes. It is carried out all the same, unless too much is left
 * already. */
void owed_leave(struct session *session, struct request *request);

#endif
