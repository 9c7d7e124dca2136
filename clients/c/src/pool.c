// pool.c: handler threads around two lists and one mutex.
//
// Why not lock-free: a handler does work worth a job; two uncontended locks a
// job are nothing beside it.
#include "pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- Lists

void awai_list_init(struct task_list *list)
{
    *list = (struct task_list){.first = NULL, .end = &list->first};
}

void awai_list_push(struct task_list *list, struct task *task)
{
    task->next = NULL;
    *list->end = task;
    list->end = &task->next;
    list->count++;
}

struct task *awai_list_pop(struct task_list *list)
{
    struct task *task = list->first;
    if (task == NULL)
        return NULL;
    list->first = task->next;
    if (list->first == NULL)
        list->end = &list->first;
    list->count--;
    return task;
}

void awai_task_free(struct task *task)
{
    free(task->job);
    free(task);
}

void awai_list_clear(struct task_list *list)
{
    for (struct task *task; (task = awai_list_pop(list)) != NULL;)
        awai_task_free(task);
}

void awai_list_drop(struct task_list *list, ProtobufCBinaryData receipt)
{
    for (size_t left = list->count; left > 0; left--) {
        struct task *task = awai_list_pop(list);
        if (awai_receipt_is(&task->job->receipt, receipt))
            awai_task_free(task);
        else
            awai_list_push(list, task);
    }
}

// ---- Threads

void awai_wake(int wake_fd)
{
    int saved = errno; // a signal handler must leave it alone
    while (write(wake_fd, &(uint64_t){1}, sizeof(uint64_t)) < 0 && errno == EINTR)
        ;
    errno = saved;
}

// The mutex is held, but not while the handler runs.
static void run_task(struct pool *pool, struct task *task)
{
    task->place = pool->running_count++;
    pool->running[task->place] = task;
    pthread_mutex_unlock(&pool->mutex);
    task->outcome = pool->handler(task->job, pool->context);
    pthread_mutex_lock(&pool->mutex);
    struct task *last = pool->running[--pool->running_count];
    pool->running[task->place] = last;
    last->place = task->place;
    pool->executed++;
    awai_list_push(&pool->finished, task);
    if (pool->finished.count == 1)
        awai_wake(pool->wake_fd);
}

static void *run_tasks(void *argument)
{
    struct pool *pool = argument;
    pthread_mutex_lock(&pool->mutex);
    while (!pool->quitting) {
        struct task *task = awai_list_pop(&pool->ready);
        if (task != NULL)
            run_task(pool, task);
        else
            pthread_cond_wait(&pool->work, &pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

bool awai_pool_init(struct pool *pool, const struct awa_worker_options *options, int wake_fd)
{
    *pool = (struct pool){
        .handler = options->handler,
        .context = options->context,
        .wake_fd = wake_fd,
        .concurrency = options->concurrency,
        .threads = calloc(options->concurrency, sizeof *pool->threads),
        .running = calloc(options->concurrency, sizeof *pool->running),
    };
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    awai_list_init(&pool->ready);
    awai_list_init(&pool->finished);
    return pool->threads != NULL && pool->running != NULL;
}

enum awa_code awai_pool_start(struct pool *pool, struct awa_error *error)
{
    while (pool->started < pool->concurrency) {
        int failure = pthread_create(&pool->threads[pool->started], NULL, run_tasks, pool);
        if (failure != 0)
            return awai_fail(error, AWA_RESOURCE_EXHAUSTED, "cannot start a thread: %s",
                             strerror(failure));
        pool->started++;
    }
    return AWA_OK;
}

void awai_pool_stop(struct pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    awai_list_clear(&pool->ready);
    pool->quitting = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    while (pool->started > 0)
        pthread_join(pool->threads[--pool->started], NULL);
}

void awai_pool_destroy(struct pool *pool)
{
    awai_list_clear(&pool->finished);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->threads);
    free(pool->running);
}

// ---- Lists under the mutex

static void push(struct pool *pool, struct task_list *list, struct task *task)
{
    pthread_mutex_lock(&pool->mutex);
    awai_list_push(list, task);
    pthread_mutex_unlock(&pool->mutex);
}

static struct task *pop(struct pool *pool, struct task_list *list)
{
    pthread_mutex_lock(&pool->mutex);
    struct task *task = awai_list_pop(list);
    pthread_mutex_unlock(&pool->mutex);
    return task;
}

void awai_pool_push_ready(struct pool *pool, struct task *task)
{
    push(pool, &pool->ready, task);
    pthread_cond_signal(&pool->work);
}

void awai_pool_push_finished(struct pool *pool, struct task *task)
{
    push(pool, &pool->finished, task);
}

struct task *awai_pool_pop_ready(struct pool *pool)
{
    return pop(pool, &pool->ready);
}

struct task *awai_pool_pop_finished(struct pool *pool)
{
    return pop(pool, &pool->finished);
}

static void add_receipt(const struct task *task, ProtobufCBinaryData *receipts, size_t room,
                        size_t *count)
{
    if (*count < room)
        receipts[*count] = awai_receipt_to_wire(&task->job->receipt);
    (*count)++;
}

size_t awai_pool_receipts(struct pool *pool, ProtobufCBinaryData *receipts, size_t room)
{
    size_t count = 0;
    pthread_mutex_lock(&pool->mutex);
    for (const struct task *task = pool->ready.first; task != NULL; task = task->next)
        add_receipt(task, receipts, room, &count);
    for (size_t i = 0; i < pool->running_count; i++)
        add_receipt(pool->running[i], receipts, room, &count);
    for (const struct task *task = pool->finished.first; task != NULL; task = task->next)
        add_receipt(task, receipts, room, &count);
    pthread_mutex_unlock(&pool->mutex);
    return count;
}

static void add_held(const struct task *task, struct awa_receipt *receipts, size_t room,
                     size_t *count)
{
    if (!task->foreign && !awa_job_lost(task->job) && *count < room)
        receipts[(*count)++] = task->job->receipt;
}

size_t awai_pool_held(struct pool *pool, struct awa_receipt *receipts, size_t room)
{
    size_t count = 0;
    pthread_mutex_lock(&pool->mutex);
    for (const struct task *task = pool->ready.first; task != NULL; task = task->next)
        add_held(task, receipts, room, &count);
    for (size_t i = 0; i < pool->running_count; i++)
        add_held(pool->running[i], receipts, room, &count);
    pthread_mutex_unlock(&pool->mutex);
    return count;
}

void awai_pool_disown(struct pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    for (size_t i = 0; i < pool->running_count; i++)
        pool->running[i]->foreign = true;
    pthread_mutex_unlock(&pool->mutex);
}

void awai_pool_lose(struct pool *pool, ProtobufCBinaryData receipt)
{
    pthread_mutex_lock(&pool->mutex);
    for (size_t i = 0; i < pool->running_count; i++) {
        struct awa_job *job = pool->running[i]->job;
        if (awai_receipt_is(&job->receipt, receipt))
            atomic_store(&((struct awai_job *)job)->lost, true);
    }
    awai_list_drop(&pool->ready, receipt);
    pthread_mutex_unlock(&pool->mutex);
}

struct pool_load awai_pool_load(struct pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    struct pool_load load = {
        .held = pool->ready.count + pool->running_count,
        .finished = pool->finished.count,
    };
    pthread_mutex_unlock(&pool->mutex);
    return load;
}
