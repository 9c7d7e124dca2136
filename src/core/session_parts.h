/* session_parts: what the files that make up a session (session.c, owed.c, parting.c) share, and
 * nobody else uses.
 */
#ifndef CORE_SESSION_PARTS_H
#define CORE_SESSION_PARTS_H

#include "core/session.h"

uint64_t sessions_now_us(const struct sessions *sessions);

/* The one place that changes a state; an illegal step is a programmer's error. */
void session_set_state(struct session *session, enum session_state next);

/* Whether there is a connection that reads and is read. */
bool session_is_connected(const struct session *session);

/* Whether sessions->ids has it. */
bool session_can_be_resumed(const struct session *session);

uint64_t session_id_hash(const struct sessions *sessions, const uint8_t *id);

/* Returns where the frame ends in the connection's output. */
uint64_t session_send(struct session *session, uint64_t request_id, const struct answer *answer);
void session_send_notice(struct session *session, enum notice_kind kind, struct bytes receipt);

#endif
