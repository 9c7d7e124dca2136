/* net: how long a frame may take to arrive. The clock is the test's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "net/net.h"

enum { TURNS_PER_STEP = 5 }; /* what one end has sent, the other has by then */

static uint64_t now_us = US_PER_S;

/* Instead of the C library's: for libevent too. glibc's names are reserved ones:
 * NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
int clock_gettime(clockid_t which, struct timespec *out)
{
    (void)which;
    *out = (struct timespec){.tv_sec = (time_t)(now_us / US_PER_S),
                             .tv_nsec = (long)(now_us % US_PER_S * 1000)};
    return 0;
}

struct world {
    struct loop *loop;
    struct net *net;
    handle connection;
    unsigned frames;
    unsigned broken;
    int client;
    char folder[32];
    void (*const *steps)(struct world *world); /* NULL at the end */
    unsigned turns;
};

static uint64_t on_opened(void *ctx, handle connection)
{
    struct world *world = ctx;
    world->connection = connection;
    return connection;
}

static void on_frame(void *ctx, uint64_t user, struct bytes body)
{
    struct world *world = ctx;
    (void)user;
    assert_int_equal(body.len, 3);
    world->frames++;
}

static void on_broken(void *ctx, uint64_t user, const struct err *why)
{
    struct world *world = ctx;
    (void)user;
    assert_int_equal(why->code, CODE_DEADLINE_EXCEEDED);
    world->broken++;
    net_close(world->net, world->connection);
}

static void nobody_asks(void *ctx, uint64_t user)
{
    (void)ctx;
    (void)user;
}

static void turn(void *ctx)
{
    struct world *world = ctx;

    loop_again(world->loop);
    if (++world->turns % TURNS_PER_STEP == 0) {
        if (*world->steps != NULL)
            (*world->steps++)(world);
        else
            loop_stop(world->loop);
    }
    net_turn(world->net);
}

static int set_up(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    struct net_handlers handlers = {world,     on_opened,   on_frame,
                                    on_broken, nobody_asks, nobody_asks};
    struct address address;
    char text[64];
    struct err err;

    snprintf(world->folder, sizeof world->folder, "/tmp/net_frames_XXXXXX");
    assert_non_null(mkdtemp(world->folder));
    snprintf(text, sizeof text, "unix:%s/s", world->folder);
    assert_int_equal(address_parse(&address, text, &err), CODE_OK);
    world->loop = loop_new();
    world->net = net_new(world->loop, &handlers, 4);
    loop_add_hook(world->loop, turn, world);
    assert_int_equal(net_listen(world->net, &address, &err), CODE_OK);
    world->client = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(world->client, &address.of.any, address.len), 0);
    *state = world;
    return 0;
}

static int tear_down(void **state)
{
    struct world *world = *state;

    close(world->client);
    net_free(world->net);
    loop_free(world->loop);
    assert_int_equal(rmdir(world->folder), 0);
    free(world);
    return 0;
}

/* ---- steps ---- */

static void begin_frame(struct world *world)
{
    assert_int_equal(send(world->client, "\3ab", 3, MSG_NOSIGNAL), 3);
}

static void end_frame(struct world *world)
{
    assert_int_equal(send(world->client, "c", 1, MSG_NOSIGNAL), 1);
}

static void stop_reading(struct world *world)
{
    net_set_reading(world->net, world->connection, false);
}

static void read_again(struct world *world)
{
    net_set_reading(world->net, world->connection, true);
}

static void nearly_too_long(struct world *world)
{
    (void)world;
    now_us += (uint64_t)(FRAME_MS - 1) * US_PER_MS;
}

static void one_ms_more(struct world *world)
{
    assert_int_equal(world->broken, 0);
    now_us += US_PER_MS;
}

static void far_too_long(struct world *world)
{
    (void)world;
    now_us += (uint64_t)2 * FRAME_MS * US_PER_MS;
}

static void play(struct world *world, void (*const steps[])(struct world *world))
{
    world->steps = steps;
    loop_run(world->loop);
}

/* ---- tests ---- */

static void a_frame_that_does_not_come_ends_the_connection(void **state)
{
    struct world *world = *state;

    play(world, (void (*const[])(struct world *)){begin_frame, nearly_too_long, one_ms_more, NULL});
    assert_int_equal(world->broken, 1);
}

static void the_time_in_which_nobody_reads_does_not_count(void **state)
{
    struct world *world = *state;

    play(world, (void (*const[])(struct world *)){begin_frame, stop_reading, far_too_long,
                                                  read_again, nearly_too_long, end_frame, NULL});
    assert_int_equal(world->broken, 0);
    assert_int_equal(world->frames, 1);
}

static void once_it_is_read_again_a_frame_has_its_time(void **state)
{
    struct world *world = *state;

    play(world, (void (*const[])(struct world *)){begin_frame, stop_reading, far_too_long,
                                                  read_again, nearly_too_long, one_ms_more, NULL});
    assert_int_equal(world->broken, 1);
    assert_int_equal(world->frames, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_frame_that_does_not_come_ends_the_connection, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(the_time_in_which_nobody_reads_does_not_count, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(once_it_is_read_again_a_frame_has_its_time, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
