/* clients: see clients.h. */
#include "clients.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "lives.h"
#include "sim.h"

enum {
    AGAIN_US_MAX = 500 * US_PER_MS, /* until a place is taken again */
    LINGER_US_MAX = 2 * US_PER_S,   /* from core's close to the end of the connection */
    FRAME_BYTES = 100,
    PAST_MAX = 4096,
    FLOOD_MAX = 1500,
    SWEEP_WAIT_MS = 200,
    IDLE_PAUSE_US = 10 * US_PER_MS, /* of a client that can do little */
    SWEEP_PAUSE_US = 20 * US_PER_MS,
    WAITS_MS_MAX = 3000,
    BROKEN_US_MAX = 3 * US_PER_MS, /* until core knows that a peer is gone */
    STALL_US_MAX = 300 * US_PER_MS,
    ABSENCE_US_MAX = 5 * US_PER_S,
    ANSWER_BYTES = 20,
    KEY_LIFE_US = 500 * US_PER_S, /* below the ten minutes that the storage keeps a key */
};

/* ---- the crowd ---- */

struct client *client_at(const struct sim *sim, handle connection)
{
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        if (sim->clients.places[i] != NULL && sim->clients.places[i]->connection == connection)
            return sim->clients.places[i];
    return NULL;
}

size_t clients_count(const struct sim *sim)
{
    size_t count = 0;

    for (size_t i = 0; i < CLIENTS_MAX; i++)
        count += sim->clients.places[i] != NULL;
    return count;
}

size_t clients_asked(const struct sim *sim)
{
    size_t count = 0;

    for (size_t i = 0; i < CLIENTS_MAX; i++)
        if (sim->clients.places[i] != NULL && !sim->clients.places[i]->closed)
            count += sim->clients.places[i]->asked.count;
    return count;
}

static bool same_queues(const struct asked *asked, const struct bytes *queues, size_t count)
{
    if (asked->kind != REQUEST_CLAIM || asked->queue_count != count)
        return false;
    for (size_t i = 0; i < count; i++)
        if (asked->queues[i] != queue_of_name(queues[i]))
            return false;
    return true;
}

size_t clients_demand(const struct sim *sim, const struct bytes *queues, size_t count)
{
    size_t demand = 0;

    for (size_t i = 0; i < CLIENTS_MAX; i++) {
        const struct client *client = sim->clients.places[i];
        if (client == NULL || client->closed)
            continue;
        for (struct list_node *node = client->asked.first; node != NULL; node = node->next) {
            const struct asked *asked = CONTAINER_OF(node, struct asked, node);
            if (!asked->misplaced && same_queues(asked, queues, count))
                demand += asked->wanted;
        }
    }
    return demand;
}

static void note_claim(struct client *client, const struct db_claim *claim, uint64_t turn)
{
    for (struct list_node *node = client->asked.first; node != NULL; node = node->next) {
        struct asked *asked = CONTAINER_OF(node, struct asked, node);
        if (asked->turn <= turn && same_queues(asked, claim->queues, claim->queue_count))
            asked->tried = true;
    }
}

void clients_note_claim(struct sim *sim, const struct db_claim *claim, uint64_t turn)
{
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        if (sim->clients.places[i] != NULL)
            note_claim(sim->clients.places[i], claim, turn);
}

static uint64_t think(struct sim *sim)
{
    return sim->now_us + dice_between(&sim->dice, 1, sim->plan.think_us);
}

/* The sweeper makes none. */
bool clients_trouble(struct sim *sim, unsigned permille)
{
    return !sim->clients.sweeping && dice_permille(&sim->dice, permille);
}

static void open_place(struct sim *sim, size_t place)
{
    struct client *client = mem_zalloc(sizeof *client);

    client->connection = ++sim->clients.last_connection;
    client->reading = true;
    client->gone_us = UINT64_MAX;
    client->opened_us = sim->now_us;
    client->heard_us = sim->now_us;
    client->act_us = think(sim);
    sim->clients.places[place] = client;
    lives_choose(sim, place, client);
    client->session = session_open(&sim->core.sessions, client->connection);
    sim_trace(sim, "c%llu  connects", (unsigned long long)client->connection);
    if (client->session == HANDLE_NONE)
        sim_fail(sim, "a session was refused, with %zu connected", clients_count(sim));
}

static void free_client(struct client *client)
{
    list_pop_front(&client->asked); /* the asked live in the run's arena */
    mem_free(client->held);
    mem_free(client);
}

/* Some come back within the grace, some after it. */
static uint64_t absence(struct sim *sim)
{
    uint64_t grace_us = sim->plan.core.session_grace_us;

    if (sim->plan.resumes == 0 || dice_below(&sim->dice, 2) == 0)
        return dice_below(&sim->dice, AGAIN_US_MAX);
    return dice_below(&sim->dice, grace_us < ABSENCE_US_MAX / 2 ? 2 * grace_us : ABSENCE_US_MAX);
}

