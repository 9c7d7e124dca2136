/* plan: what one seed's run is like: sizes, speeds, and which kinds of trouble it has.
 *
 * Why: a run with every trouble at once hides what each alone would show. So each seed draws which
 * ones are on, and some have none at all: there the checks are strictest. Probabilities are in
 * permille of the occasions. Not here: when something happens; that is thrown as it comes.
 */
#ifndef SIM_PLAN_H
#define SIM_PLAN_H

#include "core/core.h"
#include "dice.h"

enum { QUEUES_MAX = 6, CLIENTS_MAX = 12 };

struct plan {
    struct core_setup core;
    size_t enqueue_batch_max; /* since the start: a flush keeps its size when it is repeated */
    unsigned queues;
    unsigned clients;
    unsigned connections; /* to the database */

    /* the database */
    uint64_t latency_us;    /* of a step, at most */
    unsigned aborts;        /* 40P01 and its like */
    unsigned refusals;      /* 53, 42, XX */
    unsigned reloads;       /* SIGHUP with other sizes, of the turns */
    unsigned losses;        /* a connection breaks, before or after the commit */
    unsigned zombies;       /* of the calls lost on the way: the backend does them later */
    unsigned lanes;         /* of the jobs claimed: the first of another claim batch */
    unsigned busy_claims;   /* of the claims */
    unsigned busy_items;    /* of the items of a finish */
    unsigned unreadable;    /* of the jobs stored: what a claim says of it makes no sense */
    unsigned outages;       /* a server that goes away, of the loop's turns */
    uint64_t outage_us_max; /* how long */
    unsigned control_losses;

    /* the clients */
    uint64_t think_us;  /* between two actions, at most */
    unsigned jobs_max;  /* in an Enqueue */
    unsigned bad_items; /* of the jobs and outcomes sent */
    unsigned rude;      /* frames out of order, ids in use, receipts of others or forged */
    unsigned vanishing; /* of the actions */
    unsigned flooding;  /* of the actions */
    unsigned silence;   /* of the actions */
    unsigned stalls;    /* of the actions: nothing leaves for this client for a while */
    size_t job_bytes;   /* of a job in a ClaimOk: a client that stalls may be far behind */
    unsigned resumes;   /* of those that come (again): with the id of a session */
    unsigned keys;      /* of the Enqueues: with an idempotency key */
    unsigned strangers; /* other programs at the same tables, of the turns */
    bool drains;        /* SIGTERM before the end */
};

void plan_draw(struct plan *plan, struct dice *dice);

/* Other limits, as a reload may set them. */
void plan_reload(struct plan *plan, struct dice *dice);

/* No trouble of the database's own making: every refusal needs another reason. */
bool plan_is_calm(const struct plan *plan);

#endif
