/* database: see database.h. */
#include "database.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "checks.h"
#include "sim.h"

enum {
    WAIT_US = 5 * US_PER_S, /* for a connection, as in the real pool */
    RECONNECT_US_MAX = 300 * US_PER_MS,
    ZOMBIE_US_MAX = 4 * US_PER_S,
    ENDING_US_MAX = 20 * US_PER_MS,
    SENT_BYTES_MAX = 64 * 1024 * 1024,
    SICK_US_MAX = 2 * US_PER_S,
    SICK_PERMILLE = 500,     /* refused meanwhile */
    UNSYNCED_PERMILLE = 250, /* of what a lost connection owed: not sent whole */
};

/* A call on its way, and later its answer. */
struct sent {
    struct list_node node;
    struct db_call *call; /* NULL: nobody waits for it any more */
    struct db_call copy;  /* what was sent */
    struct arena arena;   /* of the copy and the answer */
    struct db_reply reply;
    uint64_t since_us; /* waiting */
    uint64_t at_us;    /* of its next step */
    uint64_t turn;     /* when it was submitted */
    struct backend by; /* who does it */
    uint64_t losses;   /* so many connections had been lost then */
    bool decided;      /* done or not; only the answer is missing */
};

static struct sent *sent_of(struct list_node *node)
{
    return CONTAINER_OF(node, struct sent, node);
}

static void sent_free(struct sent *sent)
{
    arena_free(&sent->arena);
    mem_free(sent);
}

static const char *op_name(enum db_op op)
{
    switch (op) {
    case DB_RESERVE_IDS: return "reserve_ids";
    case DB_ENQUEUE: return "enqueue";
    case DB_ENQUEUE_ONCE: return "enqueue_once";
    case DB_JOBS_EXIST: return "jobs_exist";
    case DB_CLAIM: return "claim";
    case DB_CLAIM_RESULT: return "claim_result";
    case DB_BACKEND_GONE: return "backend_is_gone";
    case DB_COMPLETE: return "complete";
    case DB_FINISH: return "finish";
    case DB_COUNTS: return "counts";
    case DB_ANNOUNCE: return "announce";
    case DB_MEMBERSHIP: return "membership";
    case DB_MAINTENANCE: return "maintenance";
    }
    return "?";
}

static size_t size_of(const struct db_call *call)
{
    switch (call->op) {
    case DB_RESERVE_IDS: return call->args.id_count;
    case DB_ENQUEUE:
    case DB_ENQUEUE_ONCE: return call->args.enqueue.count;
    case DB_JOBS_EXIST: return call->args.jobs_exist.count;
    case DB_CLAIM: return call->args.claim.limit;
    case DB_COMPLETE:
    case DB_FINISH: return call->args.finish.count;
    case DB_ANNOUNCE: return call->args.announce.queue_count;
    case DB_CLAIM_RESULT:
    case DB_BACKEND_GONE:
    case DB_COUNTS:
    case DB_MEMBERSHIP:
    case DB_MAINTENANCE: break;
    }
    return 1;
}

bool is_control_op(enum db_op op)
{
    switch (op) {
    case DB_ANNOUNCE:
    case DB_MEMBERSHIP:
    case DB_MAINTENANCE: return true;
    case DB_RESERVE_IDS:
    case DB_ENQUEUE:
    case DB_ENQUEUE_ONCE:
    case DB_JOBS_EXIST:
    case DB_CLAIM:
    case DB_CLAIM_RESULT:
    case DB_BACKEND_GONE:
    case DB_COMPLETE:
    case DB_FINISH:
    case DB_COUNTS: break;
    }
    return false;
}

static bool is_enqueue(enum db_op op)
{
    return op == DB_ENQUEUE || op == DB_ENQUEUE_ONCE;
}

static uint64_t latency(struct sim *sim)
{
    return sim->now_us + dice_between(&sim->dice, 1, sim->plan.latency_us);
}

static bool trouble(struct sim *sim, unsigned permille)
{
    return !sim->calming && dice_permille(&sim->dice, permille);
}

