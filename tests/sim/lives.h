/* lives: sessions as their clients know them, over one connection and the next.
 *
 * What: a life begins with a HelloOk that does not resume, and ends when no Hello may resume it any
 * more. When its connection is lost, each attempt gets its fate; when a Hello resumes it, they
 * follow. Hello is asked and judged here; all other requests in clients.c, whose helpers are named
 * here too.
 */
#ifndef SIM_LIVES_H
#define SIM_LIVES_H

#include "clients.h"

/* Whom a new connection wants to be. */
void lives_choose(struct sim *sim, size_t place, struct client *client);

/* Core has been told, or has decided, that the connection is over. */
void lives_lose_connection(struct sim *sim, struct client *client);

void life_end(struct sim *sim, struct life *life);

/* Those that core has forgotten. */
void lives_forget(struct sim *sim);

void client_hello(struct sim *sim, struct client *client);
void client_name_receipt(struct request *request, struct held_receipt *out,
                         const struct receipt *receipt);

/* HelloOk. */
void client_opened(struct sim *sim, struct client *client, const struct asked *asked,
                   const struct answer *answer);

struct life *life_of_session(const struct sim *sim, handle session);

/* Of clients.c: */
bool clients_trouble(struct sim *sim, unsigned permille);
struct request *client_new_request(enum request_kind kind, uint64_t id);
struct asked *client_ask(struct sim *sim, struct client *client, enum request_kind kind);
void client_send(struct sim *sim, struct client *client, struct asked *asked,
                 struct request *request);

#endif
