/* broker: long polls. The waiting claims of all sessions become few claim calls.
 *
 * What: claims for the same ordered queue list form a group (group.h), which makes one call at a
 * time for what its claims together may take, never for more. Jobs that nobody waits for any more
 * when they arrive go back at once. When a group calls: at once when a claim comes to a group at
 * rest, after a call that was filled, and when work was enqueued here for one of its queues; 1 to 3
 * ms after BUSY; after EMPTY it pauses, from poll_min_us doubling to poll_max_us, because other
 * proxies may enqueue. A call that may have committed is in doubt (doubt.h): what it claimed is
 * asked for by its nonce, among the batches that are newer than the last one which the same backend
 * answered with, and then dealt like any other reply; the group goes on claiming meanwhile, unless
 * CLAIM_DOUBTS_PER_GROUP_MAX of its calls are in doubt. A job that cannot be read is dealt
 * to nobody: the broker has it failed, which is no client's business and costs nobody's credit; a
 * group that waits for UNREADABLE_PER_GROUP_MAX of them makes no call. Claims of a session that is
 * behind with reading (session.h) wait aside: no call is made for them. Invariants: at most one
 * call in flight a group and calls_max in all; every claim is answered once: with jobs, empty at
 * the end of its wait, or with the storage's error if the storage could not be asked.
 */
#ifndef CORE_BROKER_H
#define CORE_BROKER_H

#include "core/attempts.h"
#include "core/env.h"
#include "core/finisher.h"
#include "core/group.h"
#include "core/session.h"

struct broker_setup {
    const struct env *env;
    struct timers *timers;
    struct sessions *sessions;
    struct attempts *attempts;
    struct finisher *finisher; /* takes back what nobody waits for */
    uint32_t jobs_max;         /* a call */
    unsigned calls_max;        /* in flight */
    uint64_t poll_min_us;
    uint64_t poll_max_us;
};

/* A backend's claims take ascending batch numbers: those in doubt are above the last that came. */
struct claim_mark {
    struct backend backend;
    uint64_t batch_id;
};

struct broker {
    struct broker_setup with;
    struct hash groups;  /* by their key */
    struct list ready;   /* may call now */
    struct list idle;    /* nobody waits; least recently used first */
    struct list waiting; /* all others */
    unsigned calls_in_flight;
    uint64_t unreadable_jobs; /* that claims brought, since the start */
    struct claim_mark marks[CLAIM_MARKS_MAX];
    size_t next_mark; /* to be overwritten: its backend is probably gone */
};

void broker_init(struct broker *broker, const struct broker_setup *setup);
void broker_free(struct broker *broker);

/* Other limits: jobs_max, poll_min_us and poll_max_us of setup. A group that rests asks at once. */
void broker_configure(struct broker *broker, const struct broker_setup *setup);

/* A REQUEST_CLAIM of an open session. */
void broker_take(struct broker *broker, struct session *session, struct request *request);

/* Answers all waiting claims of the session empty. */
void broker_end_claims(struct broker *broker, struct session *session);

/* Claims of a session that is behind wait without being asked for; once it is not, they are again.
 */
void broker_pace(struct session *session);

/* Answers this waiting one empty. */
void broker_end_claim(struct broker *broker, struct request *request);

/* There is new work in this queue; or in any. */
void broker_wake(struct broker *broker, struct bytes queue);
void broker_wake_all(struct broker *broker);

void broker_turn(struct broker *broker);

/* Instead of broker_turn while nothing may be claimed: what would call now has failed. */
void broker_refuse(struct broker *broker, const struct err *why);

bool broker_is_idle(const struct broker *broker); /* nothing waits, nothing in flight */

#endif
