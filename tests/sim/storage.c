/* storage: see storage.h. */
#include "storage.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "sim.h"

enum {
    BACKOFF_US = 200 * US_PER_MS, /* of a retry without a delay of its own */
    HESITATION_US_MAX = 60 * US_PER_S,
    STRANGERS_JOBS_MAX = 5,
    PROMOTE_MAX = 1000,
    CLAIM_SLOTS = 8,
};

static const char *const names[QUEUES_MAX] = {"q0", "q1", "q2", "q3", "q4", "q5"};

unsigned queue_of_name(struct bytes name)
{
    return (unsigned)(name.data[1] - '0');
}

struct bytes name_of_queue(unsigned queue)
{
    return bytes_of_text(names[queue]);
}

static void *need(struct arena *arena, size_t size_bytes)
{
    void *memory = arena_zalloc(arena, size_bytes + 1); /* never 0 bytes */
    CHECK(memory != NULL);
    return memory;
}

/* ---- jobs ---- */

struct stored_job *storage_job(const struct sim *sim, int64_t id)
{
    const struct hash *table = &sim->storage.by_id;
    uint64_t hash = hash_of_u64(table, (uint64_t)id, 0);

    for (struct hash_node *node = hash_first(table, hash); node != NULL; node = hash_next(node)) {
        struct stored_job *job = CONTAINER_OF(node, struct stored_job, by_id);
        if (job->id == id)
            return job;
    }
    return NULL;
}

static struct list *list_of_state(struct storage *storage, const struct stored_job *job)
{
    switch (job->state) {
    case STORED_AVAILABLE: return &storage->available[job->queue][job->priority - 1];
    case STORED_DEFERRED: return &storage->deferred;
    case STORED_RUNNING: return &storage->running;
    case STORED_COMPLETED:
    case STORED_FAILED:
    case STORED_CANCELLED: break;
    }
    return &storage->ended;
}

static void set_state(struct storage *storage, struct stored_job *job, enum stored_state state)
{
    if (job->node.head != NULL)
        list_remove(job->node.head, &job->node);
    job->state = state;
    list_push_back(list_of_state(storage, job), &job->node);
}

static void add_job(struct sim *sim, const struct new_job *wanted, uint64_t token, int64_t id)
{
    struct storage *storage = &sim->storage;
    struct stored_job *job = sim_alloc(sim, sizeof *job);

    if (storage_job(sim, id) != NULL)
        sim_fail(sim, "job id %lld was stored twice", (long long)id);
    ledger_stored(sim, token, id);
    if (id > storage->last_stored_id)
        storage->last_stored_id = id;
    job->token = token;
    job->id = id;
    job->queue = queue_of_name(wanted->queue);
    job->priority = wanted->priority;
    job->attempts_max = wanted->max_attempts;
    job->due_us = (uint64_t)wanted->run_at_us;
    hash_add(&storage->by_id, &job->by_id, hash_of_u64(&storage->by_id, (uint64_t)id, 0));
    job->scheduled = wanted->run_at_us != 0;
    job->unreadable = dice_permille(&sim->dice, sim->plan.unreadable);
    set_state(storage, job, wanted->run_at_us != 0 ? STORED_DEFERRED : STORED_AVAILABLE);
}

/* ---- enqueue ---- */

static bool is_text(struct bytes bytes, const char *text)
{
    return bytes_equal(bytes, bytes_of_text(text));
}

/* In one or two runs, as a sequence that others use too would give them. */
void storage_reserve_ids(struct sim *sim, uint32_t count, struct arena *arena,
                         struct db_reply *reply)
{
    struct storage *storage = &sim->storage;
    size_t run_count = (size_t)dice_between(&sim->dice, 1, 2);
    struct id_run *runs = need(arena, run_count * sizeof *runs);
    int64_t left = count;

    for (size_t i = 0; i < run_count; i++) {
        int64_t take = i + 1 == run_count ? left : left / 2;
        storage->next_id += (int64_t)dice_below(&sim->dice, 3);
        runs[i] = (struct id_run){storage->next_id, storage->next_id + take - 1};
        storage->next_id += take;
        left -= take;
    }
    reply->rows.ids.runs = runs;
    reply->rows.ids.count = run_count;
}

