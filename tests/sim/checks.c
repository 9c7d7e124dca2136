/* checks: see checks.h. */
#include "checks.h"

#include "base/clock.h"
#include "base/limits.h"
#include "core/doubt.h"
#include "core/group.h"
#include "core/session.h"
#include "lives.h"
#include "sim.h"

enum { DOUBT_US_MAX = 10 * US_PER_S };

/* ---- calls ---- */

/* Neither tried anew, nor asked about, while an earlier try could still be committed. */
static void check_not_in_doubt(struct sim *sim, const struct new_job *job)
{
    const struct wish *wish = ledger_find(sim, storage_token(job->args));

    if (!wish->keyed && database_may_still_try(sim, storage_token(job->args)))
        sim_fail(sim, "a job is tried again while id %lld may still be stored",
                 (long long)wish->id);
}

static void check_jobs_exist(struct sim *sim, const struct db_call *call)
{
    const struct db_jobs_exist *args = &call->args.jobs_exist;
    const struct doubt *doubt = CONTAINER_OF(call, const struct doubt, call);

    if (args->count < 1 || args->count > FLUSH_ITEMS_MAX)
        sim_fail(sim, "a question about %zu jobs", args->count);
    for (size_t i = 0; i < args->count; i++)
        if (database_may_still_store(sim, &doubt->backend.server, args->ids[i]))
            sim_fail(sim, "job %lld is asked about while it may still be stored",
                     (long long)args->ids[i]);
}

static void check_backend_gone(struct sim *sim, const struct backend *backend)
{
    const struct database *database = &sim->database;

    for (size_t i = 0; i < database->line_count; i++)
        if (database->lines[i].up && database->lines[i].backend.pid == backend->pid)
            sim_fail(sim, "backend %d is to be ended, but it serves a connection",
                     (int)backend->pid);
}

static void check_enqueue(struct sim *sim, const struct db_enqueue *args)
{
    size_t bytes = 0;

    size_t max =
        args->key.data != NULL ? (size_t)JOBS_PER_ENQUEUE_MAX : sim->plan.enqueue_batch_max;

    if (args->count < 1 || args->count > max)
        sim_fail(sim, "a flush of %zu jobs", args->count);
    for (size_t i = 0; i < args->count; i++) {
        const struct new_job *job = args->jobs[i];
        bytes += job->args.len;
        if (args->queue_of[i] < 1 || args->queue_of[i] > args->queue_count ||
            !bytes_equal(args->queues[args->queue_of[i] - 1], job->queue))
            sim_fail(sim, "job %zu of a flush stands in the wrong queue", i);
        if (!database_id_is_good(sim, args->ids[i]))
            sim_fail(sim, "id %lld is used, but its block was never reserved or has died",
                     (long long)args->ids[i]);
        check_not_in_doubt(sim, job);
        ledger_tried(sim, storage_token(job->args), args->ids[i]);
    }
    if (bytes > FLUSH_BYTES_MAX && args->count > 1)
        sim_fail(sim, "a flush of %zu bytes", bytes);
}

static void check_claim(struct sim *sim, const struct db_claim *args)
{
    size_t demand = clients_demand(sim, args->queues, args->queue_count);

    if (args->limit < 1 || args->limit > sim->plan.core.claim_batch_size)
        sim_fail(sim, "a claim of %u jobs", args->limit);
    if (args->limit > demand)
        sim_fail(sim, "a claim of %u jobs, but clients wait for %zu", args->limit, demand);
    if (!sim->database.registered &&
        sim->now_us > sim->database.unregistered_us + sim->plan.core.unknown_max_us)
        sim_fail(sim, "a claim by an instance that others take for dead");
    if (database_claims(sim, args))
        sim_fail(sim, "two claims for the same queues at a time");
    if (database_count(sim, DB_CLAIM) >= sim->plan.core.claims_in_flight_max)
        sim_fail(sim, "more than %u claims at a time", sim->plan.core.claims_in_flight_max);
}

static bool same_batch(const struct receipt *a, const struct receipt *b)
{
    return a->claim_slot == b->claim_slot && a->batch_id == b->batch_id && a->nonce == b->nonce;
}

