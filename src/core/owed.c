/* owed: see owed.h. */
#include "core/owed.h"

#include "base/limits.h"
#include "core/session_parts.h"

/* ---- credit ---- */

static bool has_credit(const struct session *session)
{
    return session->credit_requests < CREDIT_REQUESTS && session->credit_bytes < CREDIT_BYTES &&
           session->finish_items < FINISH_ITEMS_PER_SESSION_MAX;
}

static void update_reading(struct session *session)
{
    const struct env *env = session->sessions->env;
    bool reading = has_credit(session);

    if (reading == session->reading || !session_is_connected(session))
        return;
    session->reading = reading;
    env->set_reading(env->ctx, session->connection, reading);
}

static bool costs_credit(const struct request *request)
{
    return request->kind == REQUEST_ENQUEUE || request->kind == REQUEST_COUNTS;
}

static bool is_finish(const struct request *request)
{
    return request->kind == REQUEST_FINISH || request->kind == REQUEST_RELEASE;
}

static void take_credit(struct session *session, const struct request *request)
{
    if (costs_credit(request)) {
        session->credit_requests++;
        session->credit_bytes += request->frame_bytes;
    }
    if (is_finish(request))
        session->finish_items += request->in.finish.count;
    update_reading(session);
}

static void give_credit(struct session *session, const struct request *request)
{
    if (costs_credit(request)) {
        CHECK(session->credit_requests > 0 && session->credit_bytes >= request->frame_bytes);
        session->credit_requests--;
        session->credit_bytes -= request->frame_bytes;
    }
    if (is_finish(request))
        session->finish_items -= request->in.finish.count;
    update_reading(session);
}

/* ---- requests ---- */

static uint64_t request_hash(const struct sessions *sessions, handle session, uint64_t request_id)
{
    return hash_of_u64(&sessions->requests, session, request_id);
}

struct request *owed_find(const struct sessions *sessions, handle session, uint64_t request_id)
{
    uint64_t hash = request_hash(sessions, session, request_id);

    for (struct hash_node *node = hash_first(&sessions->requests, hash); node != NULL;
         node = hash_next(node)) {
        struct request *request = CONTAINER_OF(node, struct request, by_id);
        if (request->session == session && request->id == request_id)
            return request;
    }
    return NULL;
}

void owed_add(struct session *session, struct request *request)
{
    struct sessions *sessions = session->sessions;

    request->session = session->self;
    list_push_back(&session->requests, &request->node);
    hash_add(&sessions->requests, &request->by_id,
             request_hash(sessions, session->self, request->id));
    take_credit(session, request);
}

void owed_remove(struct session *session, struct request *request)
{
    hash_remove(&session->sessions->requests, &request->by_id);
    list_remove(&session->requests, &request->node);
    request->session = HANDLE_NONE;
    give_credit(session, request);
}

void owed_leave(struct session *session, struct request *request)
{
    struct sessions *sessions = session->sessions;
    size_t bytes = request->arena.used_bytes;

    owed_remove(session, request);
    if (sessions->left_bytes + bytes > LEFT_BYTES_MAX) {
        sessions->handlers.forget(sessions->handlers.ctx, request);
        return;
    }
    request->left_bytes = bytes;
    sessions->left_bytes += bytes;
}
