/* pipe: see pipe.h, and for libpq's grammar: per statement its results and one NULL, per Sync one
 * PGRES_PIPELINE_SYNC without a NULL. After a lost connection there are NULLs for ever and no Sync.
 */
#include "pg/pipe.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "pg/hosts.h"
#include "pg/rows.h"
#include "pg/schema.h"
#include "pg/url.h"

enum {
    CONNECT_MS = 10 * 1000, /* all hosts together; for their names as much again */
    NULLS_MAX = 2,          /* in a row from a living connection */
};

struct pipe {
    struct pipe_setup with;
    struct hosts hosts;    /* to connect to; none while resolving */
    struct lookup *lookup; /* while resolving */
    struct err not_found;  /* a name of which nothing is known; CODE_OK: none */
    PGconn *connection;    /* NULL while resolving */
    struct watch *watch;
    int watched_fd;
    enum pipe_state state;
    uint64_t since_us; /* of the names' lookup, then of the connection attempt */
    struct backend backend;
    struct list owed;
    struct list replays; /* calls that were surely not run, and are to be elsewhere */
    /* The segment that is being read: */
    PGresult *rows;
    bool failed;
    struct err err;
    PGresult *catalogue;   /* while checking */
    struct err broken_err; /* from ENDING on: why */
};

static void on_ready(void *ctx, unsigned ready);
static void start_preparing(struct pipe *pipe);

static void set_state(struct pipe *pipe, enum pipe_state next)
{
    static const unsigned legal[] = {
        [PIPE_RESOLVING] = 1u << PIPE_CONNECTING | 1u << PIPE_BROKEN,
        [PIPE_CONNECTING] = 1u << PIPE_CHECKING | 1u << PIPE_BROKEN,
        [PIPE_CHECKING] = 1u << PIPE_PREPARING | 1u << PIPE_BROKEN,
        [PIPE_PREPARING] = 1u << PIPE_READY | 1u << PIPE_BROKEN,
        [PIPE_READY] = 1u << PIPE_ENDING | 1u << PIPE_BROKEN,
        [PIPE_ENDING] = 1u << PIPE_BROKEN,
        [PIPE_BROKEN] = 0,
    };

    CHECK((legal[pipe->state] & 1u << next) != 0);
    pipe->state = next;
}

/* ---- the socket, which libpq may change under us ---- */

static void unwatch(struct pipe *pipe)
{
    watch_free(pipe->watch);
    pipe->watch = NULL;
    pipe->watched_fd = -1;
}

static void watch_socket(struct pipe *pipe, unsigned wanted)
{
    int fd = PQsocket(pipe->connection);

    if (fd != pipe->watched_fd)
        unwatch(pipe);
    if (fd < 0)
        return;
    if (pipe->watch == NULL)
        pipe->watch = watch_new(pipe->with.loop, fd, on_ready, pipe);
    pipe->watched_fd = fd;
    watch_want(pipe->watch, wanted);
}

void pipe_break(struct pipe *pipe, const struct err *err)
{
    if (pipe->state == PIPE_BROKEN)
        return;
    if (pipe->state != PIPE_ENDING)
        pipe->broken_err = *err;
    set_state(pipe, PIPE_BROKEN);
    lookup_free(pipe->lookup);
    pipe->lookup = NULL;
    unwatch(pipe);
    loop_again(pipe->with.loop); /* the owner looks at the end of the turn */
}

/* While connecting: perhaps only because a host is missing whose name was not found. */
static void break_with_text(struct pipe *pipe, const char *text)
{
    bool is_missing = pipe->state == PIPE_CONNECTING && pipe->not_found.code != CODE_OK;
    struct err err;

    err_set(&err, CODE_UNAVAILABLE, "%s%s%s", text, is_missing ? "; " : "",
            is_missing ? pipe->not_found.message : "");
    pipe_break(pipe, &err);
}

static void break_with_libpq(struct pipe *pipe)
{
    char text[ERR_MESSAGE_BYTES];

    if (pipe->failed) { /* the server said why before it closed, e.g. 57P01 */
        pipe_break(pipe, &pipe->err);
        return;
    }
    url_failure(pipe->connection, &pipe->hosts, text, sizeof text);
    break_with_text(pipe, text[0] != '\0' ? text : "the connection to Postgres was lost");
}

/* ---- reading ---- */

