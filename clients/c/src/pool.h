// pool.h: the handler threads of a worker, and the tasks they pass around.
//
// What: the worker pushes tasks as ready; a thread runs the handler on each and
// moves it to finished; the worker takes it from there. Every call may be made
// from any thread. When finished stops being empty, wake_fd (an eventfd that
// belongs to the worker) is written.
// Life of a task: ready -> running -> finished -> the worker's, who alone frees it.
#ifndef AWAI_POOL_H
#define AWAI_POOL_H

#include "internal.h"

#include <pthread.h>

struct task {
    struct awa_job *job;
    struct awa_outcome outcome; // set once finished
    uint64_t request_id;        // of the Finish it was sent in
    size_t place;               // in pool.running
    bool foreign;               // claimed by a session that is gone
    bool is_substitute;         // its outcome is for one that was refused
    struct task *next;
};

struct task_list {
    struct task *first, **end;
    size_t count;
};

void awai_list_init(struct task_list *list);
void awai_list_push(struct task_list *list, struct task *task);
struct task *awai_list_pop(struct task_list *list); // NULL: empty
void awai_list_clear(struct task_list *list);       // frees the tasks
void awai_task_free(struct task *task);
void awai_list_drop(struct task_list *list, ProtobufCBinaryData receipt); // frees that task

struct pool {
    awa_handler handler;
    void *context;
    int wake_fd;
    unsigned concurrency, started;
    pthread_t *threads;
    pthread_mutex_t mutex; // guards what follows
    pthread_cond_t work;   // something is ready, or quitting
    bool quitting;
    struct task_list ready, finished;
    struct task **running; // room for concurrency
    size_t running_count;
    uint64_t executed;
};

struct pool_load {
    size_t held; // ready and running
    size_t finished;
};

AWA_CHECKED bool awai_pool_init(struct pool *pool, const struct awa_worker_options *options,
                                int wake_fd);
AWA_CHECKED enum awa_code awai_pool_start(struct pool *pool, struct awa_error *error);
void awai_pool_stop(struct pool *pool); // drops what is ready, waits for what is running
void awai_pool_destroy(struct pool *pool);

void awai_pool_push_ready(struct pool *pool, struct task *task);
void awai_pool_push_finished(struct pool *pool, struct task *task);
struct task *awai_pool_pop_ready(struct pool *pool);    // NULL: none
struct task *awai_pool_pop_finished(struct pool *pool); // NULL: none

// The receipts of all tasks, as far as there is room; returns how many there are.
size_t awai_pool_receipts(struct pool *pool, ProtobufCBinaryData *receipts, size_t room);
// Copies the receipts of what this session holds (ready and running, and not lost), as far as there
// is room; returns how many it copied.
size_t awai_pool_held(struct pool *pool, struct awa_receipt *receipts, size_t room);
// The session is gone: what runs goes on, but is no longer held.
void awai_pool_disown(struct pool *pool);
// Its handler is told; one that has not started is dropped.
void awai_pool_lose(struct pool *pool, ProtobufCBinaryData receipt);
struct pool_load awai_pool_load(struct pool *pool);
void awai_wake(int wake_fd); // async-signal-safe

#endif
