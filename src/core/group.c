/* group: see group.h. */
#include "core/group.h"

#include "base/mem.h"
#include "core/session.h"

struct group *group_new(struct broker *broker, const struct bytes *queues, size_t count,
                        struct bytes key)
{
    struct group *group = mem_zalloc(sizeof *group);
    const uint8_t *at;

    CHECK(count <= CLAIM_QUEUES_MAX);
    group->broker = broker;
    group->key = bytes_of(mem_copy(key.data, key.len), key.len);
    group->queue_count = count;
    at = group->key.data;
    for (size_t i = 0; i < count; i++) {
        group->queues[i] = bytes_of(at + 1, queues[i].len); /* behind its length byte */
        at += 1 + queues[i].len;
    }
    CHECK(at == group->key.data + group->key.len);
    return group;
}

void group_free(struct group *group)
{
    CHECK(!group_has_claims(group) && !group->in_flight && group->doubts == 0);
    CHECK(group->unreadable == 0);
    mem_free((void *)(uintptr_t)group->key.data);
    mem_free(group);
}

bool group_has_queue(const struct group *group, struct bytes queue)
{
    for (size_t i = 0; i < group->queue_count; i++)
        if (bytes_equal(group->queues[i], queue))
            return true;
    return false;
}

bool group_has_claims(const struct group *group)
{
    return group->seats.count + group->aside.count > 0;
}

static bool is_aside(const struct seat *seat)
{
    return list_has(&seat->group->aside, &seat->in_group);
}

struct seat *group_find_seat(const struct group *group, const struct session *session)
{
    for (struct list_node *node = session->seats.first; node != NULL; node = node->next) {
        struct seat *seat = CONTAINER_OF(node, struct seat, in_session);
        if (seat->group == group)
            return seat;
    }
    return NULL;
}

struct seat *group_seat(struct group *group, struct session *session)
{
    struct seat *seat = group_find_seat(group, session);

    if (seat != NULL)
        return seat;
    seat = mem_zalloc(sizeof *seat);
    seat->group = group;
    seat->session = session;
    list_push_back(session->behind ? &group->aside : &group->seats, &seat->in_group);
    list_push_back(&session->seats, &seat->in_session);
    return seat;
}

void group_add_claim(struct seat *seat, struct claim *claim)
{
    claim->seat = seat;
    claim->joined_call = seat->group->calls_started;
    list_push_back(&seat->claims, &claim->node);
    seat->wanted += claim->wanted;
    if (!is_aside(seat))
        seat->group->demand += claim->wanted;
    seat->session->claims_waiting++;
    seat->session->jobs_wanted += claim->wanted;
}

void group_move_seat(struct seat *seat)
{
    struct group *group = seat->group;
    bool aside = seat->session->behind;

    if (aside == is_aside(seat))
        return;
    CHECK(!aside || group->demand >= seat->wanted);
    group->demand = aside ? group->demand - seat->wanted : group->demand + seat->wanted;
    list_remove(seat->in_group.head, &seat->in_group);
    list_push_back(aside ? &group->aside : &group->seats, &seat->in_group);
}

void group_remove_claim(struct claim *claim)
{
    struct seat *seat = claim->seat;
    struct group *group = seat->group;

    if (list_has(&group->overdue, &claim->overdue))
        list_remove(&group->overdue, &claim->overdue);
    list_remove(&seat->claims, &claim->node);
    CHECK(seat->wanted >= claim->wanted && seat->session->claims_waiting > 0);
    seat->wanted -= claim->wanted;
    if (!is_aside(seat)) {
        CHECK(group->demand >= claim->wanted);
        group->demand -= claim->wanted;
    }
    seat->session->claims_waiting--;
    seat->session->jobs_wanted -= claim->wanted;
    if (seat->claims.count > 0)
        return;
    list_remove(seat->in_group.head, &seat->in_group);
    list_remove(&seat->session->seats, &seat->in_session);
    mem_free(seat);
}

static struct claim *claim_of(struct list_node *node)
{
    return node != NULL ? CONTAINER_OF(node, struct claim, node) : NULL;
}

static struct seat *seat_of(struct list_node *node)
{
    return CONTAINER_OF(node, struct seat, in_group);
}

static void give(struct seat *seat, struct claimed_job *job)
{
    struct claim *claim = seat->open;

    job->next = NULL;
    if (claim->last != NULL)
        claim->last->next = job;
    else
        claim->first = job;
    claim->last = job;
    if (++claim->got == claim->wanted)
        seat->open = claim_of(claim->node.next);
}

/* Seats with room are at the front and take turns; a seat without goes behind them all. Who was
 * served least stands first the next time. */
size_t group_deal(struct group *group, struct claimed_job *jobs, size_t count)
{
    struct list full = {NULL, NULL, 0};
    size_t dealt = 0;

    for (struct list_node *node = group->seats.first; node != NULL; node = node->next)
        seat_of(node)->open = claim_of(seat_of(node)->claims.first);
    while (dealt < count && group->seats.count > 0) {
        struct seat *seat = seat_of(list_pop_front(&group->seats));
        give(seat, &jobs[dealt++]);
        list_push_back(seat->open != NULL ? &group->seats : &full, &seat->in_group);
    }
    for (struct list_node *node; (node = list_pop_front(&full)) != NULL;)
        list_push_back(&group->seats, node);
    return dealt;
}

size_t seat_served(const struct seat *seat)
{
    size_t served = 0;

    for (struct list_node *node = seat->claims.first; node != NULL && claim_of(node)->got > 0;
         node = node->next)
        served++;
    return served;
}

bool claim_was_tried(const struct claim *claim)
{
    return claim->seat->group->calls_ended > claim->joined_call;
}
