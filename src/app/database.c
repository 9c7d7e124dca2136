/* database: see database.h. */
#include "app/database.h"

#include <stdio.h>
#include <unistd.h>

#include "app/decode_rows.h"
#include "app/encode_calls.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "pg/pool.h"
#include "pg/rows.h"

/* Decoded jobs and statuses of one reply; args and texts stay in the PGresult. */
enum { REPLY_BYTES_MAX = 1024 * 1024, TICKETS_SPARE_MAX = 64 };

/* What ties a call of core to a call of the pipe while it is under way. */
struct ticket {
    struct pipe_call call;
    struct database *database;
    struct db_call *core_call;
};

struct database {
    struct call_settings settings;
    struct database_handlers handlers;
    struct params params;
    struct arena reply_arena;
    struct pool *data;
    struct pool *control;
    struct list spare; /* tickets */
};

static struct ticket *ticket_of(struct pipe_call *call)
{
    return CONTAINER_OF(call, struct ticket, call);
}

static void encode_ticket(struct pipe_call *call, struct params *params)
{
    const struct ticket *ticket = ticket_of(call);
    encode_call(ticket->core_call, &ticket->database->settings, params);
}

static void free_ticket(struct database *database, struct ticket *ticket)
{
    if (database->spare.count < TICKETS_SPARE_MAX)
        list_push_front(&database->spare, &ticket->call.node);
    else
        mem_free(ticket);
}

/* Ids are good on the server, and in the schema, that gave them out only. */
static bool suits(const struct pipe_call *call, const struct backend *backend)
{
    const struct db_call *core_call = CONTAINER_OF(call, const struct ticket, call)->core_call;
    return server_run_equal(&core_call->args.enqueue.server, &backend->server);
}

static uint32_t deadline_ms(enum db_op op)
{
    switch (op) {
    case DB_CLAIM:
    case DB_CLAIM_RESULT: return CALL_CLAIM_MS;
    case DB_RESERVE_IDS:
    case DB_ENQUEUE:
    case DB_ENQUEUE_ONCE:
    case DB_JOBS_EXIST:
    case DB_BACKEND_GONE:
    case DB_COMPLETE:
    case DB_FINISH: return CALL_MS;
    case DB_COUNTS:
    case DB_ANNOUNCE:
    case DB_MEMBERSHIP:
    case DB_MAINTENANCE: break;
    }
    return CALL_LONG_MS;
}

/* It was committed, but we do not understand what it said: the schema is not the one we were made
 * for. */
static void refuse_reply(const struct db_call *call, struct db_reply *reply)
{
    const char *name = statement_name(call_statement(call));

    log_event(LOG_ERROR, "reply_malformed", "statement=%s", name);
    reply->outcome = OUTCOME_UNKNOWN;
    reply->backend.pid = 0;
    err_set(&reply->err, CODE_INTERNAL,
            "the storage answered %s in a form this proxy does not know", name);
}

static void on_ticket_done(struct pipe_call *pipe_call, const struct pipe_result *result)
{
    struct ticket *ticket = ticket_of(pipe_call);
    struct database *database = ticket->database;
    struct db_call *call = ticket->core_call;
    struct db_reply reply = {.outcome = result->outcome, .backend = result->backend};

    free_ticket(database, ticket);
    if (result->outcome != OUTCOME_DONE)
        reply.err = result->err;
    else if (!decode_rows(call, result->rows, &database->reply_arena, &reply))
        refuse_reply(call, &reply);
    call->done(call, &reply);
    arena_reset(&database->reply_arena);
}

void database_submit(struct database *database, struct db_call *call)
{
    struct list_node *spare = list_pop_front(&database->spare);
    struct ticket *ticket =
        spare != NULL ? CONTAINER_OF(spare, struct ticket, call.node) : mem_zalloc(sizeof *ticket);

    ticket->database = database;
    ticket->core_call = call;
    ticket->call.statement = call_statement(call);
    ticket->call.encode = encode_ticket;
    ticket->call.done = on_ticket_done;
    ticket->call.suits = call->op == DB_ENQUEUE || call->op == DB_ENQUEUE_ONCE ? suits : NULL;
    ticket->call.deadline_ms = deadline_ms(call->op);
    switch (statement_role(ticket->call.statement)) {
    case ROLE_DATA: pool_submit(database->data, &ticket->call); return;
    case ROLE_CONTROL: pool_submit(database->control, &ticket->call); return;
    }
}

unsigned database_idle(const struct database *database)
{
    return pool_idle(database->data);
}