/* Preparing fails like this where the schema, or a function of it, is not there. */
static bool is_unmigrated(const struct pipe *pipe, const char *sqlstate)
{
    return pipe->state == PIPE_PREPARING && sqlstate != NULL &&
           (strcmp(sqlstate, "3F000") == 0 || strcmp(sqlstate, "42883") == 0);
}

static void note_error(struct pipe *pipe, const PGresult *result)
{
    const char *message = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    const char *sqlstate = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    if (pipe->failed && pipe->err.sqlstate[0] != '\0')
        return; /* the first one with a SQLSTATE is the cause */
    pipe->failed = true;
    err_set(&pipe->err, CODE_INTERNAL, "%s%s",
            message != NULL ? message : "the connection to Postgres was lost",
            is_unmigrated(pipe, sqlstate) ? "; run awa-proxy migrate" : "");
    err_set_sqlstate(&pipe->err, sqlstate);
}

static void clear_segment(struct pipe *pipe)
{
    PQclear(pipe->rows);
    pipe->rows = NULL;
    pipe->failed = false;
}

/* The statement is gone, or was of another schema: surely not done, and so are those behind it. */
static bool is_void(const struct err *err)
{
    return strcmp(err->sqlstate, "26000") == 0 || strcmp(err->sqlstate, SQLSTATE_OTHER_SCHEMA) == 0;
}

/* These say that the connection, or its prepared statements, can not be used any more. */
static bool is_fatal(const struct err *err)
{
    return is_void(err) || strncmp(err->sqlstate, "57P", 3) == 0 ||
           strncmp(err->sqlstate, "08", 2) == 0 || strcmp(err->sqlstate, "25006") == 0 ||
           strcmp(err->sqlstate, "0A000") == 0;
}

/* Once: where it is gone again, something takes it away each time. */
static bool is_to_replay(const struct pipe *pipe, const struct pipe_call *call)
{
    return pipe->failed && is_void(&pipe->err) && !call->replayed;
}

static void answer_call(struct pipe *pipe, struct pipe_call *call)
{
    struct pipe_result result = {.outcome = pipe->failed ? OUTCOME_NOT_DONE : OUTCOME_DONE,
                                 .backend = pipe->backend};

    if (pipe->failed)
        result.err = pipe->err;
    else
        result.rows = pipe->rows;
    if (!pipe->failed && pipe->rows == NULL) {
        result.outcome = OUTCOME_UNKNOWN; /* committed, but what it said is missing */
        result.backend.pid = 0;
        err_set(&result.err, CODE_INTERNAL, "%s returned no rows", statement_name(call->statement));
    }
    call->done(call, &result);
}

static void end_if_fatal(struct pipe *pipe)
{
    if (pipe->state == PIPE_READY && pipe->failed && is_fatal(&pipe->err)) {
        set_state(pipe, PIPE_ENDING);
        pipe->broken_err = pipe->err;
    }
    if (pipe->state == PIPE_ENDING && (pipe->owed.count == 0 || !is_void(&pipe->broken_err)))
        pipe_break(pipe, &pipe->broken_err);
}

static void end_call(struct pipe *pipe)
{
    struct pipe_call *call = CONTAINER_OF(list_pop_front(&pipe->owed), struct pipe_call, node);

    if (pipe->owed.count > 0)
        CONTAINER_OF(pipe->owed.first, struct pipe_call, node)->since_us = clock_mono_us();
    if (is_to_replay(pipe, call))
        list_push_back(&pipe->replays, &call->node);
    else
        answer_call(pipe, call);
    end_if_fatal(pipe);
}

static bool read_identity(struct pipe *pipe)
{
    enum { PID, STARTED, SERVER_STARTED, TIMELINE, COLUMNS };
    static const size_t widths[COLUMNS] = {4, 8, 8, 4};
    const PGresult *rows = pipe->rows;
    int64_t fields[COLUMNS] = {0};

    if (rows == NULL || PQntuples(rows) != 1 || PQnfields(rows) != COLUMNS)
        return false;
    for (int i = 0; i < COLUMNS; i++) {
        struct bytes value = bytes_of(PQgetvalue(rows, 0, i), (size_t)PQgetlength(rows, 0, i));
        bool standby = i == TIMELINE && PQgetisnull(rows, 0, i);
        if (!standby && !value_int(value, widths[i], &fields[i]))
            return false;
    }
    pipe->backend = (struct backend){.pid = (int32_t)fields[PID],
                                     .started = fields[STARTED],
                                     .server = {.started = fields[SERVER_STARTED],
                                                .timeline = (int32_t)fields[TIMELINE],
                                                .schema_id = pipe->backend.server.schema_id}};
    return pipe->backend.pid != 0;
}