uint64_t storage_token(struct bytes args)
{
    char text[TOKEN_TEXT_BYTES] = {0};

    CHECK(args.len < sizeof text);
    memcpy(text, args.data, args.len);
    return strtoull(text, NULL, 10);
}

/* ---- keys ---- */

static const struct stored_key *find_key(const struct storage *storage, struct bytes key)
{
    for (const struct stored_key *at = storage->keys; at != NULL; at = at->next)
        if (bytes_equal(at->key, key))
            return at;
    return NULL;
}

static void keep_key(struct sim *sim, const struct db_enqueue *args, const struct db_reply *reply)
{
    struct stored_key *key = sim_alloc(sim, sizeof *key);

    key->key = arena_copy(&sim->arena, args->key);
    key->ids = sim_alloc(sim, args->count * sizeof *key->ids);
    key->count = args->count;
    memcpy(key->ids, args->ids, args->count * sizeof *key->ids);
    for (size_t i = 0; i < reply->rows.enqueue.count; i++)
        key->ids[reply->rows.enqueue.failed[i].item] = 0;
    key->next = sim->storage.keys;
    sim->storage.keys = key;
}

static bool store_jobs(struct sim *sim, const struct db_enqueue *args, struct arena *arena,
                       struct db_reply *reply)
{
    struct db_failed_item *failed = need(arena, args->count * sizeof *failed);
    size_t failed_count = 0;

    for (size_t i = 0; i < args->count; i++)
        if (is_text(args->jobs[i]->kind, KIND_POISON))
            return false;
    for (size_t i = 0; i < args->count; i++) {
        const struct new_job *job = args->jobs[i];
        if (is_text(job->kind, KIND_REFUSE))
            failed[failed_count++] = (struct db_failed_item){i, "22P02", "made to be refused"};
        else
            add_job(sim, job, storage_token(job->args), args->ids[i]);
    }
    reply->rows.enqueue.failed = failed;
    reply->rows.enqueue.count = failed_count;
    return true;
}

bool storage_enqueue(struct sim *sim, const struct db_enqueue *args, struct arena *arena,
                     struct db_reply *reply)
{
    const struct stored_key *key =
        args->key.data != NULL ? find_key(&sim->storage, args->key) : NULL;

    if (key != NULL) {
        reply->rows.enqueue.known_ids = key->ids;
        return key->count == args->count;
    }
    if (!store_jobs(sim, args, arena, reply))
        return false;
    if (args->key.data != NULL)
        keep_key(sim, args, reply);
    return true;
}

void storage_jobs_exist(struct sim *sim, const struct db_jobs_exist *args, struct arena *arena,
                        struct db_reply *reply)
{
    bool *exist = need(arena, args->count);

    for (size_t i = 0; i < args->count; i++)
        exist[i] = storage_job(sim, args->ids[i]) != NULL;
    reply->rows.exist = exist;
}

/* Beyond what is stored: nobody has those. */
void storage_forget_ids(struct sim *sim)
{
    sim->storage.next_id = sim->storage.last_stored_id + 1;
}

/* ---- claim ---- */

static struct stored_batch *add_batch(struct storage *storage, struct sim *sim, uint64_t nonce,
                                      size_t room)
{
    if (storage->batch_count == storage->batch_room) {
        storage->batch_room = storage->batch_room * 2 + 64;
        storage->batches =
            mem_realloc(storage->batches, storage->batch_room * sizeof *storage->batches);
    }
    struct stored_batch *batch = &storage->batches[storage->batch_count++];
    *batch = (struct stored_batch){.attempts = sim_alloc(sim, room * sizeof *batch->attempts),
                                   .nonce = nonce,
                                   .slot = (uint8_t)(storage->batch_count / 20 % CLAIM_SLOTS)};
    return batch;
}