/* What cannot be read fails, and says so; nothing else fails unless a client wants it. */
static void check_failing(struct sim *sim, const struct stored_attempt *attempt,
                          const struct finish_order *order)
{
    bool fails = order->outcome == JOB_FAIL;

    if (attempt == NULL || attempt->holder != 0)
        return;
    if (attempt->job->unreadable != fails || (fails && order->error.len == 0))
        sim_fail(sim, "attempt (%llu, %u), which %s be read, ends with outcome %d",
                 (unsigned long long)order->receipt.job_id, order->receipt.run_lease,
                 attempt->job->unreadable ? "cannot" : "can", (int)order->outcome);
}

/* An ending that no client asked for. */
static void check_own_ending(struct sim *sim, const struct finish_order *order)
{
    const struct stored_attempt *attempt = storage_attempt(sim, &order->receipt);

    check_failing(sim, attempt, order);
    if (order->outcome == JOB_WORKER_LOST &&
        (attempt == NULL || attempt->holder == 0 || attempt->fate != FATE_KEPT ||
         attempt->until_us > sim->now_us))
        sim_fail(sim, "attempt (%llu, %u) ends as lost with its worker, which %s",
                 (unsigned long long)order->receipt.job_id, order->receipt.run_lease,
                 attempt == NULL || attempt->fate == FATE_RELEASE ? "never had it" : "may be back");
    if (order->outcome != JOB_RELEASE || attempt == NULL || attempt->release_asked ||
        attempt->holder == 0 || attempt->fate == FATE_RELEASE || sim->draining)
        return;
    const struct client *client = client_at(sim, attempt->holder);
    if (client == NULL || !client->leaving)
        sim_fail(sim, "attempt (%llu, %u) is handed back, but its client %s",
                 (unsigned long long)order->receipt.job_id, order->receipt.run_lease,
                 attempt->fate == FATE_HELD ? "is there" : "may have started it");
}

static void check_finish(struct sim *sim, enum db_op op, const struct db_finish *args)
{
    size_t max = op == DB_COMPLETE ? FLUSH_ITEMS_MAX : FINISH_ITEMS_PER_CALL_MAX;
    size_t batches = 0;

    if (args->count < 1 || args->count > max)
        sim_fail(sim, "a flush of %zu outcomes", args->count);
    for (size_t i = 0; i < args->count; i++) {
        const struct finish_order *order = args->orders[i];
        const struct finish_order *last = i > 0 ? args->orders[i - 1] : NULL;
        if (last != NULL && receipt_compare(&last->receipt, &order->receipt) >= 0)
            sim_fail(sim, "the receipts of a flush are not sorted, or one is there twice");
        if (last == NULL || !same_batch(&last->receipt, &order->receipt))
            batches++;
        check_own_ending(sim, order);
        if ((op == DB_COMPLETE) != (order->outcome == JOB_COMPLETE))
            sim_fail(sim, "outcome %d took the wrong path", (int)order->outcome);
    }
    if (op == DB_COMPLETE && batches > COMPLETE_BATCHES_PER_CALL_MAX)
        sim_fail(sim, "a completion of %zu claim batches", batches);
}

static void check_control(struct sim *sim)
{
    if (!sim->database.lines[CONTROL].up)
        sim_fail(sim, "a call of the control session, which is not there");
}

static void check_maintenance(struct sim *sim, enum maintenance_task task)
{
    check_control(sim);
    if (database_count(sim, DB_MAINTENANCE) > 0)
        sim_fail(sim, "two steps of maintenance at a time");
    if (task == TASK_END_STUCK_BACKENDS && sim->core.leader.state == LEADER_FOLLOWING)
        return; /* anybody may */
    if (!sim->database.leads)
        sim_fail(sim, "task %d by one who does not lead", (int)task);
    if (sim->database.sync_is_due && task != TASK_SYNC_RING_POINTERS)
        sim_fail(sim, "task %d before the ring pointers were synchronised", (int)task);
}

