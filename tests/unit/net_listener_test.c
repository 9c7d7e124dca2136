/* net: addresses that clients connect to, and what an accepted TCP socket is set to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "net/address.h"
#include "net/listener.h"

static void reads_as(const char *text, const char *back, bool is_private)
{
    struct address address;
    struct err err;
    char out[ADDRESS_TEXT_BYTES];

    assert_int_equal(address_parse(&address, text, &err), CODE_OK);
    assert_string_equal(address_text(&address, out), back);
    assert_int_equal(address_is_private(&address), is_private);
}

static void addresses_are_read(void **state)
{
    (void)state;
    reads_as("unix:/run/awa.sock", "unix:/run/awa.sock", true);
    reads_as("tcp:127.0.0.1:7433", "tcp:127.0.0.1:7433", true);
    reads_as("tcp:127.9.9.9:0", "tcp:127.9.9.9:0", true);
    reads_as("tcp:[::1]:65535", "tcp:[::1]:65535", true);
    reads_as("tcp:[::ffff:127.0.0.1]:5", "tcp:[::ffff:127.0.0.1]:5", true);
    reads_as("tcp:0.0.0.0:1", "tcp:0.0.0.0:1", false);
    reads_as("tcp:126.255.255.255:1", "tcp:126.255.255.255:1", false);
    reads_as("tcp:128.0.0.1:1", "tcp:128.0.0.1:1", false);
    reads_as("tcp:[::]:1", "tcp:[::]:1", false);
    reads_as("tcp:[::ffff:10.0.0.1]:5", "tcp:[::ffff:10.0.0.1]:5", false);
}

static void refuses(const char *text, const char *words)
{
    struct address address;
    struct err err;

    assert_int_equal(address_parse(&address, text, &err), CODE_INVALID_ARGUMENT);
    if (strstr(err.message, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void what_is_no_address_is_told_so(void **state)
{
    (void)state;
    char path[200];

    memset(path, 'x', sizeof path);
    memcpy(path, "unix:/", 6);
    path[5 + 108] = '\0'; /* 107 fit, and a NUL */
    refuses(path, "longer than 107 bytes");
    refuses("unix:", "path");
    refuses("/run/awa.sock", "is not unix:/path");
    refuses("", "is not unix:/path");
    refuses("tcp:1", "is not tcp:address:port");
    refuses("tcp::1", "is not tcp:address:port");
    refuses("tcp:::1:5", "is not tcp:address:port");
    refuses("tcp:[::1]5", "is not tcp:address:port");
    refuses("tcp:[::1:5", "is not tcp:address:port");
    refuses("tcp:127.0.0.1:", "the port is not 0 to 65535");
    refuses("tcp:127.0.0.1:65536", "the port is not 0 to 65535");
    refuses("tcp:127.0.0.1:123456789012345678901", "the port is not 0 to 65535");
    refuses("tcp:127.0.0.1:+5", "the port is not 0 to 65535");
    refuses("tcp:localhost:5", "\"localhost\" is not an address such as 127.0.0.1");
    refuses("tcp:[127.0.0.1]:5", "is not an address");
    refuses("tcp:256.0.0.1:5", "is not an address");
}

static void take_fd(void *ctx, int fd)
{
    *(int *)ctx = fd;
}

static void stop(void *ctx)
{
    if (*(int *)((void **)ctx)[1] >= 0)
        loop_stop(((void **)ctx)[0]);
    else
        loop_again(((void **)ctx)[0]);
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t len = sizeof value;

    assert_int_equal(getsockopt(fd, level, name, &value, &len), 0);
    return value;
}

static void accepted_tcp_sockets_are_tuned(void **state)
{
    (void)state;
    struct loop *loop = loop_new();
    struct listener *listener = NULL;
    struct address address;
    struct err err;
    int accepted = -1;
    void *end[] = {loop, &accepted};

    assert_int_equal(address_parse(&address, "tcp:127.0.0.1:0", &err), CODE_OK);
    assert_int_equal(listener_open(loop, &address, take_fd, &accepted, &listener, &err), CODE_OK);
    const struct address *real = listener_address(listener);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(client, &real->of.any, real->len), 0);
    loop_add_hook(loop, stop, end);
    loop_run(loop);
    assert_int_equal(option(accepted, IPPROTO_TCP, TCP_NODELAY), 1);
    assert_int_equal(option(accepted, SOL_SOCKET, SO_KEEPALIVE), 1);
    assert_int_equal(option(accepted, IPPROTO_TCP, TCP_KEEPIDLE), 30);
    assert_int_equal(option(accepted, IPPROTO_TCP, TCP_KEEPINTVL), 10);
    assert_int_equal(option(accepted, IPPROTO_TCP, TCP_KEEPCNT), 3);
    assert_int_equal(option(accepted, IPPROTO_TCP, TCP_USER_TIMEOUT), 30000);
    close(client);
    close(accepted);
    listener_close(listener);
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_read),
        cmocka_unit_test(what_is_no_address_is_told_so),
        cmocka_unit_test(accepted_tcp_sockets_are_tuned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