/* The calls of a standby would fail in many ways, XX000 among them. */
static void break_as_standby(struct pipe *pipe)
{
    struct err err;

    err_set(&err, CODE_UNAVAILABLE, "the server is a standby: it takes no writes");
    err_set_sqlstate(&err, "25006");
    pipe_break(pipe, &err);
}

static void end_preparing(struct pipe *pipe)
{
    if (pipe->failed)
        pipe_break(pipe, &pipe->err);
    else if (!read_identity(pipe))
        break_with_text(pipe, "Postgres did not say which backend it is");
    else if (pipe->backend.server.timeline == 0)
        break_as_standby(pipe);
    else
        set_state(pipe, PIPE_READY);
}

static bool is_idle_transaction(PGTransactionStatusType status)
{
    return status == PQTRANS_IDLE ||
           status == PQTRANS_ACTIVE; /* active: the next segment already runs */
}

/* The catalogue and, if there is one, the ledger have been read. */
static void end_checking(struct pipe *pipe)
{
    struct err err;

    if (pipe->catalogue == NULL || (pipe->rows == NULL && schema_has_ledger(pipe->catalogue))) {
        pipe_break(pipe, &pipe->err);
        return;
    }
    enum code code = schema_require_current(pipe->with.schema, pipe->catalogue, pipe->rows, &err);
    pipe->backend.server.schema_id = schema_id_of(pipe->catalogue);
    clear_segment(pipe);
    if (code == CODE_OK)
        start_preparing(pipe);
    else
        break_with_text(pipe, err.message); /* for its calls: surely not done */
}

/* A Sync was answered: the segment is committed, or rolled back as a whole. */
static void end_segment(struct pipe *pipe)
{
    if (pipe->state == PIPE_CHECKING) {
        end_checking(pipe);
        return;
    }
    if (pipe->state == PIPE_PREPARING)
        end_preparing(pipe);
    else if (pipe->owed.count > 0)
        end_call(pipe);
    else
        break_with_text(pipe, "Postgres answered a statement that was not sent");
    clear_segment(pipe);
    if (pipe->state == PIPE_READY && !is_idle_transaction(PQtransactionStatus(pipe->connection)))
        break_with_text(pipe, "a transaction was left open");
}

static void take_result(struct pipe *pipe, PGresult *result)
{
    ExecStatusType status = PQresultStatus(result);

    if (status == PGRES_TUPLES_OK && pipe->state == PIPE_CHECKING && pipe->catalogue == NULL) {
        pipe->catalogue = result;
        return;
    }
    if (status == PGRES_TUPLES_OK && pipe->state == PIPE_PREPARING) {
        PQclear(pipe->rows); /* the last one counts: it is the identity */
        pipe->rows = result;
        return;
    }
    if (status == PGRES_TUPLES_OK && pipe->rows == NULL) {
        pipe->rows = result;
        return;
    }
    if (status == PGRES_FATAL_ERROR)
        note_error(pipe, result);
    else if (status == PGRES_PIPELINE_SYNC)
        end_segment(pipe);
    else if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK &&
             status != PGRES_PIPELINE_ABORTED)
        break_with_text(pipe, "an answer of a kind that does not belong in a pipeline");
    PQclear(result);
}

static bool owes_something(const struct pipe *pipe)
{
    return pipe->state == PIPE_CHECKING || pipe->state == PIPE_PREPARING ||
           (pipe->state != PIPE_BROKEN && pipe->owed.count > 0);
}

static void read_notifications(struct pipe *pipe)
{
    for (PGnotify *note; (note = PQnotifies(pipe->connection)) != NULL; PQfreemem(note))
        if (pipe->with.on_notified != NULL)
            pipe->with.on_notified(pipe->with.ctx, note->be_pid, note->extra);
}

static void read_results(struct pipe *pipe)
{
    unsigned nulls = 0;

    while (owes_something(pipe) && nulls <= NULLS_MAX && !PQisBusy(pipe->connection)) {
        PGresult *result = PQgetResult(pipe->connection);
        nulls = result == NULL ? nulls + 1 : 0;
        if (result != NULL)
            take_result(pipe, result);
    }
    if (pipe->state != PIPE_BROKEN &&
        (nulls > NULLS_MAX || PQstatus(pipe->connection) == CONNECTION_BAD))
        break_with_libpq(pipe);
}

/* ---- writing ---- */