void check_call(struct sim *sim, const struct db_call *call)
{
    if (database_has_call(sim, call))
        sim_fail(sim, "a call was submitted again before it was answered");
    switch (call->op) {
    case DB_RESERVE_IDS:
        if (database_count(sim, DB_RESERVE_IDS) > 0)
            sim_fail(sim, "two reservations at a time");
        return;
    case DB_ENQUEUE:
    case DB_ENQUEUE_ONCE:
        if ((call->op == DB_ENQUEUE_ONCE) != (call->args.enqueue.key.data != NULL))
            sim_fail(sim, "a key, and the call without, or the other way round");
        check_enqueue(sim, &call->args.enqueue);
        return;
    case DB_JOBS_EXIST: check_jobs_exist(sim, call); return;
    case DB_CLAIM_RESULT:
        if (database_may_still_claim(sim, call->args.claim.nonce))
            sim_fail(sim, "a claim is asked about while it may still be committed");
        return;
    case DB_BACKEND_GONE: check_backend_gone(sim, &call->args.backend); return;
    case DB_CLAIM: check_claim(sim, &call->args.claim); return;
    case DB_COMPLETE:
    case DB_FINISH: check_finish(sim, call->op, &call->args.finish); return;
    case DB_COUNTS:
        if (database_count(sim, DB_COUNTS) >= COUNTS_IN_FLIGHT_MAX)
            sim_fail(sim, "more than %d counts at a time", COUNTS_IN_FLIGHT_MAX);
        return;
    case DB_ANNOUNCE:
        check_control(sim);
        if (database_count(sim, DB_ANNOUNCE) > 0)
            sim_fail(sim, "two announcements at a time");
        return;
    case DB_MEMBERSHIP:
        check_control(sim);
        if (database_count(sim, DB_MEMBERSHIP) > 0)
            sim_fail(sim, "two questions of membership at a time");
        return;
    case DB_MAINTENANCE: check_maintenance(sim, call->args.task); return;
    }
}

/* ---- sessions ---- */

static bool is_attached(enum request_kind kind)
{
    switch (kind) {
    case REQUEST_ENQUEUE:
    case REQUEST_CLAIM:
    case REQUEST_FINISH:
    case REQUEST_RELEASE:
    case REQUEST_COUNTS: return true;
    case REQUEST_HELLO:
    case REQUEST_PING:
    case REQUEST_GOODBYE:
    case REQUEST_HEARTBEAT:
    case REQUEST_CANCEL: break;
    }
    return false;
}

struct dues {
    size_t requests;
    size_t claims;
    size_t credit_requests;
    size_t credit_bytes;
    size_t finish_items;
};

static struct dues dues_of(const struct session *session)
{
    struct dues dues = {0, 0, 0, 0, 0};

    for (struct list_node *node = session->requests.first; node != NULL; node = node->next) {
        const struct request *request = CONTAINER_OF(node, struct request, node);
        dues.requests++;
        dues.claims += request->kind == REQUEST_CLAIM;
        if (request->kind == REQUEST_ENQUEUE || request->kind == REQUEST_COUNTS) {
            dues.credit_requests++;
            dues.credit_bytes += request->frame_bytes;
        }
        if (request->kind == REQUEST_FINISH || request->kind == REQUEST_RELEASE)
            dues.finish_items += request->in.finish.count;
    }
    return dues;
}

static size_t asked_of(const struct client *client)
{
    size_t count = 0;

    for (struct list_node *node = client->asked.first; node != NULL; node = node->next)
        count += is_attached(CONTAINER_OF(node, struct asked, node)->kind);
    return count;
}

static void check_credit(struct sim *sim, const struct session *session)
{
    struct dues dues = dues_of(session);

    if (dues.credit_requests != session->credit_requests ||
        dues.credit_bytes != session->credit_bytes || dues.finish_items != session->finish_items)
        sim_fail(sim, "c%llu: its credit is not what its requests cost",
                 (unsigned long long)session->connection);
    if (session->credit_requests > CREDIT_REQUESTS ||
        session->finish_items >= FINISH_ITEMS_PER_SESSION_MAX + ITEMS_PER_FINISH_MAX ||
        session->claims_waiting > CLAIMS_PER_SESSION_MAX ||
        session->attempts.count + session->jobs_wanted > ATTEMPTS_PER_SESSION_MAX)
        sim_fail(sim, "c%llu: beyond its bounds", (unsigned long long)session->connection);
    if (dues.claims != session->claims_waiting)
        sim_fail(sim, "c%llu: %zu claims wait, but it counts %zu",
                 (unsigned long long)session->connection, dues.claims, session->claims_waiting);
}