static struct stored_job *best_job(struct storage *storage, unsigned queue)
{
    for (size_t i = 0; i < PRIORITIES; i++)
        if (storage->available[queue][i].first != NULL)
            return CONTAINER_OF(storage->available[queue][i].first, struct stored_job, node);
    return NULL;
}

static struct stored_attempt *start_attempt(struct storage *storage, struct stored_batch *batch,
                                            struct stored_job *job)
{
    struct stored_attempt *attempt = &batch->attempts[batch->count++];

    job->run_lease++;
    job->attempts++;
    job->attempt = attempt;
    set_state(storage, job, STORED_RUNNING);
    attempt->job = job;
    attempt->receipt = (struct receipt){.batch_id = storage->batch_count,
                                        .nonce = batch->nonce,
                                        .job_id = (uint64_t)job->id,
                                        .run_lease = job->run_lease,
                                        .index = (uint16_t)batch->count,
                                        .claim_slot = batch->slot};
    list_push_back(&storage->open, &attempt->node);
    return attempt;
}

/* What a claim gives, as it is laid out. */
struct handful {
    struct arena *arena;
    struct claimed_job *jobs;
    struct unreadable_job *unreadable;
    size_t count;
    size_t unreadable_count;
};

static struct handful handful_for(struct arena *arena, size_t room)
{
    struct handful handful = {.arena = arena};

    handful.jobs = need(arena, room * sizeof *handful.jobs);
    handful.unreadable = need(arena, room * sizeof *handful.unreadable);
    return handful;
}

static size_t size_of(const struct handful *handful)
{
    return handful->count + handful->unreadable_count;
}

static void give(const struct handful *handful, struct db_reply *reply)
{
    reply->rows.claim.jobs = handful->jobs;
    reply->rows.claim.count = handful->count;
    reply->rows.claim.unreadable = handful->unreadable;
    reply->rows.claim.unreadable_count = handful->unreadable_count;
}

static void show_job(const struct stored_attempt *attempt, struct handful *out)
{
    const struct stored_job *job = attempt->job;
    struct bytes queue = arena_copy(out->arena, name_of_queue(job->queue));
    char *args = need(out->arena, TOKEN_TEXT_BYTES);

    if (job->unreadable) {
        out->unreadable[out->unreadable_count++] = (struct unreadable_job){
            .receipt = attempt->receipt, .queue = queue, .why = "made to be unreadable"};
        return;
    }
    snprintf(args, TOKEN_TEXT_BYTES, "%llu", (unsigned long long)job->token);
    out->jobs[out->count++] = (struct claimed_job){.receipt = attempt->receipt,
                                                   .queue = queue,
                                                   .kind = bytes_of_text(KIND_GOOD),
                                                   .args = bytes_of_text(args),
                                                   .attempt = job->attempts,
                                                   .max_attempts = job->attempts_max,
                                                   .priority = job->priority};
}

static void claim_queue(struct sim *sim, const struct db_claim *args, unsigned queue, size_t limit,
                        struct handful *out)
{
    struct storage *storage = &sim->storage;
    struct stored_job *job = best_job(storage, queue);

    if (job == NULL || size_of(out) >= limit)
        return;
    struct stored_batch *batch = add_batch(storage, sim, args->nonce, limit - size_of(out));
    for (; job != NULL && size_of(out) < limit; job = best_job(storage, queue)) {
        if (dice_permille(&sim->dice, sim->plan.lanes))
            batch = add_batch(storage, sim, args->nonce, limit - size_of(out));
        show_job(start_attempt(storage, batch, job), out);
    }
}

void storage_claim(struct sim *sim, const struct db_claim *args, struct arena *arena,
                   struct db_reply *reply)
{
    bool busy = dice_permille(&sim->dice, sim->calming ? 0 : sim->plan.busy_claims);
    /* Cut short by busy lanes, by bytes, or not at all. */
    size_t limit = busy || dice_permille(&sim->dice, 50)
                       ? (size_t)dice_between(&sim->dice, busy ? 0 : 1, args->limit)
                       : args->limit;
    struct handful handful = handful_for(arena, limit);