/* ---- what is sent ---- */

static void *need(struct arena *arena, size_t size_bytes)
{
    void *memory = arena_zalloc(arena, size_bytes + 1);
    CHECK(memory != NULL);
    return memory;
}

static struct bytes keep(struct arena *arena, struct bytes bytes)
{
    return bytes.data == NULL ? bytes : arena_copy(arena, bytes);
}

static const struct bytes *keep_names(struct arena *arena, const struct bytes *names, size_t count)
{
    struct bytes *kept = need(arena, count * sizeof *kept);

    for (size_t i = 0; i < count; i++)
        kept[i] = keep(arena, names[i]);
    return kept;
}

static void keep_enqueue(struct arena *arena, struct db_enqueue *args)
{
    const struct new_job **jobs = need(arena, args->count * sizeof *jobs);
    int64_t *ids = need(arena, args->count * sizeof *ids);

    for (size_t i = 0; i < args->count; i++) {
        struct new_job *job = need(arena, sizeof *job);
        *job = *args->jobs[i];
        job->queue = keep(arena, args->queues[args->queue_of[i] - 1]); /* as the storage reads it */
        job->kind = keep(arena, job->kind);
        job->args = keep(arena, job->args);
        jobs[i] = job;
        ids[i] = args->ids[i];
    }
    args->jobs = jobs;
    args->ids = ids;
    args->key = keep(arena, args->key);
    args->queues = NULL;
    args->queue_of = NULL;
}

static void keep_ids(struct arena *arena, struct db_jobs_exist *args)
{
    int64_t *ids = need(arena, args->count * sizeof *ids);

    memcpy(ids, args->ids, args->count * sizeof *ids);
    args->ids = ids;
}

static void keep_finish(struct arena *arena, struct db_finish *args)
{
    const struct finish_order **orders = need(arena, args->count * sizeof *orders);

    for (size_t i = 0; i < args->count; i++) {
        struct finish_order *order = need(arena, sizeof *order);
        *order = *args->orders[i];
        order->error = keep(arena, order->error);
        orders[i] = order;
    }
    args->orders = orders;
}

static void encode(struct sent *sent)
{
    struct arena *arena = &sent->arena;
    struct db_call *copy = &sent->copy;

    *copy = *sent->call;
    switch (copy->op) {
    case DB_ENQUEUE:
    case DB_ENQUEUE_ONCE: keep_enqueue(arena, &copy->args.enqueue); return;
    case DB_JOBS_EXIST: keep_ids(arena, &copy->args.jobs_exist); return;
    case DB_CLAIM:
        copy->args.claim.queues =
            keep_names(arena, copy->args.claim.queues, copy->args.claim.queue_count);
        return;
    case DB_COMPLETE:
    case DB_FINISH: keep_finish(arena, &copy->args.finish); return;
    case DB_COUNTS: copy->args.counts_queue = keep(arena, copy->args.counts_queue); return;
    case DB_ANNOUNCE:
        copy->args.announce.queues =
            keep_names(arena, copy->args.announce.queues, copy->args.announce.queue_count);
        return;
    case DB_CLAIM_RESULT:
    case DB_BACKEND_GONE:
    case DB_RESERVE_IDS:
    case DB_MEMBERSHIP:
    case DB_MAINTENANCE: return;
    }
}

/* ---- backends without a client ---- */

static const struct sent *zombie_of(const struct list_node *node)
{
    return CONTAINER_OF(node, const struct sent, node);
}

bool database_may_still_claim(const struct sim *sim, uint64_t nonce)
{
    for (const struct list_node *node = sim->database.zombies.first; node != NULL;
         node = node->next)
        if (zombie_of(node)->copy.op == DB_CLAIM && zombie_of(node)->copy.args.claim.nonce == nonce)
            return true;
    return false;
}