static void vanish(struct sim *sim, size_t place)
{
    struct client *client = sim->clients.places[place];
    bool was_closed = client->closed;

    sim_trace(sim, "c%llu  is gone", (unsigned long long)client->connection);
    sim->clients.again_us[place] = sim->now_us + absence(sim);
    sim->clients.mine[place] = client->life;
    client->closed = true; /* nothing may be sent any more */
    session_vanished(&sim->core.sessions, client->session);
    if (!was_closed)
        lives_lose_connection(sim, client);
    sim->clients.places[place] = NULL;
    free_client(client);
}

void client_hold(struct client *client, struct stored_attempt *attempt)
{
    if (client->held_count == client->held_room) {
        client->held_room = client->held_room * 2 + 16;
        client->held = mem_realloc(client->held, client->held_room * sizeof(void *));
    }
    client->held[client->held_count++] = attempt;
}

/* ---- asking ---- */

struct request *client_new_request(enum request_kind kind, uint64_t id)
{
    struct arena arena;
    arena_init(&arena, UNPACK_BYTES_MAX);
    return request_new_take(&arena, kind, id, FRAME_BYTES);
}

static bool id_in_use(const struct client *client, uint64_t id)
{
    for (struct list_node *node = client->asked.first; node != NULL; node = node->next)
        if (CONTAINER_OF(node, struct asked, node)->id == id)
            return true;
    return false;
}

/* Sometimes the id of a request that has no answer yet. */
static uint64_t choose_id(struct sim *sim, struct client *client)
{
    if (client->open && client->asked.first != NULL && clients_trouble(sim, sim->plan.rude / 4))
        return CONTAINER_OF(client->asked.first, struct asked, node)->id;
    return ++client->next_id;
}

struct asked *client_ask(struct sim *sim, struct client *client, enum request_kind kind)
{
    struct asked *asked = sim_alloc(sim, sizeof *asked);

    asked->id = choose_id(sim, client);
    asked->kind = kind;
    asked->since_us = sim->now_us;
    asked->turn = sim->turn;
    asked->restarts = sim->database.restarts;
    asked->misplaced = id_in_use(client, asked->id) || (client->greeted && kind == REQUEST_HELLO) ||
                       (client->leaving && kind != REQUEST_PING);
    return asked;
}

/* Hands the frame to core. */
void client_send(struct sim *sim, struct client *client, struct asked *asked,
                 struct request *request)
{
    static const char *const kinds[] = {"Hello",     "Ping",         "Goodbye", "Enqueue",
                                        "Claim",     "Finish",       "Release", "QueueCounts",
                                        "Heartbeat", "CancelRequest"};
    bool in_use = id_in_use(client, asked->id);

    sim_trace(sim, "c%llu  asks %s, id %llu, of %zu%s", (unsigned long long)client->connection,
              kinds[asked->kind], (unsigned long long)asked->id, asked->count,
              asked->misplaced ? ", out of place" : "");
    client->heard_us = sim->now_us;
    client->greeted = true;
    if (asked->kind == REQUEST_GOODBYE && !asked->misplaced) {
        client->leaving = true;
        if (client->life != NULL)
            life_end(sim, client->life);
    }
    if (in_use)
        client->refused_now = asked;
    else if (!client->closed)
        list_push_back(&client->asked, &asked->node);
    sessions_take_request(&sim->core.sessions, client->session, request);
    if (client->refused_now != NULL && !client->closed)
        sim_fail(sim, "an id in use was not refused");
    client->refused_now = NULL;
}

static void send_plain(struct sim *sim, struct client *client, enum request_kind kind)
{
    struct asked *asked = client_ask(sim, client, kind);
    client_send(sim, client, asked, client_new_request(kind, asked->id));
}

static const char *choose_kind(struct sim *sim, bool *good)
{
    *good = !dice_permille(&sim->dice, sim->plan.bad_items);
    if (*good)
        return KIND_GOOD;
    return dice_below(&sim->dice, 2) == 0 ? KIND_REFUSE : KIND_POISON;
}

static void fill_job(struct sim *sim, struct arena *arena, struct enqueue_order *order,
                     const struct err *invalid)
{
    unsigned queue = (unsigned)dice_below(&sim->dice, sim->plan.queues);
    uint8_t priority = (uint8_t)dice_between(&sim->dice, 1, PRIORITIES);
    char *args = arena_zalloc(arena, TOKEN_TEXT_BYTES);
    bool good;
    const char *kind = choose_kind(sim, &good);

    CHECK(args != NULL);
    snprintf(args, TOKEN_TEXT_BYTES, "%llu",
             (unsigned long long)ledger_wish(sim, queue, priority, good));
    order->job = (struct new_job){
        .queue = arena_copy(arena, name_of_queue(queue)),
        .kind = arena_copy(arena, bytes_of_text(kind)),
        .args = bytes_of_text(args),
        .run_at_us =
            dice_below(&sim->dice, 8) > 0
                ? 0
                : (int64_t)(sim->now_us + dice_between(&sim->dice, 1, (uint64_t)2 * US_PER_S)),
        .max_attempts = (uint16_t)dice_between(&sim->dice, 1, 4),
        .priority = priority};
    if (!good && dice_below(&sim->dice, 3) == 0)
        order->invalid = invalid; /* found before it got here */
}

