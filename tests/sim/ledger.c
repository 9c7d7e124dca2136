/* ledger: see ledger.h. */
#include "ledger.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "lives.h"
#include "sim.h"

void ledger_free(struct ledger *ledger)
{
    mem_free(ledger->wishes);
}

/* ---- wishes for jobs ---- */

uint64_t ledger_wish(struct sim *sim, unsigned queue, uint8_t priority, bool good)
{
    struct ledger *ledger = &sim->ledger;

    if (ledger->count == ledger->room) {
        ledger->room = ledger->room * 2 + 256;
        ledger->wishes = mem_realloc(ledger->wishes, ledger->room * sizeof *ledger->wishes);
    }
    ledger->wishes[ledger->count] =
        (struct wish){.queue = queue, .priority = priority, .good = good};
    return ++ledger->count;
}

struct wish *ledger_find(struct sim *sim, uint64_t token)
{
    CHECK(token >= 1 && token <= sim->ledger.count);
    return &sim->ledger.wishes[token - 1];
}

/* By a key: then each Enqueue is answered for itself, and any of them may store it. */
static bool is_repeated(const struct wish *wish)
{
    return wish->keyed && wish->asks > 1;
}

void ledger_stored(struct sim *sim, uint64_t token, int64_t id)
{
    struct wish *wish = ledger_find(sim, token);

    if (wish->stored)
        sim_fail(sim, "job %llu was stored twice: as %lld and %lld", (unsigned long long)token,
                 (long long)wish->id, (long long)id);
    if (wish->told == TOLD_NOT_STORED && !is_repeated(wish))
        sim_fail(sim, "job %llu was stored after its client was told that it was not",
                 (unsigned long long)token);
    wish->stored = true;
    wish->id = id;
}

void ledger_tried(struct sim *sim, uint64_t token, int64_t id)
{
    struct wish *wish = ledger_find(sim, token);

    if (wish->keyed)
        return;
    if (wish->under_way)
        sim_fail(sim, "job %llu is in two calls", (unsigned long long)token);
    if (wish->told != TOLD_NOTHING)
        sim_fail(sim, "job %llu is tried after it was answered", (unsigned long long)token);
    wish->under_way = true;
    if (!wish->stored)
        wish->id = id;
}

void ledger_answered(struct sim *sim, uint64_t token)
{
    ledger_find(sim, token)->under_way = false;
}

/* ---- answers ---- */

/* Whether the reason that an error gives is one. */
static void judge_err(struct sim *sim, const struct client *client, const struct asked *asked,
                      const struct err *err)
{
    bool reason = sim->database.ever_failed;

    if (err->retryable != code_retryable(err->code))
        sim_fail(sim, "error %s says the wrong thing of trying again", code_name(err->code));
    if (asked->misplaced)
        return;                        /* judged by its place alone */
    if (err->code == CODE_UNAVAILABLE) /* the database can be too slow for all that it is asked */
        reason = reason || sim->draining ||
                 sim->now_us > asked->since_us + (uint64_t)REQUEST_MS * US_PER_MS;
    if (err->code == CODE_INVALID_ARGUMENT)
        reason = reason || asked->poisoned;
    if (err->code == CODE_DEADLINE_EXCEEDED && asked->kind == REQUEST_ENQUEUE && !asked->keyed)
        reason = sim->now_us > asked->since_us + (uint64_t)REQUEST_MS * US_PER_MS ||
                 sim->database.restarts > asked->restarts;
    if (err->code == CODE_ABORTED) /* the storage was busy with it, and time is over */
        reason = reason || (sim->plan.busy_items > 0 &&
                            sim->now_us > asked->since_us + (uint64_t)REQUEST_MS * US_PER_MS);
    if (err->code == CODE_RESOURCE_EXHAUSTED)
        reason = asked->kind == REQUEST_CLAIM && client->asked.count > CLAIMS_PER_SESSION_MAX;
    if (!reason)
        sim_fail(sim, "request %llu got %s (%s) without a reason", (unsigned long long)asked->id,
                 code_name(err->code), err->message);
}

