/* database: core's database: its calls become statements on the pool's or the control connection,
 * and rows become replies.
 *
 * The control connection carries membership and maintenance only: so a saturated pool never delays
 * them, and losing the session loses the leadership and the work.
 */
#ifndef APP_DATABASE_H
#define APP_DATABASE_H

#include "base/conf.h"
#include "base/rng.h"
#include "core/db.h"
#include "ev/loop.h"

struct database;

struct database_handlers {
    void *ctx;
    void (*control_up)(void *ctx, const char *database); /* it listens */
    void (*control_lost)(void *ctx);
    void (*data_lost)(void *ctx);                    /* one of the data connections */
    void (*notified)(void *ctx, struct bytes queue); /* by none of our connections */
};

struct database *database_new(struct loop *loop, struct rng *rng, const struct conf *conf,
                              const struct database_handlers *handlers);
/* Laps and retention, from the next step of maintenance on; the rest of conf is not looked at. */
void database_configure(struct database *database, const struct conf *conf);

void database_free(struct database *database); /* nothing may be running */

void database_submit(struct database *database, struct db_call *call);
unsigned database_idle(const struct database *database);

/* The control connection ends at once; control_lost follows. */
void database_drop_control(struct database *database, const struct err *why);

size_t database_running(const struct database *database); /* calls that wait or run */

/* Turn hooks, before and after core's. */
void database_reap(struct database *database);
void database_dispatch(struct database *database);

#endif