/* ---- the connections ---- */

static void on_control_up(void *ctx, const char *name)
{
    struct database *database = ctx;
    database->handlers.control_up(database->handlers.ctx, name);
}

static void on_control_lost(void *ctx)
{
    struct database *database = ctx;
    database->handlers.control_lost(database->handlers.ctx);
}

static void on_data_lost(void *ctx)
{
    struct database *database = ctx;
    database->handlers.data_lost(database->handlers.ctx);
}

/* A failover: the sockets still lead to what was the primary. Or the schema was made anew: what the
 * connections know is of the one before. */
static void on_useless(void *ctx, const struct err *err, const struct server_run *server)
{
    struct database *database = ctx;

    if (strcmp(err->sqlstate, SQLSTATE_OTHER_SCHEMA) == 0)
        log_event(LOG_WARN, "pg_schema_replaced", "sqlstate=%s", err->sqlstate);
    else
        log_event(LOG_WARN, "pg_read_only", "sqlstate=%s", err->sqlstate);
    pool_leave(database->control, err, server);
    pool_leave(database->data, err, server);
}

/* What our own connections announce is known already. */
static void on_notified(void *ctx, int by_pid, const char *payload)
{
    struct database *database = ctx;

    if (!pool_has_backend(database->data, by_pid) && !pool_has_backend(database->control, by_pid))
        database->handlers.notified(database->handlers.ctx, bytes_of_text(payload));
}

void database_drop_control(struct database *database, const struct err *why)
{
    pool_leave(database->control, why, NULL);
}

/* ---- the object ---- */

/* Tells people which process an instance number stands for. */
static void name_instance(struct call_settings *settings)
{
    char host[NAME_BYTES_MAX / 2];

    if (gethostname(host, sizeof host) != 0)
        host[0] = '\0';
    host[sizeof host - 1] = '\0';
    snprintf(settings->name, sizeof settings->name, "%s/%ld", host, (long)getpid());
}

static struct pool_setup pool_setup_of(struct database *database, struct loop *loop,
                                       struct rng *rng, const struct conf *conf)
{
    return (struct pool_setup){.loop = loop,
                               .rng = rng,
                               .params = &database->params,
                               .url = conf->database_url,
                               .schema = conf->schema,
                               .on_useless = on_useless,
                               .ctx = database};
}

void database_configure(struct database *database, const struct conf *conf)
{
    struct call_settings *settings = &database->settings;

    settings->queue_lap_ms = conf->queue_lap_ms;
    settings->claim_lap_ms = conf->claim_lap_ms;
    settings->completed_retention_ms = conf->completed_retention_ms;
    settings->closed_ms = conf->closed_ms;
}

struct database *database_new(struct loop *loop, struct rng *rng, const struct conf *conf,
                              const struct database_handlers *handlers)
{
    struct database *database = mem_zalloc(sizeof *database);
    struct pool_setup data = pool_setup_of(database, loop, rng, conf);
    struct pool_setup control = pool_setup_of(database, loop, rng, conf);

    database->handlers = *handlers;
    database->settings.instance = (int64_t)(rng_u64(rng) >> 1);
    database->settings.instance_missing_ms = conf->instance_missing_ms;
    name_instance(&database->settings);
    database_configure(database, conf);
    params_init(&database->params);
    arena_init(&database->reply_arena, REPLY_BYTES_MAX);
    data.name = "data";
    data.role = ROLE_DATA;
    data.size = conf->pool_size;
    data.lifetime_ms = conf->connection_lifetime_ms;
    data.on_lost = on_data_lost;
    control.name = "control";
    control.role = ROLE_CONTROL;
    control.size = 1;
    control.bound = true;
    control.on_notified = on_notified;
    control.on_up = on_control_up;
    control.on_lost = on_control_lost;
    database->data = pool_new(&data);
    database->control = pool_new(&control);
    return database;
}

void database_free(struct database *database)
{
    pool_free(database->data);
    pool_free(database->control);
    while (database->spare.first != NULL)
        mem_free(CONTAINER_OF(list_pop_front(&database->spare), struct ticket, call.node));
    params_free(&database->params);
    arena_free(&database->reply_arena);
    mem_free(database);
}

size_t database_running(const struct database *database)
{
    return pool_running(database->data) + pool_running(database->control);
}

void database_reap(struct database *database)
{
    pool_reap(database->control);
    pool_reap(database->data);
}

void database_dispatch(struct database *database)
{
    pool_dispatch(database->control);
    pool_dispatch(database->data);
}