static void enqueue_plain(struct sim *sim, struct client *client, size_t count)
{
    struct asked *asked = client_ask(sim, client, REQUEST_ENQUEUE);
    struct request *request = client_new_request(REQUEST_ENQUEUE, asked->id);
    struct enqueue_order *orders = request_alloc(request, count * sizeof *orders);
    struct err *invalid = request_alloc(request, sizeof *invalid);

    err_set(invalid, CODE_INVALID_ARGUMENT, "made to be invalid");
    asked->first_token = sim->ledger.count + 1;
    asked->count = count;
    for (size_t i = 0; i < count; i++)
        fill_job(sim, &request->arena, &orders[i], invalid);
    request->in.enqueue.orders = orders;
    request->in.enqueue.count = count;
    client_send(sim, client, asked, request);
}

/* A new request with a key of its own; it may be sent again and again. */
static struct keyed_enqueue *new_keyed(struct sim *sim, size_t count)
{
    struct clients *clients = &sim->clients;
    struct keyed_enqueue *keyed = &clients->keyed[clients->last_key % KEYED_MAX];
    struct enqueue_order *orders = sim_alloc(sim, count * sizeof *orders);
    struct err *invalid = sim_alloc(sim, sizeof *invalid);

    err_set(invalid, CODE_INVALID_ARGUMENT, "made to be invalid");
    *keyed = (struct keyed_enqueue){.key = ++clients->last_key,
                                    .first_token = sim->ledger.count + 1,
                                    .since_us = sim->now_us,
                                    .orders = orders,
                                    .count = count};
    for (size_t i = 0; i < count; i++)
        fill_job(sim, &sim->arena, &orders[i], invalid);
    return keyed;
}

/* One that was sent before, whatever became of it. */
static struct keyed_enqueue *old_keyed(struct sim *sim)
{
    struct clients *clients = &sim->clients;
    uint64_t count = clients->last_key < KEYED_MAX ? clients->last_key : KEYED_MAX;
    struct keyed_enqueue *keyed = &clients->keyed[dice_below(&sim->dice, count)];

    return count > 0 && sim->now_us < keyed->since_us + KEY_LIFE_US ? keyed : NULL;
}

static void copy_jobs(struct request *request, const struct keyed_enqueue *keyed)
{
    struct enqueue_order *orders = request_alloc(request, keyed->count * sizeof *orders);
    char *key = request_alloc(request, TOKEN_TEXT_BYTES);

    for (size_t i = 0; i < keyed->count; i++) {
        orders[i] = keyed->orders[i];
        orders[i].job.args = arena_copy(&request->arena, orders[i].job.args);
        orders[i].job.queue = arena_copy(&request->arena, orders[i].job.queue);
    }
    snprintf(key, TOKEN_TEXT_BYTES, "%llu", (unsigned long long)keyed->key);
    request->in.enqueue.orders = orders;
    request->in.enqueue.count = keyed->count;
    request->in.enqueue.key = bytes_of_text(key);
}

static void enqueue_keyed(struct sim *sim, struct client *client, size_t count)
{
    struct keyed_enqueue *keyed = dice_below(&sim->dice, 2) == 0 ? old_keyed(sim) : NULL;

    if (keyed == NULL)
        keyed = new_keyed(sim, count);
    struct asked *asked = client_ask(sim, client, REQUEST_ENQUEUE);
    struct request *request = client_new_request(REQUEST_ENQUEUE, asked->id);
    asked->keyed = keyed;
    asked->first_token = keyed->first_token;
    asked->count = keyed->count;
    for (size_t i = 0; i < keyed->count; i++) {
        struct wish *wish = ledger_find(sim, keyed->first_token + i);
        wish->keyed = true;
        wish->asks++;
        if (keyed->orders[i].invalid == NULL &&
            bytes_equal(keyed->orders[i].job.kind, bytes_of_text(KIND_POISON)))
            asked->poisoned = true;
    }
    copy_jobs(request, keyed);
    client_send(sim, client, asked, request);
}

static void enqueue(struct sim *sim, struct client *client, size_t count)
{
    if (clients_trouble(sim, sim->plan.keys))
        enqueue_keyed(sim, client, count);
    else
        enqueue_plain(sim, client, count);
}

