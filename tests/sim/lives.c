/* lives: see lives.h. */
#include "lives.h"

#include "base/clock.h"
#include "base/limits.h"
#include "sim.h"

/* ---- sessions that outlive their connection ---- */

struct life *life_of_session(const struct sim *sim, handle session)
{
    for (struct list_node *node = sim->clients.lives.first; node != NULL; node = node->next)
        if (CONTAINER_OF(node, struct life, node)->session == session)
            return CONTAINER_OF(node, struct life, node);
    return NULL;
}

void life_end(struct sim *sim, struct life *life)
{
    if (life->node.head != NULL)
        list_remove(&sim->clients.lives, &life->node);
}

/* What becomes of the attempts of a connection that is no more. */
static void part(struct sim *sim, const struct client *client, bool kept)
{
    uint64_t until_us = sim->now_us + sim->plan.core.session_grace_us;

    for (struct stored_attempt *at = NULL; (at = storage_next_attempt(sim, at)) != NULL;) {
        if (at->holder != client->connection)
            continue;
        at->fate = kept && at->sent_at <= client->written ? FATE_KEPT : FATE_RELEASE;
        at->until_us = until_us;
    }
}

static bool is_away(const struct sim *sim, handle session)
{
    const struct session *known = session_of(&sim->core.sessions, session);
    return known != NULL && known->state == SESSION_AWAY;
}

/* Core has been told, or has decided, that the connection is over. */
void lives_lose_connection(struct sim *sim, struct client *client)
{
    struct life *life = client->life;
    bool kept = life != NULL && !client->leaving && !sim->draining;

    part(sim, client, kept);
    if (life == NULL || life->connection != client->connection)
        return;
    life->away = true;
    life->until_us = sim->now_us + sim->plan.core.session_grace_us;
    if (!kept || !is_away(sim, life->session)) /* it held nothing */
        life_end(sim, life);
}

void lives_forget(struct sim *sim)
{
    for (struct list_node *node = sim->clients.lives.first, *next; node != NULL; node = next) {
        struct life *life = CONTAINER_OF(node, struct life, node);
        next = node->next;
        if (life->away && !is_away(sim, life->session))
            life_end(sim, life);
    }
}

/* One's own last session; or somebody's, who may be there; or none. */
void lives_choose(struct sim *sim, size_t place, struct client *client)
{
    const struct list *lives = &sim->clients.lives;

    if (!clients_trouble(sim, sim->plan.resumes))
        return;
    client->to_resume = sim->clients.mine[place];
    if (lives->count == 0 || dice_below(&sim->dice, 4) > 0)
        return;
    struct list_node *node = lives->first;
    for (uint64_t skip = dice_below(&sim->dice, lives->count); skip > 0; skip--)
        node = node->next;
    client->to_resume = CONTAINER_OF(node, struct life, node);
}

/* ---- Hello ---- */

void client_name_receipt(struct request *request, struct held_receipt *out,
                         const struct receipt *receipt)
{
    uint8_t *token = request_alloc(request, RECEIPT_BYTES);

    receipt_encode(receipt, token);
    *out = (struct held_receipt){bytes_of(token, RECEIPT_BYTES), *receipt, true};
}

/* What arrived on the last connection; now and then one was not read, or one is not its own. */
static size_t list_held(struct sim *sim, struct client *client, const struct life *life,
                        struct request *request, struct held_receipt *held)
{
    size_t count = 0;

    for (struct stored_attempt *at = NULL; (at = storage_next_attempt(sim, at)) != NULL;) {
        bool own = at->holder == life->connection && at->fate != FATE_RELEASE;
        if (!own || at->told_over || count + 1 >= ITEMS_PER_FINISH_MAX ||
            dice_below(&sim->dice, 8) == 0)
            continue;
        at->listed = client->connection;
        client_name_receipt(request, &held[count++], &at->receipt);
    }
    if (clients_trouble(sim, sim->plan.rude) && sim->clients.past_count > 0) {
        struct stored_attempt *other =
            sim->clients.past[dice_below(&sim->dice, sim->clients.past_count)];
        other->listed = client->connection;
        client_name_receipt(request, &held[count++], &other->receipt);
    }
    return count;
}

