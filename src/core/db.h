/* db: the calls core makes to the storage, as plain structs. No code, no SQL, no libpq.
 *
 * What: a db_call is owned by the core object that makes it (a flush, a claim group) and stays put
 * until its done() is called: exactly once, never from inside env->submit. What it points to stays
 * valid too. The reply and all it points to is valid only during done(). Why the outcome is
 * three-valued: base/outcome.h. With OUTCOME_DONE the rows are set; otherwise err is. backend is
 * who ran it; with OUTCOME_UNKNOWN a pid of 0 says that there is nobody to ask about (it was
 * committed, but its answer made no sense).
 */
#ifndef CORE_DB_H
#define CORE_DB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/backend.h"
#include "base/err.h"
#include "base/outcome.h"
#include "core/job.h"

enum db_op {
    DB_RESERVE_IDS,
    DB_ENQUEUE,
    DB_ENQUEUE_ONCE, /* with an idempotency key */
    DB_JOBS_EXIST,
    DB_CLAIM,
    DB_CLAIM_RESULT, /* of an earlier DB_CLAIM, by its nonce */
    DB_BACKEND_GONE,
    DB_COMPLETE,
    DB_FINISH,
    DB_COUNTS,
    /* On the control session: */
    DB_ANNOUNCE,
    DB_MEMBERSHIP,
    DB_MAINTENANCE
};

enum membership {
    MEMBER_REGISTER, /* others see by this session that the instance lives */
    MEMBER_TRY_LEAD,
    MEMBER_RESIGN,
};

enum maintenance_task {
#define TASK(suffix, name, period_ms, portion) TASK_##suffix,
#include "core/tasks.def"
#undef TASK
    TASK_COUNT,
};

struct id_run {
    int64_t first;
    int64_t last; /* inclusive */
};

struct db_enqueue {
    const struct bytes *queues; /* distinct */
    size_t queue_count;
    const struct new_job *const *jobs;
    const uint16_t *queue_of; /* from 1 */
    const int64_t *ids;
    size_t count;
    struct server_run server; /* that gave out the ids: only there they are good */
    struct bytes key;         /* DB_ENQUEUE_ONCE */
};

struct db_jobs_exist {
    const int64_t *ids;
    size_t count;
};

struct db_claim {
    const struct bytes *queues;
    size_t queue_count;
    uint64_t nonce;
    uint64_t above; /* DB_CLAIM_RESULT: its batches have higher numbers */
    uint32_t limit;
    uint32_t bytes_max;
};

struct db_finish { /* DB_COMPLETE: sorted by receipt_compare, no two equal */
    const struct finish_order *const *orders;
    size_t count;
};

struct db_announce { /* to other proxies: there is new work */
    const struct bytes *queues;
    size_t queue_count;
};

struct db_failed_item {
    size_t item; /* from 0 */
    const char *sqlstate;
    const char *message;
};

enum claim_end { CLAIM_FILLED, CLAIM_EMPTY, CLAIM_BUSY };

struct db_reply {
    enum outcome outcome;
    struct err err;
    struct backend backend;
    union {
        struct {
            const struct id_run *runs;
            size_t count;
        } ids;
        struct {
            const struct db_failed_item *failed;
            size_t count;
            const int64_t *known_ids; /* the key was known: the ids stored with it, 0 for a refused
                                         job; else NULL */
        } enqueue;
        const bool *exist; /* of each id */
        bool gone;
        struct {
            struct claimed_job *jobs; /* in the order in which they are to be handed out */
            size_t count;
            enum claim_end end;
            const struct unreadable_job *unreadable; /* claimed as well */
            size_t unreadable_count;
        } claim;
        struct {
            const int16_t *statuses;
            size_t count;
        } finish;
        struct queue_counts counts;
        bool granted;        /* membership */
        int64_t maintenance; /* rows moved; 1 for a boolean true */
    } rows;
};

struct db_call {
    enum db_op op;
    void (*done)(struct db_call *call, const struct db_reply *reply);
    union {
        uint32_t id_count;
        struct db_enqueue enqueue;
        struct db_jobs_exist jobs_exist;
        struct db_claim claim;
        struct backend backend;
        struct db_finish finish;
        struct bytes counts_queue;
        struct db_announce announce;
        enum membership membership;
        enum maintenance_task task;
    } args;
};

#endif