bool database_may_still_try(const struct sim *sim, uint64_t token)
{
    for (const struct list_node *node = sim->database.zombies.first; node != NULL;
         node = node->next) {
        const struct sent *sent = zombie_of(node);
        for (size_t i = 0; is_enqueue(sent->copy.op) && i < sent->copy.args.enqueue.count; i++)
            if (storage_token(sent->copy.args.enqueue.jobs[i]->args) == token)
                return true;
    }
    return false;
}

bool database_may_still_store(const struct sim *sim, const struct server_run *server, int64_t id)
{
    for (const struct list_node *node = sim->database.zombies.first; node != NULL;
         node = node->next) {
        const struct sent *sent = zombie_of(node);
        if (!is_enqueue(sent->copy.op) || !server_run_equal(&sent->by.server, server))
            continue;
        for (size_t i = 0; i < sent->copy.args.enqueue.count; i++)
            if (sent->copy.args.enqueue.ids[i] == id)
                return true;
    }
    return false;
}

static void bury(struct sim *sim, struct sent *zombie)
{
    list_remove(&sim->database.zombies, &zombie->node);
    sent_free(zombie);
}

/* It is told to end: some of what it has got to do may be done before it hears of that. */
static bool end_backend(struct sim *sim, const struct backend *backend)
{
    struct list *zombies = &sim->database.zombies;
    bool gone = sim->calming || dice_below(&sim->dice, 4) > 0;

    for (struct list_node *node = zombies->first, *next; node != NULL; node = next) {
        struct sent *zombie = sent_of(node);
        next = node->next;
        if (!backend_equal(&zombie->by, backend))
            continue;
        gone = false;
        if (dice_below(&sim->dice, 2) == 0)
            bury(sim, zombie);
        else
            zombie->at_us = sim->now_us + dice_below(&sim->dice, ENDING_US_MAX);
    }
    return gone;
}

/* ---- doing it ---- */

static void not_done(struct sent *sent, const char *sqlstate)
{
    sent->reply.outcome = OUTCOME_NOT_DONE;
    sent->reply.backend = sent->by;
    err_set(&sent->reply.err, CODE_INTERNAL, "made to fail");
    err_set_sqlstate(&sent->reply.err, sqlstate);
}

/* Other proxies have the leader's lock, or look just now whether this one lives. */
static void do_membership(struct sim *sim, enum membership what, struct db_reply *reply)
{
    struct database *database = &sim->database;
    bool refused = !sim->calming && !plan_is_calm(&sim->plan) && dice_below(&sim->dice, 4) == 0;

    reply->rows.granted = what == MEMBER_RESIGN || !refused;
    switch (what) {
    case MEMBER_REGISTER: return;
    case MEMBER_TRY_LEAD: database->leads = reply->rows.granted; return;
    case MEMBER_RESIGN: database->leads = false; return;
    }
}

static void execute(struct sim *sim, struct sent *sent)
{
    struct db_call *copy = &sent->copy;
    struct db_reply *reply = &sent->reply;
    bool done = true;

    reply->outcome = OUTCOME_DONE;
    reply->backend = sent->by;
    switch (copy->op) {
    case DB_RESERVE_IDS: storage_reserve_ids(sim, copy->args.id_count, &sent->arena, reply); break;
    case DB_ENQUEUE:
    case DB_ENQUEUE_ONCE:
        done = storage_enqueue(sim, &copy->args.enqueue, &sent->arena, reply);
        break;
    case DB_JOBS_EXIST: storage_jobs_exist(sim, &copy->args.jobs_exist, &sent->arena, reply); break;
    case DB_CLAIM: storage_claim(sim, &copy->args.claim, &sent->arena, reply); break;
    case DB_CLAIM_RESULT: storage_claim_result(sim, &copy->args.claim, &sent->arena, reply); break;
    case DB_BACKEND_GONE: reply->rows.gone = end_backend(sim, &copy->args.backend); break;
    case DB_COMPLETE:
    case DB_FINISH: done = storage_finish(sim, &copy->args.finish, &sent->arena, reply); break;
    case DB_COUNTS: storage_counts(sim, copy->args.counts_queue, reply); break;
    case DB_ANNOUNCE: break; /* nobody else is here to hear it */
    case DB_MEMBERSHIP:
        if (sent->call != NULL) /* a session that is gone has locks of its own */
            do_membership(sim, copy->args.membership, reply);
        break;
    case DB_MAINTENANCE: storage_maintain(sim, copy->args.task, reply); break;
    }
    if (!done)
        not_done(sent, "22P05");
    sim_trace(sim, "db   %s %s", op_name(copy->op), done ? "committed" : "refused an item");
}