static void flush(struct pipe *pipe)
{
    int left = PQflush(pipe->connection);

    if (left < 0) {
        read_results(pipe); /* the server's last words, if any */
        if (pipe->state != PIPE_BROKEN)
            break_with_libpq(pipe);
        return;
    }
    watch_socket(pipe, WATCH_READ | (left > 0 ? WATCH_WRITE : 0u));
}

/* Asks what is installed in the schema. A missing ledger is an error of the server's, which stays
 * inside this segment. */
static bool send_check(struct pipe *pipe)
{
    PGconn *connection = pipe->connection;
    const char *schema = pipe->with.schema;
    const char *values[] = {schema};
    char query[SCHEMA_QUERY_BYTES];
    char *quoted = PQescapeIdentifier(connection, schema, strlen(schema));
    bool sent = quoted != NULL &&
                PQsendQueryParams(connection, schema_catalogue_query, 1, NULL, values, NULL, NULL,
                                  0) == 1 &&
                PQsendQueryParams(connection, schema_ledger_query(quoted, query), 0, NULL, NULL,
                                  NULL, NULL, 0) == 1;

    PQfreemem(quoted);
    return sent && PQpipelineSync(connection) == 1;
}

static void start_checking(struct pipe *pipe)
{
    struct err err;

    set_state(pipe, PIPE_CHECKING);
    if (schema_check_encoding(pipe->connection, &err) != CODE_OK) {
        pipe_break(pipe, &err);
        return;
    }
    if (PQsetnonblocking(pipe->connection, 1) != 0 || PQenterPipelineMode(pipe->connection) != 1 ||
        !send_check(pipe)) {
        break_with_libpq(pipe);
        return;
    }
    flush(pipe);
}

static void start_preparing(struct pipe *pipe)
{
    set_state(pipe, PIPE_PREPARING);
    if (!statements_send_setup(pipe->connection, pipe->with.role, pipe->with.schema,
                               pipe->backend.server.schema_id) ||
        PQpipelineSync(pipe->connection) != 1)
        break_with_libpq(pipe);
    /* what was read calls flush next */
}

static void go_on_connecting(struct pipe *pipe)
{
    unwatch(pipe); /* before every poll: the next socket may get the same number */
    switch (PQconnectPoll(pipe->connection)) {
    case PGRES_POLLING_READING: watch_socket(pipe, WATCH_READ); return;
    case PGRES_POLLING_WRITING: watch_socket(pipe, WATCH_WRITE); return;
    case PGRES_POLLING_OK: start_checking(pipe); return;
    case PGRES_POLLING_FAILED:
    case PGRES_POLLING_ACTIVE: break;
    }
    break_with_libpq(pipe);
}

static void on_ready(void *ctx, unsigned ready)
{
    struct pipe *pipe = ctx;

    if (pipe->state == PIPE_CONNECTING) {
        go_on_connecting(pipe);
        return;
    }
    if (pipe->state == PIPE_BROKEN)
        return;
    int alive = ready & WATCH_READ ? PQconsumeInput(pipe->connection) : 1;
    read_results(pipe);
    if (pipe->state == PIPE_BROKEN)
        return;
    read_notifications(pipe);
    if (!alive)
        break_with_libpq(pipe);
    else
        flush(pipe);
}

static void refuse(const struct pipe *pipe, struct pipe_call *call)
{
    struct pipe_result result = {.outcome = OUTCOME_NOT_DONE, .backend = pipe->backend};

    err_set(&result.err, CODE_UNAVAILABLE,
            "the database server, or the schema, is not the one it was");
    call->done(call, &result);
    loop_again(pipe->with.loop); /* core's turn is over already */
}

void pipe_send(struct pipe *pipe, struct pipe_call *call)
{
    struct params *params = pipe->with.params;
    const char *values[PARAMS_MAX];
    int lens[PARAMS_MAX];
    int formats[PARAMS_MAX];

    CHECK(pipe->state == PIPE_READY && pipe->owed.count < PIPE_SEGMENTS_MAX);
    if (call->suits != NULL && !call->suits(call, &pipe->backend)) {
        refuse(pipe, call);
        return;
    }
    params_reset(params);
    call->encode(call, params);
    params_values(params, values, lens, formats);
    call->since_us = clock_mono_us();
    list_push_back(&pipe->owed, &call->node);
    call->synced = PQsendQueryPrepared(pipe->connection, statement_name(call->statement),
                                       params->count, values, lens, formats, 1) == 1;
    if (!call->synced || PQpipelineSync(pipe->connection) != 1) {
        break_with_libpq(pipe);
        return;
    }
    flush(pipe);
}