static void choose_queues(struct sim *sim, struct asked *asked)
{
    unsigned first = (unsigned)dice_below(&sim->dice, sim->plan.queues);
    size_t count = (size_t)dice_between(&sim->dice, 1, sim->plan.queues);

    if (!sim->clients.sweeping && count > 2)
        count = 2;
    if (sim->clients.sweeping)
        count = sim->plan.queues;
    for (size_t i = 0; i < count; i++)
        asked->queues[i] = (first + (unsigned)i) % sim->plan.queues;
    asked->queue_count = count;
}

static void claim(struct sim *sim, struct client *client, uint32_t wanted, uint32_t wait_ms)
{
    struct asked *asked = client_ask(sim, client, REQUEST_CLAIM);
    struct request *request = client_new_request(REQUEST_CLAIM, asked->id);

    choose_queues(sim, asked);
    struct bytes *queues = request_alloc(request, asked->queue_count * sizeof *queues);
    for (size_t i = 0; i < asked->queue_count; i++)
        queues[i] = arena_copy(&request->arena, name_of_queue(asked->queues[i]));
    asked->wanted = wanted;
    asked->wait_ms = wait_ms;
    request->in.claim.queues = queues;
    request->in.claim.queue_count = asked->queue_count;
    request->in.claim.jobs_max = wanted;
    request->in.claim.wait_ms = wait_ms;
    client_send(sim, client, asked, request);
}

/* ---- ending ---- */

static void remember(struct sim *sim, struct stored_attempt *attempt)
{
    struct clients *clients = &sim->clients;

    if (clients->past_count < PAST_MAX)
        clients->past[clients->past_count++] = attempt;
    else
        clients->past[dice_below(&sim->dice, PAST_MAX)] = attempt;
}

static struct stored_attempt *take_held(struct sim *sim, struct client *client)
{
    size_t at = (size_t)dice_below(&sim->dice, client->held_count);
    struct stored_attempt *attempt = client->held[at];

    client->held[at] = client->held[--client->held_count];
    remember(sim, attempt);
    return attempt;
}

static bool has_items(const struct sim *sim, const struct client *client)
{
    return client->held_count > 0 || (sim->plan.rude > 0 && sim->clients.past_count > 0);
}

/* One's own, or, if one is rude, one that was used already, one of others, or none at all. */
static void choose_receipt(struct sim *sim, struct client *client, struct asked_item *item)
{
    bool rude = client->held_count == 0 || clients_trouble(sim, sim->plan.rude);

    item->good = true;
    if (!rude || sim->clients.past_count == 0) {
        item->attempt = take_held(sim, client);
    } else {
        item->attempt = sim->clients.past[dice_below(&sim->dice, sim->clients.past_count)];
    }
    item->receipt = item->attempt->receipt;
    item->attempt->named++;
    if (!rude || dice_below(&sim->dice, 3) > 0)
        return;
    item->attempt->named--;
    item->attempt = NULL; /* forged */
    if (dice_below(&sim->dice, 2) == 0)
        item->receipt.nonce ^= 1 + dice_below(&sim->dice, 5);
    else
        item->receipt.job_id += 1 + dice_below(&sim->dice, 5);
}

static enum job_outcome choose_outcome(struct sim *sim)
{
    if (sim->clients.sweeping || dice_below(&sim->dice, 2) == 0)
        return JOB_COMPLETE;
    return (enum job_outcome)dice_between(&sim->dice, JOB_RETRY, JOB_CANCEL);
}

static void fill_item(struct sim *sim, struct client *client, struct request *request,
                      struct asked_item *item, struct finish_input *input,
                      const struct err *invalid)
{
    bool bad = clients_trouble(sim, sim->plan.bad_items / 2);

    if (bad && dice_below(&sim->dice, 3) == 0) { /* found before it got here */
        input->invalid = invalid;
        return;
    }
    choose_receipt(sim, client, item);
    item->outcome = request->kind == REQUEST_RELEASE ? JOB_RELEASE : choose_outcome(sim);
    if (item->attempt != NULL && item->outcome == JOB_RELEASE)
        item->attempt->release_asked = true;
    input->order.receipt = item->receipt;
    input->order.outcome = item->outcome;
    input->order.delay_ms = (int64_t)dice_between(&sim->dice, 1, 500);
    if (item->outcome == JOB_COMPLETE || item->outcome == JOB_RELEASE || !bad)
        return;
    item->good = false;
    if (item->attempt != NULL)
        item->attempt->named_badly = true;
    if (item->outcome == JOB_SNOOZE)
        input->order.delay_ms = 0; /* the storage says so */
    else
        input->order.error = arena_copy(&request->arena, bytes_of_text(KIND_POISON));
}

static void finish(struct sim *sim, struct client *client, enum request_kind kind, size_t count)
{
    struct asked *asked = client_ask(sim, client, kind);
    struct request *request = client_new_request(kind, asked->id);
    struct finish_input *inputs = request_alloc(request, count * sizeof *inputs);
    struct err *invalid = request_alloc(request, sizeof *invalid);

    err_set(invalid, CODE_INVALID_ARGUMENT, "made to be invalid");
    asked->items = sim_alloc(sim, count * sizeof *asked->items);
    for (size_t i = 0; i < count && has_items(sim, client); i++)
        fill_item(sim, client, request, &asked->items[asked->count++], &inputs[i], invalid);
    request->in.finish.inputs = inputs;
    request->in.finish.count = asked->count;
    client_send(sim, client, asked, request);
}