static void told_job(struct sim *sim, const struct client *client, const struct asked *asked,
                     struct wish *wish, const struct enqueue_result *result)
{
    if (result->err == NULL) {
        const struct stored_job *job = storage_job(sim, result->job_id);
        if (job == NULL || !wish->stored || wish->id != result->job_id)
            sim_fail(sim, "a job was answered %lld, but nothing of it is committed",
                     (long long)result->job_id);
        wish->told = TOLD_STORED;
        return;
    }
    enum told told = result->err->code == CODE_DEADLINE_EXCEEDED ? TOLD_UNKNOWN : TOLD_NOT_STORED;
    if (wish->told != TOLD_STORED)
        wish->told = told;
    if (told == TOLD_NOT_STORED && wish->stored && !is_repeated(wish))
        sim_fail(sim, "a job was answered %s, but it is stored as %lld",
                 code_name(result->err->code), (long long)wish->id);
    if (wish->good)
        judge_err(sim, client, asked, result->err);
}

static void told_enqueue(struct sim *sim, const struct client *client, const struct asked *asked,
                         const struct answer *answer)
{
    if (answer->of.enqueue.count != asked->count)
        sim_fail(sim, "an Enqueue of %zu jobs got %zu results", asked->count,
                 answer->of.enqueue.count);
    for (size_t i = 0; i < asked->count; i++)
        told_job(sim, client, asked, ledger_find(sim, asked->first_token + i),
                 &answer->of.enqueue.results[i]);
}

/* An Enqueue that was refused as a whole. */
static void told_enqueue_err(struct sim *sim, const struct client *client,
                             const struct asked *asked, const struct err *err)
{
    struct enqueue_result result = {.err = err};

    for (size_t i = 0; i < asked->count; i++)
        told_job(sim, client, asked, ledger_find(sim, asked->first_token + i), &result);
}

static bool waits_for(const struct asked *asked, unsigned queue)
{
    for (size_t i = 0; i < asked->queue_count; i++)
        if (asked->queues[i] == queue)
            return true;
    return false;
}

static void told_claimed(struct sim *sim, struct client *client, const struct asked *asked,
                         const struct claimed_job *job)
{
    struct stored_attempt *attempt = storage_attempt(sim, &job->receipt);

    if (attempt == NULL)
        sim_fail(sim, "job %llu was handed out, but no claim of it is committed",
                 (unsigned long long)job->receipt.job_id);
    if (attempt->holder != 0)
        sim_fail(sim, "attempt (%llu, %u) was handed out twice",
                 (unsigned long long)job->receipt.job_id, job->receipt.run_lease);
    if (attempt->ended_as != 0 && !attempt->by_stranger)
        sim_fail(sim, "attempt (%llu, %u) was handed out after it was handed back",
                 (unsigned long long)job->receipt.job_id, job->receipt.run_lease);
    if (attempt->job->unreadable)
        sim_fail(sim, "attempt (%llu, %u) was handed out, which cannot be read",
                 (unsigned long long)job->receipt.job_id, job->receipt.run_lease);
    if (!waits_for(asked, attempt->job->queue) ||
        !bytes_equal(job->queue, name_of_queue(attempt->job->queue)))
        sim_fail(sim, "a job of queue q%u came to a claim that did not ask for it",
                 attempt->job->queue);
    if (storage_token(job->args) != attempt->job->token)
        sim_fail(sim, "job %lld came with the args of another", (long long)attempt->job->id);
    attempt->holder = client->connection;
    attempt->sent_at = client->sent_at;
    client_hold(client, attempt);
}

/* Whether a call is under way that may bring jobs for it. */
static bool is_being_served(const struct sim *sim, const struct asked *asked)
{
    struct bytes names[QUEUES_MAX];
    struct db_claim claim = {.queues = names, .queue_count = asked->queue_count};

    for (size_t i = 0; i < asked->queue_count; i++)
        names[i] = name_of_queue(asked->queues[i]);
    return database_claims(sim, &claim);
}

/* It said that there is nothing: was its time over, and was that found out? */
static void judge_empty(struct sim *sim, const struct client *client, const struct asked *asked)
{
    if (sim->now_us < asked->since_us + (uint64_t)asked->wait_ms * US_PER_MS)
        sim_fail(sim, "a Claim was answered empty before its wait of %u ms was over",
                 asked->wait_ms);
    if (is_being_served(sim, asked))
        sim_fail(sim, "a Claim was answered empty while a call for it is under way");
    if (!asked->tried && client->behind_turn == 0)
        sim_fail(sim, "a Claim was answered empty, but nobody has looked since it came");
}