static void check_session(struct sim *sim, const struct session *session)
{
    const struct client *client = client_at(sim, session->connection);
    bool credit = session->credit_requests < CREDIT_REQUESTS &&
                  session->credit_bytes < CREDIT_BYTES &&
                  session->finish_items < FINISH_ITEMS_PER_SESSION_MAX;

    check_credit(sim, session);
    if (client == NULL)
        sim_fail(sim, "c%llu: a session without a client", (unsigned long long)session->connection);
    if (client->closed != (session->state == SESSION_CLOSED))
        sim_fail(sim, "c%llu: in doubt whether it is closed",
                 (unsigned long long)client->connection);
    if (client->told_error && !client->closed)
        sim_fail(sim, "c%llu: its last word was said, but it was not closed",
                 (unsigned long long)client->connection);
    if (client->closed)
        return;
    if (client->reading != credit)
        sim_fail(sim, "c%llu: is %s although it has %s", (unsigned long long)client->connection,
                 client->reading ? "read" : "not read", credit ? "credit" : "no credit");
    if (asked_of(client) != session->requests.count)
        sim_fail(sim, "c%llu: waits for %zu answers, and core knows of %zu",
                 (unsigned long long)client->connection, asked_of(client), session->requests.count);
}

/* One whose connection is gone: for the grace, and for nothing but its attempts. */
static void check_away(struct sim *sim, const struct session *session)
{
    const struct life *life = life_of_session(sim, session->self);

    if (session->requests.count + session->seats.count + session->claims_waiting > 0)
        sim_fail(sim, "a session that is away waits for answers");
    if (life == NULL || !life->away || memcmp(life->id, session->id, sizeof life->id) != 0)
        sim_fail(sim, "a session is away that nobody knows");
    if (sim->now_us > life->until_us + GRACE_SLACK_US)
        sim_fail(sim, "a session is kept for longer than its grace");
}

static void check_clients(struct sim *sim)
{
    for (size_t i = 0; i < CLIENTS_MAX; i++) {
        const struct client *client = sim->clients.places[i];
        if (client != NULL && !client->closed &&
            session_of(&sim->core.sessions, client->session) == NULL)
            sim_fail(sim, "c%llu has no session", (unsigned long long)client->connection);
    }
}

static size_t check_sessions(struct sim *sim)
{
    const struct slots *table = &sim->core.sessions.table;
    size_t attempts = 0;

    check_clients(sim);
    for (uint32_t i = 0; i < table->size; i++) {
        const struct session *session = slots_at(table, i);
        if (session == NULL)
            continue;
        if (session->state == SESSION_AWAY)
            check_away(sim, session);
        else
            check_session(sim, session);
        attempts += session->attempts.count;
    }
    return attempts;
}

/* ---- claim groups ---- */

/* A job that core has said is stored, available at once, and never claimed. */
static const struct stored_job *fresh_job(struct sim *sim, unsigned queue)
{
    for (size_t i = 0; i < PRIORITIES; i++) {
        const struct list *list = &sim->storage.available[queue][i];
        if (list->first == NULL)
            continue;
        const struct stored_job *job = CONTAINER_OF(list->first, struct stored_job, node);
        if (job->run_lease == 0 && !job->scheduled &&
            ledger_find(sim, job->token)->told == TOLD_STORED)
            return job;
    }
    return NULL;
}

/* A group rests only while there is nothing for it that core knows of. */
static void check_rest(struct sim *sim, const struct group *group)
{
    if (sim->plan.busy_claims > 0 || sim->database.ever_failed)
        return;
    for (size_t i = 0; i < group->queue_count; i++) {
        const struct stored_job *job = fresh_job(sim, queue_of_name(group->queues[i]));
        if (job != NULL)
            sim_fail(sim, "claims rest although job %lld was stored through this proxy",
                     (long long)job->id);
    }
}

static size_t demand_of(const struct list *seats)
{
    size_t demand = 0;

    for (struct list_node *node = seats->first; node != NULL; node = node->next) {
        const struct seat *seat = CONTAINER_OF(node, struct seat, in_group);
        for (struct list_node *at = seat->claims.first; at != NULL; at = at->next)
            demand += CONTAINER_OF(at, struct claim, node)->wanted;
    }
    return demand;
}