static void finish_some(struct sim *sim, struct client *client)
{
    size_t most = client->held_count > 0 ? client->held_count : 3;
    enum request_kind kind = dice_below(&sim->dice, 6) == 0 ? REQUEST_RELEASE : REQUEST_FINISH;

    if (!has_items(sim, client))
        return;
    if (most > ITEMS_PER_FINISH_MAX)
        most = ITEMS_PER_FINISH_MAX;
    finish(sim, client, kind, (size_t)dice_between(&sim->dice, 1, most));
}

static void count_queue(struct sim *sim, struct client *client)
{
    struct asked *asked = client_ask(sim, client, REQUEST_COUNTS);
    struct request *request = client_new_request(REQUEST_COUNTS, asked->id);
    unsigned queue = (unsigned)dice_below(&sim->dice, sim->plan.queues);

    asked->serial = sim->storage.counts_serial;
    request->in.counts_queue = arena_copy(&request->arena, name_of_queue(queue));
    client_send(sim, client, asked, request);
}

/* ---- Heartbeat, CancelRequest ---- */

static void beat(struct sim *sim, struct client *client)
{
    size_t count = client->held_count < 20 ? client->held_count : 20;
    struct asked *asked = client_ask(sim, client, REQUEST_HEARTBEAT);
    struct request *request = client_new_request(REQUEST_HEARTBEAT, asked->id);
    struct held_receipt *items = request_alloc(request, (count + 1) * sizeof *items);

    asked->items = sim_alloc(sim, (count + 1) * sizeof *asked->items);
    for (size_t i = 0; i < count; i++)
        asked->items[asked->count++].attempt = client->held[i];
    if (sim->clients.past_count > 0 && clients_trouble(sim, sim->plan.rude))
        asked->items[asked->count++].attempt =
            sim->clients.past[dice_below(&sim->dice, sim->clients.past_count)];
    for (size_t i = 0; i < asked->count; i++)
        client_name_receipt(request, &items[i], &asked->items[i].attempt->receipt);
    request->in.heartbeat.items = items;
    request->in.heartbeat.count = asked->count;
    client_send(sim, client, asked, request);
}

/* A Claim that waits; or any other id. */
static void cancel(struct sim *sim, struct client *client)
{
    struct asked *asked = client_ask(sim, client, REQUEST_CANCEL);
    struct request *request = client_new_request(REQUEST_CANCEL, asked->id);
    struct asked *claim = NULL;

    asked->cancel_id = dice_below(&sim->dice, client->next_id + 2);
    for (struct list_node *node = client->asked.first; node != NULL; node = node->next) {
        struct asked *other = CONTAINER_OF(node, struct asked, node);
        if (other->kind == REQUEST_CLAIM && !other->misplaced &&
            (claim == NULL || dice_below(&sim->dice, 2) == 0))
            claim = other;
    }
    if (claim != NULL && dice_below(&sim->dice, 4) > 0)
        asked->cancel_id = claim->id;
    for (struct list_node *node = client->asked.first; node != NULL; node = node->next) {
        struct asked *other = CONTAINER_OF(node, struct asked, node);
        if (other->kind != REQUEST_CLAIM || other->misplaced || other->id != asked->cancel_id ||
            asked->misplaced)
            continue;
        other->cancelled = true;
        asked->cancels = true;
    }
    request->in.cancel_id = asked->cancel_id;
    client_send(sim, client, asked, request);
}

/* ---- misbehaving ---- */

/* A frame that is no request; or bytes that are no frame. */
static void send_garbage(struct sim *sim, struct client *client)
{
    struct err err;

    err_set(&err, CODE_INVALID_ARGUMENT, "made to be garbage");
    client->heard_us = sim->now_us;
    client->greeted = true;
    client->rude = true;
    if (dice_below(&sim->dice, 2) == 0) {
        session_refuse(&sim->core.sessions, client->session, 0, &err);
        return;
    }
    struct asked *asked = client_ask(sim, client, REQUEST_PING);
    asked->id = ++client->next_id;
    asked->misplaced = true;
    list_push_back(&client->asked, &asked->node);
    session_refuse(&sim->core.sessions, client->session, asked->id, &err);
}

static void flood(struct sim *sim, struct client *client)
{
    uint64_t what = dice_below(&sim->dice, 3);
    uint64_t count = dice_between(&sim->dice, 1, FLOOD_MAX);

    for (uint64_t i = 0; i < count && client->reading && !client->closed; i++) {
        if (what == 0)
            enqueue(sim, client, 1);
        else if (what == 1)
            claim(sim, client, 1, WAITS_MS_MAX);
        else if (has_items(sim, client))
            finish(sim, client, REQUEST_FINISH, 20);
    }
}