    for (size_t i = 0; i < args->queue_count; i++)
        claim_queue(sim, args, queue_of_name(args->queues[i]), limit, &handful);
    give(&handful, reply);
    reply->rows.claim.end = busy                         ? CLAIM_BUSY
                            : size_of(&handful) == limit ? CLAIM_FILLED
                                                         : CLAIM_EMPTY;
}

/* ---- claims whose answer was lost ---- */

static size_t count_claimed(const struct storage *storage, uint64_t nonce)
{
    size_t count = 0;

    for (size_t i = 0; i < storage->batch_count; i++)
        if (storage->batches[i].nonce == nonce)
            count += storage->batches[i].count;
    return count;
}

/* All that it claimed, in order; also what has ended meanwhile. Now and then a prune is in the way.
 */
void storage_claim_result(struct sim *sim, const struct db_claim *args, struct arena *arena,
                          struct db_reply *reply)
{
    const struct storage *storage = &sim->storage;
    struct handful handful = handful_for(arena, count_claimed(storage, args->nonce));

    if (!sim->calming && dice_below(&sim->dice, 4) == 0) {
        reply->rows.claim.end = CLAIM_BUSY;
        return;
    }
    for (size_t i = args->above; i < storage->batch_count; i++) /* the number of the first is 1 */
        for (size_t j = 0;
             storage->batches[i].nonce == args->nonce && j < storage->batches[i].count; j++)
            show_job(&storage->batches[i].attempts[j], &handful);
    give(&handful, reply);
    reply->rows.claim.end = CLAIM_EMPTY;
}

void storage_claim_is_lost(struct sim *sim, uint64_t nonce)
{
    struct storage *storage = &sim->storage;

    if (storage->lost_count == storage->lost_room) {
        storage->lost_room = storage->lost_room * 2 + 16;
        storage->lost = mem_realloc(storage->lost, storage->lost_room * sizeof *storage->lost);
    }
    storage->lost[storage->lost_count++] = (struct lost_claim){nonce, sim->now_us};
}

void storage_claim_is_known(struct sim *sim, uint64_t nonce)
{
    struct storage *storage = &sim->storage;

    for (size_t i = 0; i < storage->lost_count; i++) {
        if (storage->lost[i].nonce != nonce)
            continue;
        storage->lost[i] = storage->lost[--storage->lost_count];
        return;
    }
    sim_fail(sim, "core asks again for a claim that it knows, or never made");
}

/* ---- finish ---- */

struct stored_attempt *storage_attempt(const struct sim *sim, const struct receipt *receipt)
{
    const struct storage *storage = &sim->storage;

    if (receipt->batch_id < 1 || receipt->batch_id > storage->batch_count)
        return NULL;
    const struct stored_batch *batch = &storage->batches[receipt->batch_id - 1];
    if (receipt->index > batch->count ||
        !receipt_equal(&batch->attempts[receipt->index - 1].receipt, receipt))
        return NULL;
    return &batch->attempts[receipt->index - 1];
}

struct stored_attempt *storage_next_attempt(const struct sim *sim,
                                            const struct stored_attempt *last)
{
    const struct storage *storage = &sim->storage;
    size_t batch = 0;
    size_t at = 0;

    if (last != NULL) {
        batch = (size_t)last->receipt.batch_id - 1;
        at = last->receipt.index;
    }
    for (; batch < storage->batch_count; batch++, at = 0)
        if (at < storage->batches[batch].count)
            return &storage->batches[batch].attempts[at];
    return NULL;
}

static void defer(struct sim *sim, struct stored_job *job, uint64_t delay_us)
{
    job->due_us = sim->now_us + delay_us;
    set_state(&sim->storage, job, STORED_DEFERRED);
}

