/* attempts: see attempts.h. */
#include "core/attempts.h"

#include "base/limits.h"
#include "base/mem.h"

enum { SPARE_MAX = 4096 };

void attempts_init(struct attempts *attempts, uint64_t seed)
{
    *attempts = (struct attempts){.owned = 0};
    hash_init(&attempts->table, seed);
}

void attempts_free(struct attempts *attempts)
{
    CHECK(attempts->owned == 0);
    for (struct list_node *node; (node = list_pop_front(&attempts->spare)) != NULL;)
        mem_free(CONTAINER_OF(node, struct attempt, node));
    hash_free(&attempts->table);
}

bool attempts_reserve(struct attempts *attempts, size_t count)
{
    if (attempts->owned + attempts->reserved + count > ATTEMPTS_MAX)
        return false;
    attempts->reserved += count;
    return true;
}

void attempts_unreserve(struct attempts *attempts, size_t count)
{
    CHECK(attempts->reserved >= count);
    attempts->reserved -= count;
}

static uint64_t id_hash(const struct attempts *attempts, const struct receipt *receipt)
{
    return hash_of_u64(&attempts->table, receipt->job_id, receipt->run_lease);
}

void attempts_add(struct attempts *attempts, struct list *owner, const struct receipt *receipt)
{
    struct list_node *spare = list_pop_front(&attempts->spare);
    struct attempt *attempt =
        spare != NULL ? CONTAINER_OF(spare, struct attempt, node) : mem_zalloc(sizeof *attempt);

    attempts_unreserve(attempts, 1);
    attempts->owned++;
    attempt->receipt = *receipt;
    attempt->owner = owner;
    attempt->endings = 0;
    attempt->sent_at = 0;
    list_push_back(owner, &attempt->node);
    hash_add(&attempts->table, &attempt->by_id, id_hash(attempts, receipt));
}

struct attempt *attempts_find(const struct attempts *attempts, const struct receipt *receipt)
{
    uint64_t hash = id_hash(attempts, receipt);

    for (struct hash_node *node = hash_first(&attempts->table, hash); node != NULL;
         node = hash_next(node)) {
        struct attempt *attempt = CONTAINER_OF(node, struct attempt, by_id);
        if (receipt_equal(&attempt->receipt, receipt))
            return attempt;
    }
    return NULL;
}

void attempt_orphan(struct attempt *attempt, enum job_outcome leave_as)
{
    list_remove(attempt->owner, &attempt->node);
    attempt->owner = NULL;
    attempt->leave_as = leave_as;
}

void attempt_move(struct attempt *attempt, struct list *owner)
{
    list_remove(attempt->owner, &attempt->node);
    attempt->owner = owner;
    attempt->sent_at = 0;
    list_push_back(owner, &attempt->node);
}

void attempts_note_sent(const struct list *owner, size_t count, uint64_t sent_at)
{
    struct list_node *node = owner->last;

    for (; count > 0; count--, node = node->prev)
        CONTAINER_OF(node, struct attempt, node)->sent_at = sent_at;
}

void attempts_end(struct attempts *attempts, struct attempt *attempt)
{
    if (attempt->owner != NULL)
        list_remove(attempt->owner, &attempt->node);
    hash_remove(&attempts->table, &attempt->by_id);
    attempts->owned--;
    if (attempts->spare.count < SPARE_MAX)
        list_push_front(&attempts->spare, &attempt->node);
    else
        mem_free(attempt);
}
