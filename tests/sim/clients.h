/* clients: fake sessions that do everything a client can do, right and wrong.
 *
 * What: each place in the crowd is a client that connects, greets, asks, works, and leaves or
 * vanishes; then another one takes the place. Frames reach core only while it reads the session.
 * Each request that core owes an answer is an `asked`; env->send finds it and takes it off.
 */
#ifndef SIM_CLIENTS_H
#define SIM_CLIENTS_H

#include "base/list.h"
#include "core/request.h"
#include "plan.h"
#include "storage.h"

struct sim;

enum { KEYED_MAX = 32, GRACE_SLACK_US = 300 };

struct asked_item {
    struct receipt receipt;
    struct stored_attempt *attempt; /* NULL: forged */
    enum job_outcome outcome;
    bool good;
};

/* One request without an answer. */
struct asked {
    struct list_node node; /* client->asked */
    uint64_t id;
    uint64_t since_us;
    enum request_kind kind;
    bool misplaced; /* to be refused: a second Hello, an id in use, after Goodbye */
    uint64_t first_token;
    size_t count; /* jobs or items */
    unsigned queues[QUEUES_MAX];
    size_t queue_count;
    uint32_t wanted;
    uint32_t wait_ms;
    struct asked_item *items;
    const struct keyed_enqueue *keyed; /* Enqueue: with an idempotency key */
    bool poisoned;                     /* one of its jobs fails the whole call */
    struct life *resumes;              /* Hello: the session it names, if there is one */
    bool says_held;
    uint64_t cancel_id;
    bool cancels;      /* a Claim waits under that id */
    bool cancelled;    /* Claim: by a CancelRequest */
    unsigned restarts; /* of the server, when it came */
    bool tried;        /* a claim call that began after it came has ended */
    uint64_t turn;     /* when it came */
    int64_t serial;    /* of the counts made so far */
};

/* A session as its clients know it: its id, and where it is. */
struct life {
    struct list_node node; /* clients->lives, while a Hello may resume it */
    uint8_t id[SESSION_ID_BYTES];
    handle connection; /* the latest */
    handle session;
    bool away;
    uint64_t until_us; /* away */
};

/* What an Enqueue with an idempotency key says, each time anew. */
struct keyed_enqueue {
    uint64_t key;
    uint64_t first_token;
    uint64_t since_us;
    const struct enqueue_order *orders;
    size_t count;
};

struct client {
    handle connection;
    handle session;
    struct life *life;    /* after HelloOk */
    uint64_t output;      /* bytes that core gave */
    uint64_t written;     /* of these, have left */
    uint64_t stuck_us;    /* nothing leaves until then */
    uint64_t behind_turn; /* when too much had not left; 0: it is not so */
    uint64_t sent_at;     /* where the answer being judged ends */
    struct life *to_resume;
    bool resumed;
    bool broken;         /* and core does not know yet */
    size_t notices_lost; /* ATTEMPT_LOST */
    struct list asked;
    struct stored_attempt **held; /* handed out to it, and not yet ended by it */
    size_t held_count;
    size_t held_room;
    uint64_t next_id;
    uint64_t act_us;  /* when it does something again */
    uint64_t gone_us; /* when its connection ends; UINT64_MAX: not now */
    uint64_t opened_us;
    uint64_t heard_us;
    bool greeted;
    bool open;                 /* HelloOk came */
    bool reading;              /* core takes its frames */
    bool leaving;              /* said Goodbye */
    bool rude;                 /* it gave core a reason to end the connection */
    bool closed;               /* core closed it */
    bool told_error;           /* with id 0: the close must follow */
    struct asked *refused_now; /* the request being handed over has an id in use */
};

struct clients {
    struct client *places[CLIENTS_MAX];
    uint64_t again_us[CLIENTS_MAX]; /* when an empty place is taken */
    struct stored_attempt **past;   /* receipts that somebody has used */
    size_t past_count;
    handle last_connection;
    struct list lives;
    struct life *mine[CLIENTS_MAX]; /* the last session at this place */
    struct life *taken_over;        /* by the Hello being handed over */
    struct keyed_enqueue keyed[KEYED_MAX];
    uint64_t last_key;
    bool resting;  /* the end: nobody asks for more */
    bool sweeping; /* the end: one worker takes all that is there */
    bool leaving;  /* the end: everybody goes, nobody comes */
};

void clients_init(struct sim *sim);
void clients_free(struct sim *sim);

/* Whoever is to act by now does. */
void clients_step(struct sim *sim);
uint64_t clients_next_us(const struct sim *sim);

struct client *client_at(const struct sim *sim, handle connection);
size_t clients_count(const struct sim *sim);
size_t clients_asked(const struct sim *sim);

/* How many jobs all unanswered claims for this list of queues may take. */
size_t clients_demand(const struct sim *sim, const struct bytes *queues, size_t count);

/* A claim call that was submitted in that turn has ended. */
void clients_note_claim(struct sim *sim, const struct db_claim *claim, uint64_t turn);

/* struct env's side. */
uint64_t clients_send(struct sim *sim, handle connection, uint64_t request_id,
                      const struct answer *answer);
uint64_t clients_written(struct sim *sim, handle connection);
void clients_set_reading(struct sim *sim, handle connection, bool reading);
void clients_close(struct sim *sim, handle connection);

void client_hold(struct client *client, struct stored_attempt *attempt);

#endif