/* ---- answering ---- */

static void note_blocks(struct sim *sim, const struct sent *sent)
{
    struct database *database = &sim->database;

    if (sent->losses != database->losses)
        return; /* reserved before a loss: dead on arrival */
    for (size_t i = 0; i < sent->reply.rows.ids.count; i++)
        database->blocks[database->block_count++ % BLOCKS_MAX] = sent->reply.rows.ids.runs[i];
}

static void note_answered_jobs(struct sim *sim, const struct sent *sent)
{
    for (size_t i = 0; i < sent->copy.args.enqueue.count; i++)
        ledger_answered(sim, storage_token(sent->copy.args.enqueue.jobs[i]->args));
}

static void note_membership(struct sim *sim, enum membership what)
{
    switch (what) {
    case MEMBER_REGISTER: sim->database.registered = true; return;
    case MEMBER_TRY_LEAD: sim->database.sync_is_due = true; return;
    case MEMBER_RESIGN: return;
    }
}

static void note_duty(struct sim *sim, enum maintenance_task task, int64_t moved)
{
    if (task == TASK_SYNC_RING_POINTERS)
        sim->database.sync_is_due = false;
    if (task == TASK_ROTATE_RINGS && moved > 0)
        sim->database.sync_is_due = true;
}

/* What the answer means to the world, before core sees it. */
static void note_answer(struct sim *sim, struct sent *sent)
{
    const struct db_reply *reply = &sent->reply;

    switch (sent->copy.op) {
    case DB_RESERVE_IDS:
        if (reply->outcome == OUTCOME_DONE)
            note_blocks(sim, sent);
        return;
    case DB_ENQUEUE:
    case DB_ENQUEUE_ONCE: note_answered_jobs(sim, sent); return;
    case DB_CLAIM_RESULT:
        if (reply->outcome == OUTCOME_DONE && reply->rows.claim.end != CLAIM_BUSY)
            storage_claim_is_known(sim, sent->copy.args.claim.nonce);
        return;
    case DB_BACKEND_GONE:
        if (reply->outcome == OUTCOME_DONE && !reply->rows.gone)
            sim->database.troubled_us = sim->now_us;
        return;
    case DB_MEMBERSHIP:
        if (reply->outcome == OUTCOME_DONE && reply->rows.granted)
            note_membership(sim, sent->copy.args.membership);
        return;
    case DB_MAINTENANCE:
        if (reply->outcome == OUTCOME_DONE)
            note_duty(sim, sent->copy.args.task, reply->rows.maintenance);
        return;
    case DB_ANNOUNCE:
    case DB_JOBS_EXIST:
    case DB_CLAIM:
    case DB_COMPLETE:
    case DB_FINISH:
    case DB_COUNTS: return;
    }
}

static void answer(struct sim *sim, struct sent *sent, const struct db_reply *reply)
{
    static const char *const outcomes[] = {"DONE", "NOT_DONE", "UNKNOWN"};
    struct db_call *call = sent->call;

    sent->call = NULL;
    if (call->op == DB_CLAIM)
        clients_note_claim(sim, &sent->copy.args.claim, sent->turn);
    sim_trace(sim, "db   %s answered %s %s", op_name(call->op), outcomes[reply->outcome],
              reply->outcome == OUTCOME_DONE ? "" : reply->err.sqlstate);
    call->done(call, reply);
}

/* ---- breaking ---- */

