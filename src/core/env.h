/* env: everything core needs from the outside world: time, randomness, the database, the clients.
 *
 * Why: core is pure logic. The daemon fills this with the event loop, libpq and sockets; a test or
 * the seeded simulator fills it with fakes. Core never blocks and never calls the system. Rules:
 * submit() never refuses and never answers from inside the call. send() may not call back into
 * core; a connection that breaks is reported later through session_vanished().
 */
#ifndef CORE_ENV_H
#define CORE_ENV_H

#include <stdbool.h>
#include <stdint.h>

#include "base/slots.h"
#include "core/answer.h"
#include "core/db.h"

#define SENT_NOWHERE UINT64_MAX

struct env {
    void *ctx;
    uint64_t (*now_us)(void *ctx);
    uint64_t (*random_u64)(void *ctx);

    void (*submit)(void *ctx, struct db_call *call);
    unsigned (*idle_connections)(void *ctx); /* that could start a call right now */
    /* Ends the control session, and with it all that it holds; core_control_lost follows. */
    void (*drop_control)(void *ctx, const struct err *why);

    /* Returns where the frame ends in the connection's output; SENT_NOWHERE: it takes none any
     * more. */
    uint64_t (*send)(void *ctx, handle connection, uint64_t request_id,
                     const struct answer *answer);
    /* How much of that output has left for the peer; known until session_vanished has returned. */
    uint64_t (*written)(void *ctx, handle connection);
    void (*set_reading)(void *ctx, handle connection, bool reading);
    void (*close)(void *ctx, handle connection); /* after everything sent has left */
};

#endif