static void end_job(struct sim *sim, struct stored_job *job, enum job_outcome outcome,
                    uint64_t delay_us)
{
    struct storage *storage = &sim->storage;

    switch (outcome) {
    case JOB_COMPLETE: set_state(storage, job, STORED_COMPLETED); return;
    case JOB_FAIL: set_state(storage, job, STORED_FAILED); return;
    case JOB_CANCEL: set_state(storage, job, STORED_CANCELLED); return;
    case JOB_RETRY:
    case JOB_WORKER_LOST:
        if (job->attempts >= job->attempts_max)
            set_state(storage, job, STORED_FAILED);
        else
            defer(sim, job, delay_us > 0 ? delay_us : BACKOFF_US);
        return;
    case JOB_SNOOZE:
        job->attempts--;
        defer(sim, job, delay_us);
        return;
    case JOB_RELEASE:
        job->attempts--;
        set_state(storage, job, STORED_AVAILABLE);
        return;
    }
}

static void end_attempt(struct sim *sim, struct stored_attempt *attempt, enum job_outcome outcome,
                        uint64_t delay_us)
{
    list_remove(&sim->storage.open, &attempt->node);
    attempt->ended_as = outcome;
    attempt->job->attempt = NULL;
    end_job(sim, attempt->job, outcome, delay_us);
}

static bool is_busy(struct sim *sim, const struct stored_attempt *attempt)
{
    if (sim->calming)
        return false;
    return dice_permille(&sim->dice, sim->plan.busy_items) ||
           (attempt != NULL && attempt->busy_until_us > sim->now_us);
}

static int16_t finish_one(struct sim *sim, const struct finish_order *order)
{
    struct stored_attempt *attempt = storage_attempt(sim, &order->receipt);
    uint64_t batch = order->receipt.batch_id;

    if (is_busy(sim, attempt))
        return STORAGE_BUSY;
    if (batch < 1 || batch > sim->storage.batch_count ||
        sim->storage.batches[batch - 1].nonce != order->receipt.nonce ||
        sim->storage.batches[batch - 1].slot != order->receipt.claim_slot)
        return FINISH_NOT_FOUND;
    if (attempt == NULL || (order->outcome == JOB_SNOOZE && order->delay_ms <= 0))
        return FINISH_INVALID;
    if (attempt->ended_as != 0)
        return attempt->ended_as == order->outcome ? FINISH_ALREADY_DONE : FINISH_STALE;
    end_attempt(sim, attempt, order->outcome, (uint64_t)order->delay_ms * US_PER_MS);
    return FINISH_DONE;
}

bool storage_finish(struct sim *sim, const struct db_finish *args, struct arena *arena,
                    struct db_reply *reply)
{
    int16_t *statuses = need(arena, args->count * sizeof *statuses);

    for (size_t i = 0; i < args->count; i++)
        if (is_text(args->orders[i]->error, KIND_POISON))
            return false;
    for (size_t i = 0; i < args->count; i++)
        statuses[i] = finish_one(sim, args->orders[i]);
    reply->rows.finish.statuses = statuses;
    reply->rows.finish.count = args->count;
    return true;
}

/* ---- the rest ---- */

/* waiting_external is nothing that this model has: it numbers the counts, so that an answer can be
 * held against the moment it was counted. */
void storage_counts(struct sim *sim, struct bytes queue, struct db_reply *reply)
{
    struct storage *storage = &sim->storage;
    unsigned number = queue_of_name(queue);

    for (size_t i = 0; i < PRIORITIES; i++)
        reply->rows.counts.available += (int64_t)storage->available[number][i].count;
    reply->rows.counts.waiting_external = ++storage->counts_serial;
}

static int64_t promote(struct sim *sim)
{
    struct storage *storage = &sim->storage;
    int64_t moved = 0;

    for (struct list_node *node = storage->deferred.first, *next;
         node != NULL && moved < PROMOTE_MAX; node = next) {
        struct stored_job *job = CONTAINER_OF(node, struct stored_job, node);
        next = node->next;
        if (job->due_us > sim->now_us)
            continue;
        set_state(storage, job, STORED_AVAILABLE);
        moved++;
    }
    return moved;
}