static void answer_lost(struct sim *sim, struct sent *sent, bool synced)
{
    static const char *const states[] = {"", "08006", "57P01"};
    struct db_reply reply = {.outcome = synced ? OUTCOME_UNKNOWN : OUTCOME_NOT_DONE,
                             .backend = sent->by};
    bool is_zombie = synced && !sent->decided && trouble(sim, sim->plan.zombies);

    err_set(&reply.err, CODE_UNAVAILABLE, "made to be lost");
    err_set_sqlstate(&reply.err, states[dice_below(&sim->dice, 3)]);
    if (synced && sent->copy.op == DB_CLAIM)
        storage_claim_is_lost(sim, sent->copy.args.claim.nonce);
    if (is_enqueue(sent->copy.op))
        note_answered_jobs(sim, sent);
    if (is_zombie) /* before core may ask for its backend */
        list_push_back(&sim->database.zombies, &sent->node);
    sent->at_us = sim->now_us + dice_below(&sim->dice, ZOMBIE_US_MAX);
    answer(sim, sent, &reply);
    if (!is_zombie)
        sent_free(sent);
}

/* What has waited since before that time. */
static void fail_waiting(struct sim *sim, struct list *waiting, uint64_t since_us)
{
    struct db_reply reply = {.outcome = OUTCOME_NOT_DONE};

    while (waiting->first != NULL && sent_of(waiting->first)->since_us <= since_us) {
        struct sent *sent = sent_of(list_pop_front(waiting));
        sim->database.ever_failed = true;
        sim->database.troubled_us = sim->now_us;
        err_set(&reply.err, CODE_UNAVAILABLE, "no connection");
        encode(sent);
        if (is_enqueue(sent->copy.op))
            note_answered_jobs(sim, sent);
        answer(sim, sent, &reply);
        sent_free(sent);
    }
}

static void lose_control(struct sim *sim)
{
    struct database *database = &sim->database;

    if (database->registered)
        database->unregistered_us = sim->now_us;
    database->registered = false;
    database->leads = false;
    database->drop_control = false;
    core_control_lost(&sim->core);
}

/* As src/pg/pool.c does it: first core is told, then what was owed is answered. */
static void lose(struct sim *sim, size_t number, uint64_t up_us)
{
    struct database *database = &sim->database;
    struct line *line = &database->lines[number];
    bool synced = true;

    sim_trace(sim, "db   connection %zu lost with %zu calls", number, line->sent.count);
    database->ever_failed = true;
    database->troubled_us = sim->now_us;
    line->up = false;
    line->silent = false;
    line->up_us = up_us;
    if (number == CONTROL) {
        lose_control(sim);
    } else {
        database->losses++;
        database->sick_until_us = sim->now_us + dice_below(&sim->dice, SICK_US_MAX);
        database->block_count = 0;
        core_database_lost(&sim->core);
    }
    for (struct list_node *node; (node = list_pop_front(&line->sent)) != NULL;) {
        struct sent *sent = sent_of(node);
        synced = synced && (sent->decided || !dice_permille(&sim->dice, UNSYNCED_PERMILLE));
        answer_lost(sim, sent, synced);
    }
    if (number == CONTROL) /* its calls are of no use to another session */
        fail_waiting(sim, &database->waiting_control, sim->now_us);
}

static void lose_for_a_moment(struct sim *sim, size_t number)
{
    lose(sim, number, sim->now_us + dice_below(&sim->dice, RECONNECT_US_MAX));
}

/* Another run, or another server after a failover: all backends are gone, and ids that no job has
 * are given out again. */
static void restart(struct sim *sim)
{
    struct database *database = &sim->database;

    database->restarts++;
    if (dice_below(&sim->dice, 2) == 0)
        database->server.timeline++;
    else
        database->server.started++;
    while (database->zombies.first != NULL)
        bury(sim, sent_of(database->zombies.first));
    storage_forget_ids(sim);
    sim_trace(sim, "db   the server starts anew");
}

