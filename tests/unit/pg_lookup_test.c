/* lookup: names that are found, fail or hang, with this program's own getaddrinfo. Nothing sleeps:
 * a hanging name is held by a semaphore, and the end of a thread shows in the limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

#include "base/mem.h"
#include "pg/lookup.h"
#include "pg/pipe.h"

/* Only a function of the C library's can have no owner for this. */
static sem_t gate;    /* "hang" waits for it */
static sem_t entered; /* and says here that it does */

static unsigned threads_before; /* a sanitizer may have some of its own */

/* A list of one; the memory of the list is one block. */
static struct addrinfo *list_of(uint32_t address)
{
    struct block {
        struct addrinfo info;
        struct sockaddr_in in;
    } *block = calloc(1, sizeof *block);

    assert_non_null(block);
    block->in.sin_family = AF_INET;
    block->in.sin_addr.s_addr = htonl(address);
    block->info.ai_family = AF_INET;
    block->info.ai_addr = (struct sockaddr *)&block->in;
    block->info.ai_addrlen = sizeof block->in;
    return &block->info;
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): glibc's are reserved names. */
int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict list)
{
    sigset_t blocked;

    (void)service;
    (void)hints;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    if (!sigismember(&blocked, SIGTERM) || !sigismember(&blocked, SIGUSR1))
        return EAI_MEMORY; /* signals are not for this thread: the test sees a wrong text */
    if (strcmp(name, "hang") == 0) {
        sem_post(&entered);
        while (sem_wait(&gate) != 0)
            continue;
    }
    if (strcmp(name, "unknown") == 0)
        return EAI_NONAME;
    if (strcmp(name, "system") == 0) {
        errno = EMFILE;
        return EAI_SYSTEM;
    }
    *list = strcmp(name, "empty") == 0 ? NULL : list_of(INADDR_LOOPBACK);
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    free(list);
}
/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */

struct world {
    struct loop *loop;
    struct lookups *lookups;
    struct lookup *lookup;
    unsigned ends;
};

static int set_up(void **state)
{
    struct world *world = mem_zalloc(sizeof *world);

    world->loop = loop_new();
    world->lookups = lookups_new();
    *state = world;
    return world->loop == NULL;
}

