/* database: connections to a Postgres that is slow, breaks, goes away and comes back.
 *
 * What: calls wait, are sent to a connection (in order on each, in any order across), are done by
 * the storage, and are answered some time later. What was sent is a copy: core may reuse its call
 * as soon as it was answered, while a backend whose client is gone may still do it (a zombie). A
 * lost connection answers UNKNOWN for what was sent whole, NOT_DONE for the rest. Who asks for a
 * backend ends it: its calls are done at the last moment, or never. A server that starts anew has
 * no zombies and may give out again the ids of jobs that it does not have. Mirrors src/pg/pool.h;
 * the control connection is one more, and carries maintenance only.
 */
#ifndef SIM_DATABASE_H
#define SIM_DATABASE_H

#include "base/list.h"
#include "core/db.h"

struct sim;

enum { CONNECTIONS_MAX = 8, CONTROL = 0, BLOCKS_MAX = 64 };

struct line {
    struct backend backend; /* at the other end */
    struct list sent;       /* in order */
    bool up;
    bool silent;    /* drops what is sent; given up at the deadline of the first call */
    uint64_t up_us; /* when it will be */
};

struct database {
    struct line lines[CONNECTIONS_MAX]; /* the control connection first */
    size_t line_count;
    struct list waiting;
    struct list waiting_control;
    struct list zombies;
    struct server_run server;
    int32_t last_pid;
    unsigned restarts;
    uint64_t troubled_us; /* when last something went wrong, or was still wrong */
    uint64_t away_until_us;
    uint64_t sick_until_us;           /* short of everything, as after a crash */
    struct id_run blocks[BLOCKS_MAX]; /* reserved, and no connection lost since */
    size_t block_count;
    uint64_t losses;          /* of data connections */
    bool again;               /* core was told something after its turn */
    bool drop_control;        /* core wants that session ended */
    bool registered;          /* others see that the instance lives */
    uint64_t unregistered_us; /* since when they do not */
    bool leads;               /* holds the leader's lock */
    bool sync_is_due;         /* the ring pointers, before any other duty */
    bool ever_failed;         /* something was not done, for a reason that is not in the call */
};

void database_init(struct sim *sim);
void database_free(struct sim *sim);

/* Ends the control session, in the next turn. */
void database_drop_control(struct sim *sim, const struct err *why);

/* For good: there is no control session any more. */
void database_end_control(struct sim *sim);

void database_submit(struct sim *sim, struct db_call *call);
unsigned database_idle(const struct sim *sim);

/* What is due: answers, breaks, connections that come back, zombies. */
void database_step(struct sim *sim);
void database_dispatch(struct sim *sim);
uint64_t database_next_us(const struct sim *sim);

/* Nothing waits or is under way, zombies included; what the control session does apart. */
bool database_is_idle(const struct sim *sim);
bool is_control_op(enum db_op op);
bool database_has_call(const struct sim *sim, const struct db_call *call);
size_t database_count(const struct sim *sim, enum db_op op);
bool database_claims(const struct sim *sim, const struct db_claim *claim);

/* A backend whose client is gone may still do a call with this claim, with this job, or with this
 * id of this run of the server: another run may have given it out again. */
bool database_may_still_claim(const struct sim *sim, uint64_t nonce);
bool database_may_still_try(const struct sim *sim, uint64_t token);
bool database_may_still_store(const struct sim *sim, const struct server_run *server, int64_t id);

/* May the call name this id: from a block that was reserved and did not die. */
bool database_id_is_good(const struct sim *sim, int64_t id);

#endif