static void be_rude(struct sim *sim, struct client *client)
{
    client->rude = client->rude || !client->open;
    switch (dice_below(&sim->dice, 4)) {
    case 0: send_plain(sim, client, REQUEST_HELLO); return;
    case 1: send_garbage(sim, client); return;
    case 2: finish_some(sim, client); return;
    default: enqueue(sim, client, 1); return; /* before Hello, after Goodbye */
    }
}

/* ---- what to do next ---- */

/* None, some, or now and then the longest: where polls are rare, or it would take all the turns. */
static uint32_t choose_wait(struct sim *sim)
{
    bool rare = sim->plan.core.poll_max_us >= (uint64_t)100 * US_PER_MS;

    if (dice_below(&sim->dice, 3) == 0)
        return 0;
    return (uint32_t)dice_below(
        &sim->dice, rare && dice_below(&sim->dice, 50) == 0 ? CLAIM_WAIT_MS_MAX : WAITS_MS_MAX);
}

static void work(struct sim *sim, struct client *client)
{
    static const uint32_t wants[] = {1, 1, 3, 20, CLAIM_JOBS_MAX};
    uint32_t wait_ms = choose_wait(sim);

    switch (dice_below(&sim->dice, 20)) {
    case 0:
        switch (dice_below(&sim->dice, 4)) {
        case 0: send_plain(sim, client, REQUEST_PING); return;
        case 1: beat(sim, client); return;
        default: cancel(sim, client); return;
        }
    case 1: count_queue(sim, client); return;
    case 2:
        if (dice_below(&sim->dice, 5) == 0)
            send_plain(sim, client, REQUEST_GOODBYE);
        return;
    case 3:
    case 4:
    case 5:
    case 6:
    case 7: enqueue(sim, client, (size_t)dice_between(&sim->dice, 1, sim->plan.jobs_max)); return;
    case 8:
    case 9:
    case 10:
    case 11:
    case 12: claim(sim, client, wants[dice_below(&sim->dice, 5)], wait_ms); return;
    default: finish_some(sim, client); return;
    }
}

static void sweep(struct sim *sim, struct client *client)
{
    if (!client->open)
        client_hello(sim, client);
    else if (client->held_count > 0)
        finish(sim, client, REQUEST_FINISH,
               client->held_count < ITEMS_PER_FINISH_MAX ? client->held_count
                                                         : ITEMS_PER_FINISH_MAX);
    else
        claim(sim, client, CLAIM_JOBS_MAX, SWEEP_WAIT_MS);
}

/* Nothing leaves for it; sometimes its connection ends with that. */
static void stall(struct sim *sim, struct client *client)
{
    client->stuck_us = sim->now_us + dice_below(&sim->dice, STALL_US_MAX);
    client->act_us = client->stuck_us + 1;
    if (sim->plan.vanishing > 0 && dice_below(&sim->dice, 4) == 0)
        client->gone_us = client->stuck_us;
}

static void act(struct sim *sim, size_t place)
{
    struct client *client = sim->clients.places[place];
    const struct plan *plan = &sim->plan;

    client->act_us = think(sim);
    if (client->closed || !client->reading || client->leaving)
        client->act_us += IDLE_PAUSE_US;
    if (client->closed && clients_trouble(sim, sim->plan.rude))
        send_plain(sim, client, REQUEST_PING); /* it was on its way: nobody answers */
    if (client->closed || !client->reading)
        return;
    if (sim->clients.sweeping) {
        client->act_us = sim->now_us + SWEEP_PAUSE_US;
        if (client->asked.count == 0)
            sweep(sim, client);
    } else if (dice_permille(&sim->dice, plan->vanishing)) {
        client->broken = true;
        client->gone_us = sim->now_us + dice_below(&sim->dice, BROKEN_US_MAX);
        client->act_us = UINT64_MAX;
    } else if (dice_permille(&sim->dice, plan->silence)) {
        client->act_us =
            sim->now_us + dice_below(&sim->dice, (uint64_t)2 * IDLE_TIMEOUT_MS * US_PER_MS);
    } else if (dice_permille(&sim->dice, plan->rude / 2)) {
        be_rude(sim, client);
    } else if (!client->greeted) {
        client_hello(sim, client);
    } else if (dice_permille(&sim->dice, plan->stalls)) {
        stall(sim, client);
    } else if (dice_permille(&sim->dice, plan->flooding)) {
        flood(sim, client);
    } else if (!client->leaving) {
        work(sim, client);
    }
}