static void check_group(struct sim *sim, const struct broker *broker, const struct group *group,
                        const struct list *list)
{
    bool stuck = group->doubts >= CLAIM_DOUBTS_PER_GROUP_MAX ||
                 group->unreadable >= UNREADABLE_PER_GROUP_MAX;
    bool awaited = group->doubts > 0 || group->unreadable > 0;
    bool rests = list == &broker->waiting && !group->in_flight && !stuck && group->demand > 0;
    bool idle = !group_has_claims(group) && !group->in_flight && !awaited;

    if (demand_of(&group->seats) != group->demand)
        sim_fail(sim, "a group's demand is %zu, but its claims want %zu", group->demand,
                 demand_of(&group->seats));
    if ((list == &broker->idle) != idle)
        sim_fail(sim, "a group with a demand of %zu is on the wrong list", group->demand);
    if (group->demand > 0 && rests != timer_is_set(&group->poll))
        sim_fail(sim, "a group rests without a timer, or has one without resting");
    if (group->in_flight != database_has_call(sim, &group->call))
        sim_fail(sim, "a group is wrong about its call");
    if (group->unreadable >= UNREADABLE_PER_GROUP_MAX + (group->doubts + 1) * CLAIM_JOBS_MAX)
        sim_fail(sim, "a group waits for %zu jobs to fail", group->unreadable);
    if (rests)
        check_rest(sim, group);
}

static size_t check_groups(struct sim *sim)
{
    const struct broker *broker = &sim->core.broker;
    const struct list *lists[] = {&broker->ready, &broker->idle, &broker->waiting};
    size_t demand = 0;
    size_t groups = 0;
    unsigned calls = 0;

    for (size_t i = 0; i < 3; i++) {
        for (struct list_node *node = lists[i]->first; node != NULL; node = node->next) {
            const struct group *group = CONTAINER_OF(node, struct group, node);
            check_group(sim, broker, group, lists[i]);
            demand += group->demand + demand_of(&group->aside);
            calls += group->in_flight;
            groups++;
        }
    }
    if (groups != broker->groups.count || groups > GROUPS_MAX)
        sim_fail(sim, "%zu groups on lists, %zu in the table", groups, broker->groups.count);
    if (calls != broker->calls_in_flight || calls > sim->plan.core.claims_in_flight_max)
        sim_fail(sim, "%u claims in flight, counted %u", calls, broker->calls_in_flight);
    return demand;
}

/* ---- the rest of core ---- */

static void check_attempts(struct sim *sim, size_t owned, size_t demand)
{
    const struct attempts *attempts = &sim->core.attempts;

    if (attempts->reserved != demand)
        sim_fail(sim, "%zu attempts are reserved for a demand of %zu", attempts->reserved, demand);
    if (attempts->owned != attempts->table.count || owned > attempts->owned ||
        attempts->owned + attempts->reserved > ATTEMPTS_MAX)
        sim_fail(sim, "%zu attempts, %zu in the table, %zu held by sessions", attempts->owned,
                 attempts->table.count, owned);
}

static void check_batcher(struct sim *sim, const struct batcher *batcher, const char *name)
{
    if (batcher->flush_count > FLUSHES_PER_BATCHER_MAX ||
        batcher->in_flight + batcher->spare.count > batcher->flush_count)
        sim_fail(sim, "%s: %u flushes, %u in flight, %zu spare", name, batcher->flush_count,
                 batcher->in_flight, batcher->spare.count);
    if (batcher->later.count > 0 && !timer_is_set(&batcher->later_timer))
        sim_fail(sim, "%s: what is put off has no timer", name);
}

static void check_batchers(struct sim *sim)
{
    const struct finisher *finisher = &sim->core.finisher;

    check_batcher(sim, &sim->core.enqueuer.batcher, "enqueuer");
    check_batcher(sim, &sim->core.enqueuer.keyed.batcher, "enqueues with a key");
    for (size_t i = 0; i <= finisher->shard_count; i++) {
        check_batcher(sim, &finisher->shards[i].completes, "completions");
        check_batcher(sim, &finisher->shards[i].others, "outcomes");
    }
}

