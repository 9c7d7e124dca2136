/* attempts: which session owns which attempt, so that it can be handed back when the session goes.
 *
 * What: one entry per job that was handed out and has not ended, found by (job_id, run_lease)
 * and compared whole: a forged receipt finds nothing.
 * Reserve first: accepting a Claim reserves max_jobs entries, so that handing out jobs, and ending
 * them, can never fail for lack of room. Invariant: owned + reserved <= ATTEMPTS_MAX. An attempt
 * that is being ended stays in the table until the storage has said what became of it; when its
 * session goes meanwhile it has no owner.
 */
#ifndef CORE_ATTEMPTS_H
#define CORE_ATTEMPTS_H

#include <stdbool.h>

#include "base/hash.h"
#include "base/list.h"
#include "core/job.h"

struct attempt {
    struct hash_node by_id;
    struct list_node node; /* owner list, or spare */
    struct list *owner;    /* session->attempts; NULL: its session is gone */
    struct receipt receipt;
    uint64_t sent_at; /* where its ClaimOk ends in the connection's output (env->send); 0: it has
                       * left */
    unsigned endings; /* items under way that want to end it */
    enum job_outcome leave_as; /* without an owner: how it ends if those do not end it */
};

struct attempts {
    struct hash table;
    struct list spare;
    size_t owned;
    size_t reserved;
};

void attempts_init(struct attempts *attempts, uint64_t seed);
void attempts_free(struct attempts *attempts);

bool attempts_reserve(struct attempts *attempts, size_t count);
void attempts_unreserve(struct attempts *attempts, size_t count);

/* Uses one reserved entry. */
void attempts_add(struct attempts *attempts, struct list *owner, const struct receipt *receipt);

struct attempt *attempts_find(const struct attempts *attempts, const struct receipt *receipt);

void attempts_end(struct attempts *attempts, struct attempt *attempt);

/* Takes it from its session; if what is under way does not end it, it ends as leave_as. */
void attempt_orphan(struct attempt *attempt, enum job_outcome leave_as);

/* To another owner, to whom its ClaimOk has left. */
void attempt_move(struct attempt *attempt, struct list *owner);

/* The newest `count` attempts of the owner were sent in a ClaimOk that ends there. */
void attempts_note_sent(const struct list *owner, size_t count, uint64_t sent_at);

#endif