static void told_claim(struct sim *sim, struct client *client, const struct asked *asked,
                       const struct answer *answer)
{
    size_t count = 0;

    for (const struct claimed_job *job = answer->of.claim.first; job != NULL; job = job->next) {
        told_claimed(sim, client, asked, job);
        count++;
    }
    if (count != answer->of.claim.count || count > asked->wanted)
        sim_fail(sim, "a Claim for %u jobs got %zu, and says %zu", asked->wanted, count,
                 answer->of.claim.count);
    if (asked->cancelled && count > 0)
        sim_fail(sim, "a Claim was cancelled, and got %zu jobs", count);
    if (count == 0 && !client->leaving && !sim->draining && !asked->cancelled)
        judge_empty(sim, client, asked);
}

static void told_item(struct sim *sim, const struct client *client, const struct asked *asked,
                      const struct asked_item *item, const struct finish_result *result)
{
    struct stored_attempt *attempt = item->attempt;
    bool ended = attempt != NULL && attempt->ended_as != 0;
    bool same = ended && attempt->ended_as == item->outcome;
    bool fits = false;

    if (ended && result->status != FINISH_ABORTED && result->status != FINISH_INVALID)
        attempt->told_over = true;
    switch (result->status) {
    case FINISH_DONE: fits = same && ++attempt->told_done == 1; break;
    case FINISH_ALREADY_DONE: fits = same; break;
    case FINISH_STALE: fits = ended && !same; break;
    case FINISH_NOT_FOUND: fits = attempt == NULL; break;
    case FINISH_INVALID: fits = attempt == NULL || attempt->named_badly; break;
    case FINISH_ABORTED:
        /* Or it was ended by somebody else: also by a drain that hands back what is held. */
        fits = !ended || attempt->named > 1 || attempt->by_stranger ||
               attempt->holder != client->connection || sim->draining;
        if (item->good && (attempt == NULL || attempt->busy_until_us == 0))
            judge_err(sim, client, asked, result->err);
        break;
    }
    if (!fits)
        sim_fail(sim, "receipt (%llu, %u): told status %d of outcome %d, but %s %d",
                 (unsigned long long)item->receipt.job_id, item->receipt.run_lease,
                 (int)result->status, (int)item->outcome,
                 attempt == NULL ? "there is no such attempt" : "it ended as",
                 attempt == NULL ? 0 : (int)attempt->ended_as);
}

static void told_finish(struct sim *sim, struct client *client, const struct asked *asked,
                        const struct answer *answer)
{
    if (answer->of.finish.count != asked->count)
        sim_fail(sim, "%zu outcomes got %zu statuses", asked->count, answer->of.finish.count);
    for (size_t i = 0; i < asked->count; i++) {
        told_item(sim, client, asked, &asked->items[i], &answer->of.finish.results[i]);
        if (answer->of.finish.results[i].status == FINISH_ABORTED &&
            asked->items[i].attempt != NULL &&
            asked->items[i].attempt->holder == client->connection)
            client_hold(client, asked->items[i].attempt);
    }
}

static void told_counts(struct sim *sim, const struct asked *asked, const struct answer *answer)
{
    if (answer->of.counts->waiting_external <= asked->serial)
        sim_fail(sim, "counts are older than the question");
    if (answer->of.counts->waiting_external > sim->storage.counts_serial)
        sim_fail(sim, "counts that nobody made");
}

static void told_heartbeat(struct sim *sim, const struct client *client, const struct asked *asked,
                           const struct answer *answer)
{
    if (answer->of.heartbeat.count != asked->count)
        sim_fail(sim, "a Heartbeat of %zu got %zu statuses", asked->count,
                 answer->of.heartbeat.count);
    for (size_t i = 0; i < asked->count; i++) {
        const struct stored_attempt *attempt = asked->items[i].attempt;
        bool own = attempt->holder == client->connection;
        bool ok = answer->of.heartbeat.statuses[i] == HEARTBEAT_OK;
        if (ok && (!own || attempt->told_over))
            sim_fail(sim, "a Heartbeat says that attempt (%llu, %u) is held, which it is not",
                     (unsigned long long)attempt->receipt.job_id, attempt->receipt.run_lease);
        if (!ok && own && attempt->ended_as == 0 && !sim->draining)
            sim_fail(sim, "a Heartbeat says that attempt (%llu, %u) is lost, which it is not",
                     (unsigned long long)attempt->receipt.job_id, attempt->receipt.run_lease);
    }
}