static size_t count_not_held(const struct sim *sim, const struct client *client,
                             const struct held_receipt *held, size_t count)
{
    const struct session *session = session_of(&sim->core.sessions, client->session);
    size_t missing = 0;

    for (size_t i = 0; i < count; i++) {
        const struct attempt *known = attempts_find(&sim->core.attempts, &held[i].receipt);
        missing += known == NULL || session == NULL || known->owner != &session->attempts;
    }
    return missing;
}

void client_hello(struct sim *sim, struct client *client)
{
    static struct held_receipt held[ITEMS_PER_FINISH_MAX];
    struct asked *asked = client_ask(sim, client, REQUEST_HELLO);
    struct request *request = client_new_request(REQUEST_HELLO, asked->id);
    struct life *life = client->to_resume;
    uint8_t id[SESSION_ID_BYTES];
    size_t count = 0;

    if (life != NULL) {
        memcpy(id, life->id, sizeof id);
        if (clients_trouble(sim, sim->plan.rude)) { /* nobody's */
            id[dice_below(&sim->dice, sizeof id)] ^= 1;
            life = NULL;
        }
        request->in.hello.session_id = arena_copy(&request->arena, bytes_of(id, sizeof id));
    }
    if (life != NULL && life->node.head != NULL && dice_below(&sim->dice, 3) > 0) {
        asked->says_held = true;
        count = list_held(sim, client, life, request, held);
    }
    asked->resumes = life != NULL && life->node.head != NULL ? life : NULL;
    request->in.hello.says_held = asked->says_held;
    request->in.hello.held = request_alloc(request, count * sizeof held[0]);
    memcpy((void *)(uintptr_t)request->in.hello.held, held, count * sizeof held[0]);
    request->in.hello.held_count = count;
    sim->clients.taken_over = asked->resumes;
    client_send(sim, client, asked, request);
    sim->clients.taken_over = NULL;
    if (client->resumed && !asked->misplaced &&
        client->notices_lost != count_not_held(sim, client, held, count))
        sim_fail(sim, "c%llu: told of %zu lost attempts of the %zu it listed, but %zu are not its",
                 (unsigned long long)client->connection, client->notices_lost, count,
                 count_not_held(sim, client, held, count));
}

/* Whether a session with this id may be there; at the very end of its grace both are right. */
static bool may_be_resumed(const struct sim *sim, const struct life *life)
{
    return life != NULL &&
           (!life->away || sim->now_us <= life->until_us + GRACE_SLACK_US || sim->draining);
}

static bool must_be_resumed(const struct sim *sim, const struct life *life)
{
    return life != NULL && !sim->draining && (!life->away || sim->now_us < life->until_us);
}

/* The attempts follow their session: all of them, or those that were listed. */
static void follow(struct sim *sim, struct client *client, const struct asked *asked, handle from)
{
    for (struct stored_attempt *at = NULL; (at = storage_next_attempt(sim, at)) != NULL;) {
        if (at->holder != from || at->fate != FATE_KEPT)
            continue;
        at->fate = FATE_RELEASE;
        if (asked->says_held && at->listed != client->connection)
            continue;
        at->fate = FATE_HELD;
        at->holder = client->connection;
        at->sent_at = 0;
        if (at->ended_as == 0)
            client_hold(client, at);
    }
}

void client_opened(struct sim *sim, struct client *client, const struct asked *asked,
                   const struct answer *answer)
{
    struct life *life = asked->resumes;
    bool resumed = answer->of.hello.resumed;

    if (resumed && !may_be_resumed(sim, life))
        sim_fail(sim, "a session was resumed that %s",
                 life == NULL ? "nobody has" : "had lost its client for longer than the grace");
    if (!resumed && must_be_resumed(sim, life))
        sim_fail(sim, "a session was not resumed within its grace");
    if (answer->of.hello.grace_ms != sim->plan.core.session_grace_us / US_PER_MS)
        sim_fail(sim, "HelloOk says a grace of %u ms", answer->of.hello.grace_ms);
    if (resumed && memcmp(answer->of.hello.session_id, life->id, SESSION_ID_BYTES) != 0)
        sim_fail(sim, "a session was resumed under another id");
    client->open = true;
    client->resumed = resumed;
    if (resumed) {
        follow(sim, client, asked, life->connection);
    } else {
        life = sim_alloc(sim, sizeof *life);
        memcpy(life->id, answer->of.hello.session_id, SESSION_ID_BYTES);
        list_push_back(&sim->clients.lives, &life->node);
    }
    client->life = life;
    life->connection = client->connection;
    life->session = client->session;
    life->away = false;
}