static void go_away(struct sim *sim)
{
    struct database *database = &sim->database;

    database->away_until_us = sim->now_us + dice_below(&sim->dice, sim->plan.outage_us_max);
    sim_trace(sim, "db   away until %llu", (unsigned long long)database->away_until_us);
    for (size_t i = 0; i < database->line_count; i++)
        if (database->lines[i].up)
            lose(sim, i, database->away_until_us + dice_below(&sim->dice, RECONNECT_US_MAX));
        else if (database->lines[i].up_us < database->away_until_us)
            database->lines[i].up_us = database->away_until_us;
    if (dice_below(&sim->dice, 2) == 0)
        restart(sim);
}

/* ---- one step of a connection ---- */

static void refuse(struct sim *sim, struct sent *sent, const char *sqlstate)
{
    sim->database.ever_failed = true;
    sim->database.troubled_us = sim->now_us;
    not_done(sent, sqlstate);
}

static unsigned refusal_odds(const struct sim *sim)
{
    bool sick = sim->now_us < sim->database.sick_until_us && sim->plan.refusals > 0;
    return sick ? SICK_PERMILLE : sim->plan.refusals;
}

/* No word comes any more, and nobody closes it. */
static void fall_silent(struct sim *sim, size_t number)
{
    struct line *line = &sim->database.lines[number];
    struct sent *first = sent_of(line->sent.first);
    bool claims = first->copy.op == DB_CLAIM || first->copy.op == DB_CLAIM_RESULT;

    sim_trace(sim, "db   connection %zu falls silent", number);
    line->silent = true;
    first->at_us = sim->now_us + (uint64_t)(claims ? CALL_CLAIM_MS : CALL_MS) * US_PER_MS;
}

static void decide(struct sim *sim, size_t number)
{
    static const char *const aborts[] = {"40P01", "40001", "55P03"};
    static const char *const refusals[] = {"53200", "42501", "XX000", "57014", "58030"};
    struct sent *sent = sent_of(sim->database.lines[number].sent.first);
    unsigned losses = number == CONTROL ? sim->plan.control_losses : sim->plan.losses;

    if (trouble(sim, losses)) {
        if (dice_below(&sim->dice, 2) == 0) {
            execute(sim, sent);
            sent->decided = true;
        }
        if (number != CONTROL && dice_below(&sim->dice, 4) == 0)
            fall_silent(sim, number);
        else
            lose_for_a_moment(sim, number);
        return;
    }
    if (trouble(sim, sim->plan.aborts))
        refuse(sim, sent, aborts[dice_below(&sim->dice, 3)]);
    else if (trouble(sim, refusal_odds(sim)))
        refuse(sim, sent, refusals[dice_below(&sim->dice, 5)]);
    else
        execute(sim, sent);
    sent->decided = true;
    sent->at_us = latency(sim);
}

static void come_back(struct sim *sim, size_t number)
{
    struct database *database = &sim->database;

    database->lines[number].up = true;
    database->lines[number].backend =
        (struct backend){++database->last_pid, (int64_t)sim->now_us, database->server};
    sim_trace(sim, "db   connection %zu is up", number);
    if (number != CONTROL)
        return;
    core_control_up(&sim->core);
}

static void step_line(struct sim *sim, size_t number)
{
    struct line *line = &sim->database.lines[number];

    if (!line->up && line->up_us <= sim->now_us)
        come_back(sim, number);
    if (line->sent.first == NULL || sent_of(line->sent.first)->at_us > sim->now_us)
        return;
    struct sent *sent = sent_of(line->sent.first);
    if (line->silent) {
        lose_for_a_moment(sim, number);
        return;
    }
    if (!sent->decided) {
        decide(sim, number);
        return;
    }
    list_remove(&line->sent, &sent->node);
    if (line->sent.first != NULL)
        sent_of(line->sent.first)->at_us = latency(sim);
    note_answer(sim, sent);
    answer(sim, sent, &sent->reply);
    sent_free(sent);
}

static void step_zombies(struct sim *sim)
{
    for (struct list_node *node = sim->database.zombies.first, *next; node != NULL; node = next) {
        struct sent *sent = sent_of(node);
        next = node->next;
        if (sent->at_us > sim->now_us)
            continue;
        sim_trace(sim, "db   a backend without a client goes on:");
        list_remove(&sim->database.zombies, node);
        execute(sim, sent);
        sent_free(sent);
    }
}