static void told_cancel(struct sim *sim, const struct client *client, const struct asked *asked,
                        const struct answer *answer)
{
    if (answer->of.cancelled != asked->cancels)
        sim_fail(sim, "a CancelRequest was answered %d, but %s", (int)answer->of.cancelled,
                 asked->cancels ? "a Claim was waiting" : "no Claim was waiting");
    for (struct list_node *node = client->asked.first; node != NULL; node = node->next)
        if (CONTAINER_OF(node, struct asked, node)->cancelled)
            sim_fail(sim, "a Claim was cancelled, and still has no answer");
}

static void told_err(struct sim *sim, struct client *client, const struct asked *asked,
                     const struct err *err)
{
    switch (asked->kind) {
    case REQUEST_ENQUEUE: told_enqueue_err(sim, client, asked, err); return;
    case REQUEST_FINISH:
    case REQUEST_RELEASE:
        for (size_t i = 0; i < asked->count; i++) /* not known yet: it may ask again */
            if (asked->items[i].attempt != NULL &&
                asked->items[i].attempt->holder == client->connection)
                client_hold(client, asked->items[i].attempt);
        break;
    case REQUEST_HELLO:
    case REQUEST_PING:
    case REQUEST_GOODBYE:
    case REQUEST_CLAIM:
    case REQUEST_COUNTS:
    case REQUEST_HEARTBEAT:
    case REQUEST_CANCEL: break;
    }
    judge_err(sim, client, asked, err);
}

static void expect(struct sim *sim, const struct asked *asked, enum request_kind kind)
{
    if (asked->kind != kind || asked->misplaced)
        sim_fail(sim, "request %llu of kind %d (%s) got the answer of kind %d",
                 (unsigned long long)asked->id, (int)asked->kind,
                 asked->misplaced ? "to be refused" : "in order", (int)kind);
}

void ledger_told(struct sim *sim, struct client *client, struct asked *asked,
                 const struct answer *answer)
{
    switch (answer->kind) {
    case ANSWER_HELLO:
        expect(sim, asked, REQUEST_HELLO);
        client_opened(sim, client, asked, answer);
        return;
    case ANSWER_PONG: expect(sim, asked, REQUEST_PING); return;
    case ANSWER_GOODBYE:
        expect(sim, asked, REQUEST_GOODBYE);
        client->told_error = true; /* the close must follow */
        if (client->asked.count > 0 && !sim->draining)
            sim_fail(sim, "Goodbye was answered before %zu other requests", client->asked.count);
        return;
    case ANSWER_ENQUEUE:
        expect(sim, asked, REQUEST_ENQUEUE);
        told_enqueue(sim, client, asked, answer);
        return;
    case ANSWER_CLAIM:
        expect(sim, asked, REQUEST_CLAIM);
        told_claim(sim, client, asked, answer);
        return;
    case ANSWER_FINISH:
        expect(sim, asked, REQUEST_FINISH);
        told_finish(sim, client, asked, answer);
        return;
    case ANSWER_RELEASE:
        expect(sim, asked, REQUEST_RELEASE);
        told_finish(sim, client, asked, answer);
        return;
    case ANSWER_COUNTS:
        expect(sim, asked, REQUEST_COUNTS);
        told_counts(sim, asked, answer);
        return;
    case ANSWER_HEARTBEAT:
        expect(sim, asked, REQUEST_HEARTBEAT);
        told_heartbeat(sim, client, asked, answer);
        return;
    case ANSWER_CANCEL:
        expect(sim, asked, REQUEST_CANCEL);
        told_cancel(sim, client, asked, answer);
        return;
    case ANSWER_NOTICE: sim_fail(sim, "a notice under a request id");
    case ANSWER_ERROR: told_err(sim, client, asked, answer->of.err); return;
    }
}
