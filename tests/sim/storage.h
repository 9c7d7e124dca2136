/* storage: a model of the storage's contract (docs/storage.md): what is committed, and nothing
 * else.
 *
 * What: jobs, the attempts claims made of them, and how each ended. A call is one step here: it is
 * done as a whole or not at all. Statuses are the storage's own. Jobs are recognised by a token
 * that stands in their args, so that the checks can say which wish of which client one is. Not
 * here: when a call is done, and whether anybody learns of it (database.h).
 */
#ifndef SIM_STORAGE_H
#define SIM_STORAGE_H

#include "base/arena.h"
#include "base/hash.h"
#include "base/list.h"
#include "core/db.h"
#include "plan.h"

struct sim;
struct stored_attempt;

enum { PRIORITIES = 4, TOKEN_TEXT_BYTES = 24 };

/* What the text of a job or outcome can tell the storage to do with it. */
#define KIND_GOOD   "good"
#define KIND_REFUSE "refused" /* comes back as a failed item */
#define KIND_POISON "poison"  /* fails the whole call with a data error */

enum stored_state {
    STORED_AVAILABLE,
    STORED_DEFERRED,
    STORED_RUNNING,
    STORED_COMPLETED,
    STORED_FAILED,
    STORED_CANCELLED,
};

struct stored_job {
    struct hash_node by_id;
    struct list_node node; /* the list its state names */
    uint64_t token;
    int64_t id;
    uint64_t due_us;
    struct stored_attempt *attempt; /* of STORED_RUNNING */
    uint32_t run_lease;
    unsigned queue;
    enum stored_state state;
    bool scheduled;  /* was deferred when it came */
    bool unreadable; /* damaged: nobody can be told what it is */
    uint16_t attempts;
    uint16_t attempts_max;
    uint8_t priority;
};

/* What is to become of an attempt that was handed out, if its client does not end it. */
enum fate {
    FATE_HELD,    /* its session is there */
    FATE_KEPT,    /* its session waits for its client, until_us; then it is lost with its worker */
    FATE_RELEASE, /* goes back as if it had never been handed out */
};

struct stored_attempt {
    struct list_node node; /* storage->open */
    struct stored_job *job;
    struct receipt receipt;
    enum job_outcome ended_as; /* 0: open */
    bool by_stranger;          /* not through the proxy */
    uint64_t busy_until_us; /* somebody ends it in an open transaction, which is rolled back then */
    /* the checks' own */
    uint64_t holder;    /* the connection it was handed to; 0: nobody */
    enum fate fate;     /* with a holder */
    uint64_t sent_at;   /* where its ClaimOk ends */
    uint64_t until_us;  /* KEPT */
    uint64_t listed;    /* by the Hello of this connection */
    bool release_asked; /* by some client */
    bool told_over;     /* somebody was told that it has ended */
    unsigned named;     /* by how many items of clients */
    bool named_badly;   /* by one that is to be refused: twins share the answer */
    unsigned told_done; /* how often DONE was said of it */
};

struct stored_batch {
    struct stored_attempt *attempts;
    size_t count;
    uint64_t nonce;
    uint8_t slot;
};

/* Its answer never came, and core has not been told yet what it claimed. */
struct lost_claim {
    uint64_t nonce;
    uint64_t since_us;
};

struct stored_key {
    struct stored_key *next;
    struct bytes key;
    int64_t *ids; /* 0: refused */
    size_t count;
};

struct storage {
    struct hash by_id;
    struct list available[QUEUES_MAX][PRIORITIES];
    struct list deferred;
    struct list running;
    struct list ended;
    struct list open; /* attempts */
    struct stored_batch *batches;
    size_t batch_count;
    size_t batch_room;
    struct stored_key *keys; /* newest first */
    int64_t next_id;
    int64_t last_stored_id; /* the highest */
    struct lost_claim *lost;
    size_t lost_count;
    size_t lost_room;
    int64_t counts_serial;
};

void storage_init(struct sim *sim);
void storage_free(struct sim *sim);

/* The calls. Answers live in the arena. False: aborted, with *sqlstate. */
void storage_reserve_ids(struct sim *sim, uint32_t count, struct arena *arena,
                         struct db_reply *reply);
bool storage_enqueue(struct sim *sim, const struct db_enqueue *args, struct arena *arena,
                     struct db_reply *reply);
void storage_claim(struct sim *sim, const struct db_claim *args, struct arena *arena,
                   struct db_reply *reply);
void storage_jobs_exist(struct sim *sim, const struct db_jobs_exist *args, struct arena *arena,
                        struct db_reply *reply);
void storage_claim_result(struct sim *sim, const struct db_claim *args, struct arena *arena,
                          struct db_reply *reply);
bool storage_finish(struct sim *sim, const struct db_finish *args, struct arena *arena,
                    struct db_reply *reply);
void storage_counts(struct sim *sim, struct bytes queue, struct db_reply *reply);
void storage_maintain(struct sim *sim, enum maintenance_task task, struct db_reply *reply);

/* What goes on without the proxy. */
void storage_be_used_by_strangers(struct sim *sim);
void storage_make_all_due(struct sim *sim);
void storage_forget_ids(struct sim *sim);

/* The answer of this claim was lost; core has learned what it claimed. */
void storage_claim_is_lost(struct sim *sim, uint64_t nonce);
void storage_claim_is_known(struct sim *sim, uint64_t nonce);

/* Looking. */
struct stored_attempt *storage_next_attempt(const struct sim *sim,
                                            const struct stored_attempt *last); /* of all */
struct stored_job *storage_job(const struct sim *sim, int64_t id);
struct stored_attempt *storage_attempt(const struct sim *sim, const struct receipt *receipt);
uint64_t storage_token(struct bytes args);
size_t storage_unfinished(const struct sim *sim);

unsigned queue_of_name(struct bytes name);
struct bytes name_of_queue(unsigned queue);

#endif