void storage_maintain(struct sim *sim, enum maintenance_task task, struct db_reply *reply)
{
    switch (task) {
    case TASK_PROMOTE_DUE: reply->rows.maintenance = promote(sim); return;
    case TASK_ROTATE_RINGS:
    case TASK_CARRY_LANES:
    case TASK_CLOSE_SLOTS:
    case TASK_PRUNE_SLOTS:
    case TASK_RESCUE_INSTANCES:
    case TASK_END_STUCK_BACKENDS:
    case TASK_PURGE_IDEMPOTENCY_KEYS:
        reply->rows.maintenance = (int64_t)dice_below(&sim->dice, 2);
        return;
    case TASK_SYNC_RING_POINTERS:
    case TASK_COUNT: reply->rows.maintenance = 1; return;
    }
}

void storage_make_all_due(struct sim *sim)
{
    for (struct list_node *node = sim->storage.deferred.first; node != NULL; node = node->next)
        CONTAINER_OF(node, struct stored_job, node)->due_us = 0;
}

size_t storage_unfinished(const struct sim *sim)
{
    const struct storage *storage = &sim->storage;
    size_t count = storage->deferred.count + storage->running.count;

    for (size_t i = 0; i < QUEUES_MAX; i++)
        for (size_t j = 0; j < PRIORITIES; j++)
            count += storage->available[i][j].count;
    return count;
}

/* ---- others at the same tables ---- */

static void enqueue_strangely(struct sim *sim, unsigned queue)
{
    char args[TOKEN_TEXT_BYTES];
    uint64_t token = ledger_wish(sim, queue, 2, true);
    struct new_job job = {.queue = name_of_queue(queue), .max_attempts = 3, .priority = 2};

    ledger_find(sim, token)->stranger = true;
    snprintf(args, sizeof args, "%llu", (unsigned long long)token);
    job.args = bytes_of_text(args);
    add_job(sim, &job, token, sim->storage.next_id++);
}

/* Another proxy's worker. */
static void work_strangely(struct sim *sim, unsigned queue)
{
    struct storage *storage = &sim->storage;
    struct stored_job *job = best_job(storage, queue);

    if (job == NULL)
        return;
    struct stored_batch *batch = add_batch(storage, sim, dice_u64(&sim->dice), 1);
    struct stored_attempt *attempt = start_attempt(storage, batch, job);
    attempt->by_stranger = true;
    end_attempt(sim, attempt, JOB_COMPLETE, 0);
}

/* An operator cancels a running job, completes it by SQL, or thinks about it for long. */
static void end_strangely(struct sim *sim)
{
    struct list_node *node = sim->storage.open.first;

    if (node == NULL)
        return;
    for (uint64_t skip = dice_below(&sim->dice, sim->storage.open.count); skip > 0; skip--)
        node = node->next;
    struct stored_attempt *attempt = CONTAINER_OF(node, struct stored_attempt, node);
    if (dice_below(&sim->dice, 3) == 0) {
        attempt->busy_until_us = sim->now_us + dice_below(&sim->dice, HESITATION_US_MAX);
        return;
    }
    attempt->by_stranger = true;
    end_attempt(sim, attempt, dice_below(&sim->dice, 2) == 0 ? JOB_CANCEL : JOB_COMPLETE, 0);
}

void storage_be_used_by_strangers(struct sim *sim)
{
    unsigned queue = (unsigned)dice_below(&sim->dice, sim->plan.queues);

    switch (dice_below(&sim->dice, 4)) {
    case 0: work_strangely(sim, queue); return;
    case 1: end_strangely(sim); return;
    default: break;
    }
    for (uint64_t i = dice_between(&sim->dice, 1, STRANGERS_JOBS_MAX); i > 0; i--)
        enqueue_strangely(sim, queue);
    if (dice_below(&sim->dice, 2) == 0) /* a hint, which may be missing */
        core_notified(&sim->core, name_of_queue(queue));
}

void storage_init(struct sim *sim)
{
    sim->storage.next_id = 1;
    hash_init(&sim->storage.by_id, dice_u64(&sim->dice));
}

void storage_free(struct sim *sim)
{
    hash_free(&sim->storage.by_id);
    mem_free(sim->storage.batches);
    mem_free(sim->storage.lost);
}
