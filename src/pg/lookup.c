/* lookup: see lookup.h. */
#include "pg/lookup.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"

struct lookups {
    atomic_uint holders; /* its owner, and each struct shared; the last one frees it */
};

struct answer {
    int failure;    /* 0: found; else what getaddrinfo returned */
    int errno_then; /* where that is EAI_SYSTEM */
    struct addresses found;
};

struct shared {
    atomic_uint holders; /* the lookup and the thread; the last one frees it */
    struct lookups *lookups;
    struct hosts hosts;     /* nobody writes it */
    int end_fd;             /* readable when all are answered */
    atomic_size_t answered; /* so many of `answers` stay as they are; the others are the thread's */
    struct answer answers[];
};

struct lookup {
    struct shared *shared;
    struct watch *watch;
    void (*on_end)(void *ctx);
    void *ctx;
};

/* ---- what is shared with the thread ---- */

struct lookups *lookups_new(void)
{
    struct lookups *lookups = mem_zalloc(sizeof *lookups);

    atomic_init(&lookups->holders, 1);
    return lookups;
}

void lookups_free(struct lookups *lookups)
{
    if (atomic_fetch_sub(&lookups->holders, 1) == 1)
        mem_free(lookups);
}

static struct shared *shared_new(struct lookups *lookups, struct hosts *hosts, int end_fd)
{
    struct shared *shared = mem_zalloc(sizeof *shared + hosts->count * sizeof shared->answers[0]);

    atomic_init(&shared->holders, 1);
    atomic_init(&shared->answered, 0);
    shared->hosts = *hosts;
    *hosts = (struct hosts){NULL, 0, 0};
    shared->end_fd = end_fd;
    shared->lookups = lookups;
    atomic_fetch_add(&lookups->holders, 1);
    return shared;
}

static void let_go(struct shared *shared)
{
    if (atomic_fetch_sub(&shared->holders, 1) > 1)
        return;
    close(shared->end_fd);
    hosts_free(&shared->hosts);
    lookups_free(shared->lookups);
    mem_free(shared);
}

/* ---- the thread ---- */

static void add_address(struct addresses *addresses, const struct addrinfo *info)
{
    char text[ADDRESS_TEXT_MAX];

    if (getnameinfo(info->ai_addr, info->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST) ==
        0)
        addresses_add(addresses, text);
}

static void look_up(const char *name, struct answer *answer)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;

    answer->failure = getaddrinfo(name, NULL, &hints, &list);
    answer->errno_then = errno;
    if (answer->failure != 0)
        return;
    for (const struct addrinfo *info = list; info != NULL; info = info->ai_next)
        add_address(&answer->found, info);
    freeaddrinfo(list);
    if (answer->found.count == 0)
        answer->failure = EAI_NODATA;
}

static void *run(void *ctx)
{
    struct shared *shared = ctx;

    /* alone: nobody wants to know any more */
    for (size_t i = 0; i < shared->hosts.count && atomic_load(&shared->holders) > 1; i++) {
        const char *name = host_name_to_find(&shared->hosts.items[i]);
        if (name != NULL)
            look_up(name, &shared->answers[i]);
        atomic_store(&shared->answered, i + 1);
    }
    eventfd_write(shared->end_fd, 1);
    let_go(shared);
    return NULL;
}

/* Signals are the loop's: a thread inherits the mask of who starts it. */
static int start_thread(struct shared *shared)
{
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all, before;

    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_fetch_add(&shared->holders, 1);
    int failed = pthread_create(&thread, &detached, run, shared);
    if (failed != 0)
        atomic_fetch_sub(&shared->holders, 1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return failed;
}

/* ---- the loop's side ---- */

static void on_readable(void *ctx, unsigned ready)
{
    const struct lookup *lookup = ctx;

    (void)ready;
    watch_want(lookup->watch, 0);
    lookup->on_end(lookup->ctx);
}

/* In the words of libpq. */
static void set_failure(struct err *err, const char *name, const char *why)
{
    err_set(err, CODE_UNAVAILABLE, "could not translate host name \"%.100s\" to address: %s", name,
            why);
}

static const char *first_name(const struct hosts *hosts)
{
    size_t i = 0;

    while (host_name_to_find(&hosts->items[i]) == NULL)
        i++;
    return host_name_to_find(&hosts->items[i]);
}

struct lookup *lookup_new_take(struct loop *loop, struct lookups *lookups, struct hosts *hosts,
                               void (*on_end)(void *ctx), void *ctx, struct err *err)
{
    bool is_full = atomic_load(&lookups->holders) > LOOKUPS_MAX;
    int end_fd = is_full ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    if (end_fd < 0) {
        set_failure(err, first_name(hosts),
                    is_full ? "earlier lookups have not ended" : strerror(errno));
        hosts_free(hosts);
        return NULL;
    }
    struct shared *shared = shared_new(lookups, hosts, end_fd);
    int failed = start_thread(shared);
    if (failed != 0) {
        set_failure(err, first_name(&shared->hosts), strerror(failed));
        let_go(shared);
        return NULL;
    }
    struct lookup *lookup = mem_zalloc(sizeof *lookup);
    *lookup = (struct lookup){.shared = shared, .on_end = on_end, .ctx = ctx};
    lookup->watch = watch_new(loop, end_fd, on_readable, lookup);
    watch_want(lookup->watch, WATCH_READ);
    return lookup;
}

void lookup_free(struct lookup *lookup)
{
    if (lookup == NULL)
        return;
    watch_free(lookup->watch);
    let_go(lookup->shared);
    mem_free(lookup);
}

static const char *failure_text(const struct answer *answer)
{
    return answer->failure == EAI_SYSTEM ? strerror(answer->errno_then)
                                         : gai_strerror(answer->failure);
}

/* Whether the host can be connected to; else why not. */
static bool add_host(const struct shared *shared, size_t at, bool is_answered, struct hosts *found,
                     struct err *err)
{
    const struct host *host = &shared->hosts.items[at];
    const struct answer *answer = &shared->answers[at];
    const char *name = host_name_to_find(host);

    if (name == NULL)
        hosts_add(found, host);
    else if (!is_answered)
        set_failure(err, name, "no answer in time");
    else if (answer->failure != 0)
        set_failure(err, name, failure_text(answer));
    else
        hosts_add_found(found, host, &answer->found);
    return name == NULL || (is_answered && answer->failure == 0);
}

void lookup_found(const struct lookup *lookup, struct hosts *found, struct err *err)
{
    const struct shared *shared = lookup->shared;
    size_t answered = atomic_load(&shared->answered);
    struct err later;
    bool failed = false;

    *found = (struct hosts){.round = shared->hosts.round};
    *err = (struct err){.code = CODE_OK};
    for (size_t i = 0; i < shared->hosts.count; i++)
        if (!add_host(shared, i, i < answered, found, failed ? &later : err))
            failed = true;
}