static void check_ids(struct sim *sim)
{
    const struct ids *ids = &sim->core.enqueuer.ids;
    int64_t available = 0;

    for (size_t i = 0; i < ids->run_count; i++)
        available += ids->runs[i].last - ids->runs[i].first + 1;
    if (available != ids->available || ids->run_count > ID_RUNS_MAX)
        sim_fail(sim, "%lld ids are available, counted %lld", (long long)available,
                 (long long)ids->available);
}

static void check_timers(struct sim *sim)
{
    const struct timers *timers = &sim->core.timers;

    for (size_t i = 0; i < timers->count; i++)
        if (timers->heap[i]->place != i + 1 ||
            (i > 0 && timers->heap[(i - 1) / 2]->at_us > timers->heap[i]->at_us))
            sim_fail(sim, "the timers' heap is broken");
    if (core_next_us(&sim->core) <= sim->now_us)
        return; /* it fires in the next turn */
}

/* What a lost claim has got is known as soon as the storage can say so. */
static void check_lost_claims(struct sim *sim)
{
    for (size_t i = 0; i < sim->storage.lost_count; i++) {
        const struct lost_claim *lost = &sim->storage.lost[i];
        uint64_t since_us =
            lost->since_us > sim->database.troubled_us ? lost->since_us : sim->database.troubled_us;
        if (sim->now_us > since_us + DOUBT_US_MAX)
            sim_fail(sim, "nobody has asked for %u s what a lost claim had got",
                     (unsigned)(DOUBT_US_MAX / US_PER_S));
    }
}

void check_turn(struct sim *sim)
{
    size_t owned = check_sessions(sim);

    check_attempts(sim, owned, check_groups(sim));
    check_batchers(sim);
    check_ids(sim);
    check_lost_claims(sim);
    check_timers(sim);
    if (sim->core.counter.in_flight != database_count(sim, DB_COUNTS))
        sim_fail(sim, "the counter is wrong about its calls");
    if (core_is_idle(&sim->core) && database_is_idle(sim))
        check_quiet(sim);
}

/* ---- when all is quiet ---- */

static void check_open_attempt(struct sim *sim, const struct stored_attempt *attempt)
{
    if (attempt->holder == 0)
        sim_fail(sim, "attempt (%llu, %u) was claimed and neither handed out nor handed back",
                 (unsigned long long)attempt->receipt.job_id, attempt->receipt.run_lease);
    if (attempt->fate == FATE_KEPT && sim->now_us <= attempt->until_us + GRACE_SLACK_US)
        return;
    if (attempt->fate == FATE_RELEASE && client_at(sim, attempt->holder) != NULL)
        return; /* it was closed while it left: what it holds goes with its connection */
    if (attempt->fate != FATE_HELD || client_at(sim, attempt->holder) == NULL)
        sim_fail(sim, "attempt (%llu, %u) is open, but its session is gone",
                 (unsigned long long)attempt->receipt.job_id, attempt->receipt.run_lease);
    const struct attempt *known = attempts_find(&sim->core.attempts, &attempt->receipt);
    if (known == NULL && !client_at(sim, attempt->holder)->leaving)
        sim_fail(sim, "attempt (%llu, %u) is open, but core has forgotten it",
                 (unsigned long long)attempt->receipt.job_id, attempt->receipt.run_lease);
}

void check_quiet(struct sim *sim)
{
    if (clients_asked(sim) > 0)
        sim_fail(sim, "%zu requests have no answer, and nothing is under way", clients_asked(sim));
    for (struct list_node *node = sim->storage.open.first; node != NULL; node = node->next)
        check_open_attempt(sim, CONTAINER_OF(node, struct stored_attempt, node));
}

void check_end(struct sim *sim)
{
    if (sim->core.attempts.owned + sim->core.attempts.reserved > 0)
        sim_fail(sim, "%zu attempts are owned and %zu reserved at the end",
                 sim->core.attempts.owned, sim->core.attempts.reserved);
    if (sim->core.timers.count > 0)
        sim_fail(sim, "%zu timers are set at the end", sim->core.timers.count);
    for (uint64_t token = 1; token <= sim->ledger.count; token++) {
        const struct wish *wish = ledger_find(sim, token);
        if (wish->told != TOLD_STORED || sim->draining)
            continue;
        const struct stored_job *job = storage_job(sim, wish->id);
        if (job->node.head != &sim->storage.ended)
            sim_fail(sim, "job %lld was acknowledged and has not ended", (long long)job->id);
    }
}