/* ---- coming and going ---- */

static void start_connecting(struct pipe *pipe)
{
    set_state(pipe, PIPE_CONNECTING);
    pipe->since_us = clock_mono_us();
    pipe->connection = url_connect(pipe->with.url, &pipe->hosts);
    if (PQstatus(pipe->connection) == CONNECTION_BAD)
        break_with_libpq(pipe);
    else
        watch_socket(pipe, WATCH_WRITE); /* libpq: wait for writing before the first poll */
}

/* All names are answered, or it is too late for the others: connects to what is known. */
static void end_resolving(void *ctx)
{
    struct pipe *pipe = ctx;

    lookup_found(pipe->lookup, &pipe->hosts, &pipe->not_found);
    lookup_free(pipe->lookup);
    pipe->lookup = NULL;
    if (pipe->hosts.count > 0)
        start_connecting(pipe);
    else
        pipe_break(pipe, &pipe->not_found);
}

static void start_resolving(struct pipe *pipe)
{
    struct err err;

    pipe->lookup = lookup_new_take(pipe->with.loop, pipe->with.lookups, &pipe->hosts, end_resolving,
                                   pipe, &err);
    if (pipe->lookup == NULL)
        pipe_break(pipe, &err);
}

struct pipe *pipe_new(const struct pipe_setup *setup)
{
    struct pipe *pipe = mem_zalloc(sizeof *pipe);

    pipe->with = *setup;
    pipe->state = PIPE_RESOLVING;
    pipe->watched_fd = -1;
    pipe->since_us = clock_mono_us();
    hosts_from(setup->url, setup->attempt, &pipe->hosts);
    if (hosts_have_names(&pipe->hosts))
        start_resolving(pipe);
    else
        start_connecting(pipe);
    return pipe;
}

void pipe_free(struct pipe *pipe)
{
    CHECK(pipe->owed.count == 0 && pipe->replays.count == 0);
    hosts_free(&pipe->hosts);
    lookup_free(pipe->lookup);
    unwatch(pipe); /* before libpq closes the socket */
    PQclear(pipe->rows);
    PQclear(pipe->catalogue);
    PQfinish(pipe->connection);
    mem_free(pipe);
}

enum pipe_state pipe_state(const struct pipe *pipe)
{
    return pipe->state;
}

size_t pipe_owed(const struct pipe *pipe)
{
    return pipe->owed.count + pipe->replays.count;
}

const struct err *pipe_err(const struct pipe *pipe)
{
    return &pipe->broken_err;
}

const char *pipe_database(const struct pipe *pipe)
{
    const char *name = PQdb(pipe->connection);
    return name != NULL ? name : "";
}

const struct backend *pipe_backend(const struct pipe *pipe)
{
    return &pipe->backend;
}

bool pipe_is_pooled(const struct pipe *pipe)
{
    return PQbackendPID(pipe->connection) != (int)pipe->backend.pid;
}

void pipe_check_deadline(struct pipe *pipe, uint64_t now_us)
{
    bool too_late = now_us > pipe->since_us + (uint64_t)CONNECT_MS * US_PER_MS;

    if (pipe->state == PIPE_RESOLVING && too_late)
        end_resolving(pipe);
    else if (pipe->state < PIPE_READY && too_late)
        break_with_text(pipe, "Postgres did not let us in in time");
    if (pipe->owed.count == 0)
        return;
    const struct pipe_call *oldest = CONTAINER_OF(pipe->owed.first, struct pipe_call, node);
    if (now_us > oldest->since_us + (uint64_t)oldest->deadline_ms * US_PER_MS)
        break_with_text(pipe, "Postgres did not answer in time");
}

void pipe_fail_owed(struct pipe *pipe)
{
    struct pipe_result result = {.err = pipe->broken_err};

    CHECK(pipe->state == PIPE_BROKEN);
    while (pipe->owed.count > 0) {
        struct pipe_call *call = CONTAINER_OF(list_pop_front(&pipe->owed), struct pipe_call, node);
        result.outcome = call->synced ? OUTCOME_UNKNOWN : OUTCOME_NOT_DONE;
        result.backend = pipe->backend;
        call->done(call, &result);
    }
}

struct pipe_call *pipe_take_replay(struct pipe *pipe)
{
    struct list_node *node = list_pop_front(&pipe->replays);

    return node != NULL ? CONTAINER_OF(node, struct pipe_call, node) : NULL;
}