static bool is_troubled(const struct database *database)
{
    for (size_t i = CONTROL + 1; i < database->line_count; i++)
        if (!database->lines[i].up || database->lines[i].silent)
            return true;
    return database->zombies.count > 0;
}

void database_step(struct sim *sim)
{
    struct database *database = &sim->database;

    database->again = false;
    if (sim->now_us >= database->away_until_us && trouble(sim, sim->plan.outages))
        go_away(sim);
    if (database->drop_control && database->lines[CONTROL].up)
        lose_for_a_moment(sim, CONTROL);
    for (size_t i = 0; i < database->line_count; i++)
        step_line(sim, i);
    step_zombies(sim);
    if (is_troubled(database))
        database->troubled_us = sim->now_us;
    uint64_t since_us = sim->now_us > WAIT_US ? sim->now_us - WAIT_US : 0;
    fail_waiting(sim, &database->waiting, since_us);
    fail_waiting(sim, &database->waiting_control, since_us);
}

/* ---- sending ---- */

void database_submit(struct sim *sim, struct db_call *call)
{
    struct sent *sent = mem_zalloc(sizeof *sent);

    check_call(sim, call);
    sent->call = call;
    sent->since_us = sim->now_us;
    sent->turn = sim->turn;
    sent->losses = sim->database.losses;
    arena_init(&sent->arena, SENT_BYTES_MAX);
    list_push_back(is_control_op(call->op) ? &sim->database.waiting_control
                                           : &sim->database.waiting,
                   &sent->node);
    sim_trace(sim, "core submits %s of %zu", op_name(call->op), size_of(call));
}

/* The data connection that owes least. */
static struct line *least_busy(struct database *database)
{
    struct line *best = NULL;

    for (size_t i = CONTROL + 1; i < database->line_count; i++) {
        struct line *line = &database->lines[i];
        if (line->up && (best == NULL || line->sent.count < best->sent.count))
            best = line;
    }
    return best;
}

/* As src/app/database.c: ids are good on the server that gave them out only. */
static bool suits(const struct line *line, const struct db_call *call)
{
    return !is_enqueue(call->op) ||
           server_run_equal(&call->args.enqueue.server, &line->backend.server);
}

static void refuse_to_send(struct sim *sim, struct sent *sent)
{
    struct db_reply reply = {.outcome = OUTCOME_NOT_DONE};

    err_set(&reply.err, CODE_UNAVAILABLE, "the database server is not the one it was");
    note_answered_jobs(sim, sent);
    answer(sim, sent, &reply);
    sent_free(sent);
    sim->database.again = true;
}

static void send_to(struct sim *sim, struct line *line, struct list *waiting)
{
    while (line != NULL && line->up && line->sent.count < PIPE_SEGMENTS_MAX &&
           waiting->first != NULL) {
        struct sent *sent = sent_of(list_pop_front(waiting));
        encode(sent);
        if (!suits(line, &sent->copy)) {
            refuse_to_send(sim, sent);
            continue;
        }
        sent->by = line->backend;
        sent->at_us = latency(sim);
        list_push_back(&line->sent, &sent->node);
        if (waiting == &sim->database.waiting)
            line = least_busy(&sim->database);
    }
}

void database_dispatch(struct sim *sim)
{
    struct database *database = &sim->database;

    send_to(sim, least_busy(database), &database->waiting);
    send_to(sim, &database->lines[CONTROL], &database->waiting_control);
}

unsigned database_idle(const struct sim *sim)
{
    const struct database *database = &sim->database;
    size_t idle = 0;

    for (size_t i = CONTROL + 1; i < database->line_count; i++)
        idle += database->lines[i].up && database->lines[i].sent.count == 0;
    return idle > database->waiting.count ? (unsigned)(idle - database->waiting.count) : 0;
}

