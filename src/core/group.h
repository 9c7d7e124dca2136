/* group: the claims that wait for the same ordered list of queues, and how jobs are dealt among
 * them.
 *
 * What: a group has one seat per session, a seat its waiting claims, oldest first. One claim call
 * is made for what all of them together may take; its jobs are dealt one at a time, round robin by
 * seat, within a seat to the oldest claim that has room. Seats of sessions that are behind with
 * reading stand aside: they count for nothing and are dealt nothing. Invariant: demand is the sum
 * of `wanted` over all claims of the other seats. A claim that got a job is answered in the same
 * step. Not here: when to call (broker.h), how a claim is answered.
 */
#ifndef CORE_GROUP_H
#define CORE_GROUP_H

#include "base/hash.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/timers.h"
#include "core/db.h"
#include "core/request.h"

struct broker;
struct session;

struct group {
    struct broker *broker;
    struct hash_node by_queues;
    struct list_node node; /* broker->ready or broker->idle, or neither */
    struct timer poll;
    struct db_call call;
    struct list seats;
    struct list aside;   /* seats of sessions that are behind */
    struct list overdue; /* claims whose wait ended while they could not be answered */
    size_t demand;
    uint64_t next_us;  /* not before this time */
    uint64_t pause_us; /* the next pause after finding nothing */
    uint64_t calls_started;
    uint64_t calls_ended;
    unsigned failures; /* in a row */
    unsigned doubts;   /* calls whose outcome is not known yet */
    size_t unreadable; /* jobs it was given that are to fail, and have not yet */
    bool in_flight;
    bool woken;   /* while in flight: what it did not see may be there now */
    bool polling; /* its next call, or the one in flight, is made without news of any work */
    struct err last_err;
    struct bytes key; /* the names, each with its length: owned */
    size_t queue_count;
    struct bytes queues[CLAIM_QUEUES_MAX]; /* inside key */
};

struct seat {
    struct list_node in_group;
    struct list_node in_session;
    struct group *group;
    struct session *session;
    struct list claims;
    size_t wanted;      /* by its claims */
    struct claim *open; /* while dealing: the oldest with room */
};

/* One waiting Claim; lives in its request's arena. */
struct claim {
    struct list_node node;    /* seat->claims */
    struct list_node overdue; /* group->overdue */
    struct timer deadline;
    struct request *request;
    struct seat *seat;
    uint32_t wanted;
    uint32_t got;
    uint64_t joined_call; /* calls_started when it came */
    struct claimed_job *first;
    struct claimed_job *last;
};

struct group *group_new(struct broker *broker, const struct bytes *queues, size_t count,
                        struct bytes key);
void group_free(struct group *group);

bool group_has_queue(const struct group *group, struct bytes queue);

/* The session's seat: NULL when it has none; made if need be. */
struct seat *group_find_seat(const struct group *group, const struct session *session);
struct seat *group_seat(struct group *group, struct session *session);

void group_add_claim(struct seat *seat, struct claim *claim);

/* To where it belongs, now that its session is behind, or is not any more. */
void group_move_seat(struct seat *seat);

bool group_has_claims(const struct group *group);

/* Takes the claim out; its seat is freed with its last claim. */
void group_remove_claim(struct claim *claim);

/* Gives the jobs to the claims, as far as they have room; returns how many were dealt (the first
 * ones). Seats that were served are then behind all others, and in a seat the served claims are the
 * first. */
size_t group_deal(struct group *group, struct claimed_job *jobs, size_t count);

size_t seat_served(const struct seat *seat); /* how many of its claims were dealt something */

/* Whether a call that began after the claim came has ended: then "nothing there" is an honest
 * answer. */
bool claim_was_tried(const struct claim *claim);

#endif