/* At the end: some say Goodbye, some just go; all have gone before long. */
static void leave(struct sim *sim, size_t place)
{
    struct client *client = sim->clients.places[place];

    client->act_us = UINT64_MAX;
    if (client->closed || client->broken)
        return;
    if (client->open && !client->leaving && client->reading && dice_below(&sim->dice, 2) == 0) {
        send_plain(sim, client, REQUEST_GOODBYE);
        return;
    }
    if (!client->leaving || dice_below(&sim->dice, 2) == 0)
        client->gone_us = sim->now_us + dice_below(&sim->dice, US_PER_S);
}

static size_t places_in_use(const struct sim *sim)
{
    return sim->clients.sweeping ? 1 : sim->plan.clients;
}

static void read_all(struct sim *sim, struct client *client)
{
    client->written = client->output;
    if (client->behind_turn == 0)
        return;
    client->behind_turn = 0;
    session_caught_up(&sim->core.sessions, client->session);
}

/* Whether new clients come. */
static bool is_welcoming(const struct sim *sim)
{
    return !sim->clients.leaving && !sim->clients.resting && !sim->draining;
}

static void step_place(struct sim *sim, size_t place)
{
    struct client *client = sim->clients.places[place];

    if (client == NULL) {
        if (is_welcoming(sim) && place < places_in_use(sim) &&
            sim->clients.again_us[place] <= sim->now_us)
            open_place(sim, place);
        return;
    }
    if (client->gone_us <= sim->now_us) {
        vanish(sim, place);
        return;
    }
    if (client->stuck_us <= sim->now_us && !client->broken)
        read_all(sim, client);
    if (sim->clients.leaving && client->act_us != UINT64_MAX)
        leave(sim, place);
    else if (client->act_us <= sim->now_us && !sim->clients.resting)
        act(sim, place);
}

void clients_step(struct sim *sim)
{
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        step_place(sim, i);
    lives_forget(sim);
}

uint64_t clients_next_us(const struct sim *sim)
{
    uint64_t next_us = UINT64_MAX;

    for (size_t i = 0; i < CLIENTS_MAX; i++) {
        const struct client *client = sim->clients.places[i];
        uint64_t at_us = UINT64_MAX;
        if (client != NULL)
            at_us = client->gone_us < client->act_us || sim->clients.resting ? client->gone_us
                                                                             : client->act_us;
        else if (is_welcoming(sim) && i < places_in_use(sim))
            at_us = sim->clients.again_us[i];
        if (client != NULL && client->behind_turn != 0 && client->stuck_us < at_us)
            at_us = client->stuck_us;
        next_us = at_us < next_us ? at_us : next_us;
    }
    return next_us;
}

/* ---- struct env's side ---- */

static void told_lost(struct sim *sim, struct client *client, const struct receipt *receipt)
{
    const struct stored_attempt *attempt = storage_attempt(sim, receipt);
    const struct session *session = session_of(&sim->core.sessions, client->session);
    const struct attempt *known = attempts_find(&sim->core.attempts, receipt);

    client->notices_lost++;
    if (attempt != NULL && attempt->ended_as == 0 && known != NULL &&
        known->owner == &session->attempts)
        sim_fail(sim, "c%llu: was told that it has lost attempt (%llu, %u), which it holds",
                 (unsigned long long)client->connection, (unsigned long long)receipt->job_id,
                 receipt->run_lease);
}

static void told_notice(struct sim *sim, struct client *client, const struct answer *answer)
{
    struct receipt receipt;

    switch (answer->of.notice.kind) {
    case NOTICE_DRAINING:
        if (!sim->draining)
            sim_fail(sim, "a session was told that the proxy drains");
        return;
    case NOTICE_ATTEMPT_LOST:
        if (!receipt_decode(answer->of.notice.receipt, &receipt))
            sim_fail(sim, "a notice of no receipt");
        told_lost(sim, client, &receipt);
        return;
    }
}

/* The connection's own error: it must have a reason, and the close must follow. */
static void told_of_connection(struct sim *sim, struct client *client, const struct answer *answer)
{
    uint64_t silent_us = sim->now_us - client->heard_us;
    bool silent = silent_us >= (uint64_t)IDLE_TIMEOUT_MS * US_PER_MS && client->asked.count == 0;
    bool ungreeted = !client->open && silent_us >= (uint64_t)HANDSHAKE_MS * US_PER_MS;

    if (answer->kind == ANSWER_NOTICE) {
        told_notice(sim, client, answer);
        return;
    }
    if (answer->kind != ANSWER_ERROR)
        sim_fail(sim, "an answer without a request id");
    if (sim->clients.taken_over != NULL && sim->clients.taken_over == client->life)
        client->rude = true; /* reason enough */
    if (answer->of.err->code == CODE_DEADLINE_EXCEEDED && !silent && !ungreeted)
        sim_fail(sim, "a session was ended for a silence of %llu us",
                 (unsigned long long)silent_us);
    if (answer->of.err->code == CODE_UNAVAILABLE && !sim->draining)
        sim_fail(sim, "a session was told that the proxy shuts down");
    if ((answer->of.err->code == CODE_INVALID_ARGUMENT ||
         answer->of.err->code == CODE_FAILED_PRECONDITION) &&
        !client->rude)
        sim_fail(sim, "a session was ended for nothing: %s", answer->of.err->message);
    client->told_error = true;
}