static unsigned thread_count(void)
{
    DIR *folder = opendir("/proc/self/task");
    unsigned count = 0;

    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static void wait_for_threads(void)
{
    while (thread_count() > threads_before)
        sched_yield();
}

static int tear_down(void **state)
{
    struct world *world = *state;

    lookups_free(world->lookups);
    loop_free(world->loop);
    mem_free(world);
    wait_for_threads();
    return 0;
}

static void on_end(void *ctx)
{
    struct world *world = ctx;

    world->ends++;
    loop_stop(world->loop);
}

static struct lookup *begin(struct world *world, const char *url, struct err *err)
{
    struct hosts hosts;

    hosts_from(url, 0, &hosts);
    return lookup_new_take(world->loop, world->lookups, &hosts, on_end, world, err);
}

static void expect_found(struct world *world, const char *names, const char *addresses,
                         const char *failure)
{
    struct hosts found;
    struct err err;

    lookup_found(world->lookup, &found, &err);
    char *name_list = hosts_list(&found, HOST_NAME);
    char *address_list = hosts_list(&found, HOST_ADDRESS);
    assert_string_equal(name_list != NULL ? name_list : "-", names);
    assert_string_equal(address_list != NULL ? address_list : "-", addresses);
    assert_string_equal(err.message, failure);
    mem_free(name_list);
    mem_free(address_list);
    hosts_free(&found);
}

static void expect_end(struct world *world, const char *url, const char *names,
                       const char *addresses, const char *failure)
{
    struct err err;

    world->lookup = begin(world, url, &err);
    assert_non_null(world->lookup);
    loop_run(world->loop);
    assert_int_equal(world->ends, 1);
    expect_found(world, names, addresses, failure);
    lookup_free(world->lookup);
}

static void names_are_found(void **state)
{
    expect_end(*state, "host=a,/run/pg,b", "a,/run/pg,b", "127.0.0.1,,127.0.0.1", "");
}

static void a_name_that_is_not_found_is_left_out_and_named(void **state)
{
    expect_end(*state, "host=unknown,a,system", "a", "127.0.0.1",
               "could not translate host name \"unknown\" to address: Name or service not known");
}

static void the_system_says_why(void **state)
{
    expect_end(*state, "host=system", "-", "-",
               "could not translate host name \"system\" to address: Too many open files");
}

static void a_name_without_an_address_fails(void **state)
{
    expect_end(*state, "host=empty", "-", "-",
               "could not translate host name \"empty\" to address: "
               "No address associated with hostname");
}

static void what_was_found_before_a_name_that_hangs_is_known(void **state)
{
    struct world *world = *state;
    struct err err;

    world->lookup = begin(world, "host=a,hang,b", &err);
    assert_non_null(world->lookup);
    sem_wait(&entered);
    expect_found(world, "a", "127.0.0.1",
                 "could not translate host name \"hang\" to address: no answer in time");
    sem_post(&gate);
    loop_run(world->loop);
    expect_found(world, "a,hang,b", "127.0.0.1,127.0.0.1,127.0.0.1", "");
    lookup_free(world->lookup);
}

static void hanging_ones_are_let_go_and_limited(void **state)
{
    struct world *world = *state;
    struct err err = {.code = CODE_OK};
    struct lookup *more = NULL;

    for (unsigned i = 0; i < LOOKUPS_MAX; i++) {
        world->lookup = begin(world, "host=hang", &err);
        assert_non_null(world->lookup);
        sem_wait(&entered);
        lookup_free(world->lookup);
    }
    assert_null(begin(world, "host=a", &err));
    assert_string_equal(err.message, "could not translate host name \"a\" to address: "
                                     "earlier lookups have not ended");
    sem_post(&gate); /* one thread ends: there is room again, soon */
    while ((more = begin(world, "host=a", &err)) == NULL)
        sched_yield();
    world->lookup = more;
    loop_run(world->loop);
    expect_found(world, "a", "127.0.0.1", "");
    lookup_free(world->lookup);
    for (unsigned i = 1; i < LOOKUPS_MAX; i++)
        sem_post(&gate);
    assert_int_equal(world->ends, 1);
}

/* By a default stack that no address space has room for. */
static void without_a_thread_it_fails(void **state)
{
    static const char said[] = "could not translate host name \"a\" to address: ";
    struct world *world = *state;
    struct err err = {.code = CODE_OK};
    pthread_attr_t before, huge;

    pthread_getattr_default_np(&before);
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, (size_t)1 << 47);
    assert_int_equal(pthread_setattr_default_np(&huge), 0);
    world->lookup = begin(world, "host=/run/pg,a", &err);
    pthread_setattr_default_np(&before);
    pthread_attr_destroy(&huge);
    pthread_attr_destroy(&before);
    assert_null(world->lookup);
    assert_memory_equal(err.message, said, strlen(said)); /* then what the system says */
}

static void its_owner_may_go_before_a_lookup_ends(void **state)
{
    struct world *world = *state;
    struct err err;

    world->lookup = begin(world, "host=hang,unknown", &err);
    assert_non_null(world->lookup);
    sem_wait(&entered);
    lookup_free(world->lookup);
    sem_post(&gate); /* as the world is freed */
}

static void *do_nothing(void *ctx)
{
    return ctx;
}

static void stop_loop(void *ctx)
{
    loop_stop(ctx);
}

/* One that turned read only is left with all connections, also with those that are being made. */
static void a_pipe_that_is_given_up_hears_nothing_of_its_lookup(void **state)
{
    struct world *world = *state;
    const struct pipe_setup setup = {
        .loop = world->loop, .lookups = world->lookups, .url = "host=hang", .schema = "awa"};
    struct pipe *pipe = pipe_new(&setup);
    struct loop_timer *timer = loop_timer_new(world->loop, stop_loop, world->loop);
    struct err err;

    sem_wait(&entered);
    assert_int_equal(pipe_state(pipe), PIPE_RESOLVING);
    err_set(&err, CODE_UNAVAILABLE, "given up");
    pipe_break(pipe, &err);
    sem_post(&gate);
    wait_for_threads();
    loop_timer_set(timer, 0);
    loop_run(world->loop);
    assert_string_equal(pipe_err(pipe)->message, "given up");
    pipe_free(pipe);
    loop_timer_free(timer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(names_are_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_name_that_is_not_found_is_left_out_and_named, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(the_system_says_why, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_name_without_an_address_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_was_found_before_a_name_that_hangs_is_known, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(hanging_ones_are_let_go_and_limited, set_up, tear_down),
        cmocka_unit_test_setup_teardown(without_a_thread_it_fails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(its_owner_may_go_before_a_lookup_ends, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_pipe_that_is_given_up_hears_nothing_of_its_lookup, set_up,
                                        tear_down),
    };
    pthread_t first;

    sem_init(&gate, 0, 0);
    sem_init(&entered, 0, 0);
    pthread_create(&first, NULL, do_nothing, NULL);
    pthread_join(first, NULL);
    threads_before = thread_count();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