/* ---- looking ---- */

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t database_next_us(const struct sim *sim)
{
    const struct database *database = &sim->database;
    uint64_t next_us = database->again ? sim->now_us : UINT64_MAX;

    for (size_t i = 0; i < database->line_count; i++) {
        const struct line *line = &database->lines[i];
        if (!line->up)
            next_us = earlier(next_us, line->up_us);
        if (line->sent.first != NULL)
            next_us = earlier(next_us, sent_of(line->sent.first)->at_us);
    }
    for (struct list_node *node = database->zombies.first; node != NULL; node = node->next)
        next_us = earlier(next_us, sent_of(node)->at_us);
    if (database->waiting.first != NULL)
        next_us = earlier(next_us, sent_of(database->waiting.first)->since_us + WAIT_US);
    if (database->waiting_control.first != NULL)
        next_us = earlier(next_us, sent_of(database->waiting_control.first)->since_us + WAIT_US);
    return next_us;
}

/* Walks over everything that core waits for; *at is the list, from 0. */
static struct list_node *first_of(const struct database *database, size_t at)
{
    if (at == 0)
        return database->waiting.first;
    if (at == 1)
        return database->waiting_control.first;
    return database->lines[at - 2].sent.first;
}

#define EACH_OWED(sim, node)                                                                       \
    for (size_t at = 0; at < (sim)->database.line_count + 2; at++)                                 \
        for (const struct list_node *node = first_of(&(sim)->database, at); node != NULL;          \
             node = node->next)

static const struct sent *owed(const struct list_node *node)
{
    return CONTAINER_OF(node, const struct sent, node);
}

bool database_has_call(const struct sim *sim, const struct db_call *call)
{
    EACH_OWED(sim, node)
    {
        if (owed(node)->call == call)
            return true;
    }
    return false;
}

size_t database_count(const struct sim *sim, enum db_op op)
{
    size_t count = 0;

    EACH_OWED(sim, node)
    {
        count += owed(node)->call->op == op;
    }
    return count;
}

static bool same_names(const struct db_claim *a, const struct db_claim *b)
{
    if (a->queue_count != b->queue_count)
        return false;
    for (size_t i = 0; i < a->queue_count; i++)
        if (!bytes_equal(a->queues[i], b->queues[i]))
            return false;
    return true;
}

bool database_claims(const struct sim *sim, const struct db_claim *claim)
{
    EACH_OWED(sim, node)
    {
        if (owed(node)->call->op == DB_CLAIM && same_names(&owed(node)->call->args.claim, claim))
            return true;
    }
    return false;
}

bool database_is_idle(const struct sim *sim)
{
    EACH_OWED(sim, node)
    {
        if (!is_control_op(owed(node)->call->op))
            return false;
    }
    return sim->database.zombies.count == 0;
}

bool database_id_is_good(const struct sim *sim, int64_t id)
{
    const struct database *database = &sim->database;
    size_t count = database->block_count < BLOCKS_MAX ? database->block_count : BLOCKS_MAX;

    for (size_t i = 0; i < count; i++)
        if (id >= database->blocks[i].first && id <= database->blocks[i].last)
            return true;
    return false;
}

/* ---- the object ---- */

void database_init(struct sim *sim)
{
    struct database *database = &sim->database;

    database->line_count = sim->plan.connections + 1;
    database->server = (struct server_run){.started = 1, .timeline = 1};
    for (size_t i = 0; i < database->line_count; i++)
        database->lines[i].up_us = sim->now_us + dice_below(&sim->dice, RECONNECT_US_MAX);
}

void database_drop_control(struct sim *sim, const struct err *why)
{
    sim_trace(sim, "core ends the control session: %s", why->message);
    sim->database.drop_control = true;
}

void database_end_control(struct sim *sim)
{
    if (sim->database.lines[CONTROL].up)
        lose(sim, CONTROL, UINT64_MAX);
    sim->database.lines[CONTROL].up_us = UINT64_MAX;
}

void database_free(struct sim *sim)
{
    CHECK(database_is_idle(sim));
    EACH_OWED(sim, node)
    {
        sim_fail(sim, "a call of the control session is under way at the end");
    }
}