static struct asked *find_asked(struct client *client, uint64_t request_id)
{
    if (client->refused_now != NULL && client->refused_now->id == request_id)
        return client->refused_now;
    for (struct list_node *node = client->asked.first; node != NULL; node = node->next)
        if (CONTAINER_OF(node, struct asked, node)->id == request_id)
            return CONTAINER_OF(node, struct asked, node);
    return NULL;
}

static void tell(struct sim *sim, struct client *client, uint64_t request_id,
                 const struct answer *answer)
{
    struct asked *asked = find_asked(client, request_id);

    if (asked == NULL)
        sim_fail(sim, "c%llu: an answer to id %llu, which has been answered or was never asked",
                 (unsigned long long)client->connection, (unsigned long long)request_id);
    if (asked == client->refused_now)
        client->refused_now = NULL;
    else
        list_remove(&client->asked, &asked->node);
    ledger_told(sim, client, asked, answer);
}

/* What one claim call brought for it may come in several answers: that is one turn. */
static void check_pace(struct sim *sim, const struct client *client, const struct answer *answer)
{
    if (answer->kind == ANSWER_CLAIM && answer->of.claim.count > 0 && client->behind_turn != 0 &&
        client->behind_turn != sim->turn)
        sim_fail(sim, "c%llu: is dealt jobs although it is behind with reading",
                 (unsigned long long)client->connection);
}

static void note_pace(struct sim *sim, struct client *client)
{
    if (client->behind_turn == 0 && client->output - client->written >= DEALT_BYTES_MAX)
        client->behind_turn = sim->turn;
}

/* Where the frame ends. */
static uint64_t put_out(struct sim *sim, struct client *client, const struct answer *answer)
{
    if (client->broken)
        return SENT_NOWHERE;
    check_pace(sim, client, answer);
    client->output += ANSWER_BYTES;
    if (answer->kind == ANSWER_CLAIM)
        client->output += answer->of.claim.count * sim->plan.job_bytes;
    if (client->stuck_us <= sim->now_us)
        client->written = client->output;
    else /* not to the end */
        client->written += dice_below(&sim->dice, client->output - client->written);
    note_pace(sim, client);
    return client->output;
}

uint64_t clients_written(struct sim *sim, handle connection)
{
    const struct client *client = client_at(sim, connection);

    if (client == NULL)
        sim_fail(sim, "what connection %llu has written, which is gone",
                 (unsigned long long)connection);
    return client->written;
}

uint64_t clients_send(struct sim *sim, handle connection, uint64_t request_id,
                      const struct answer *answer)
{
    static const char *const kinds[] = {
        "HelloOk",   "Pong",          "GoodbyeOk",   "EnqueueOk",       "ClaimOk", "FinishOk",
        "ReleaseOk", "QueueCountsOk", "HeartbeatOk", "CancelRequestOk", "Notice",  "Error"};
    struct client *client = client_at(sim, connection);

    if (client == NULL || client->closed)
        sim_fail(sim, "an answer to connection %llu, which is %s", (unsigned long long)connection,
                 client == NULL ? "gone" : "closed");
    sim_trace(sim, "c%llu  is told %s of id %llu%s%s", (unsigned long long)connection,
              kinds[answer->kind], (unsigned long long)request_id,
              answer->kind == ANSWER_ERROR ? ": " : "",
              answer->kind == ANSWER_ERROR ? answer->of.err->message : "");
    client->sent_at = put_out(sim, client, answer);
    if (request_id == 0)
        told_of_connection(sim, client, answer);
    else
        tell(sim, client, request_id, answer);
    return client->sent_at;
}

void clients_set_reading(struct sim *sim, handle connection, bool reading)
{
    struct client *client = client_at(sim, connection);

    if (client == NULL)
        sim_fail(sim, "reading of connection %llu, which is gone", (unsigned long long)connection);
    client->reading = reading;
}

void clients_close(struct sim *sim, handle connection)
{
    struct client *client = client_at(sim, connection);

    if (client == NULL || client->closed)
        sim_fail(sim, "connection %llu was closed twice", (unsigned long long)connection);
    sim_trace(sim, "c%llu  is closed", (unsigned long long)connection);
    client->closed = true;
    client->gone_us = sim->now_us + dice_below(&sim->dice, LINGER_US_MAX);
    lives_lose_connection(sim, client);
}

/* ---- the object ---- */

void clients_init(struct sim *sim)
{
    sim->clients.past = sim_alloc(sim, PAST_MAX * sizeof(void *));
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        sim->clients.again_us[i] = sim->now_us + dice_below(&sim->dice, AGAIN_US_MAX);
}

void clients_free(struct sim *sim)
{
    CHECK(clients_count(sim) == 0);
}
