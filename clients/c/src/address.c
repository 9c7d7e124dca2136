// address.c: from an address to a connected socket.
//
// What: "unix:/path", and "tcp:host:port" with an IPv6 address in brackets. A
// name is looked up with getaddrinfo, which keeps no deadline; everything else
// does. Each address of a name is tried in turn.
#include "internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    HOST_MAX_BYTES = 256,
    PORT_MAX = 65535,
    SOCKET_FLAGS = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC
};

// The proxy answers at once or is gone: as the proxy does with its clients.
enum { KEEPALIVE_IDLE_S = 30, KEEPALIVE_EVERY_S = 10, KEEPALIVE_PROBES = 3, UNACKED_MS = 30000 };

static enum awa_code open_unix(const char *path, int64_t deadline_ms, int *fd,
                               struct awa_error *error)
{
    struct sockaddr_un peer = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof peer.sun_path)
        return awai_fail(error, AWA_INVALID_ARGUMENT, "the path of the socket is longer than %zu",
                         sizeof peer.sun_path - 1);
    memcpy(peer.sun_path, path, strlen(path) + 1);
    *fd = socket(AF_UNIX, SOCKET_FLAGS, 0);
    if (*fd < 0)
        return awai_fail(error, AWA_UNAVAILABLE, "socket: %s", strerror(errno));
    // EAGAIN: the proxy's backlog is full, and a Unix socket offers nothing to poll for.
    while (connect(*fd, (struct sockaddr *)&peer, sizeof peer) != 0) {
        if ((errno == EAGAIN || errno == EINTR) && awai_now_ms() < deadline_ms) {
            usleep(1000);
            continue;
        }
        awai_fail(error, AWA_UNAVAILABLE, "cannot connect to unix:%s: %s", path, strerror(errno));
        close(*fd);
        return AWA_UNAVAILABLE;
    }
    return AWA_OK;
}

static void set_option(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof value); // without it, it still works
}

static void tune(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, UNACKED_MS);
}

// 0, or why not.
static int wait_connected(int fd, int64_t deadline_ms)
{
    for (;;) {
        struct pollfd watched = {.fd = fd, .events = POLLOUT};
        int ready = poll(&watched, 1, awai_left_ms(deadline_ms));
        if (ready == 0)
            return ETIMEDOUT;
        if (ready < 0 && errno == EINTR)
            continue;
        int why = errno;
        socklen_t len = sizeof why;
        if (ready > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) != 0)
            why = errno;
        return why;
    }
}

// The socket, or -1 and *why.
static int try_one(const struct addrinfo *one, int64_t deadline_ms, int *why)
{
    int fd = socket(one->ai_family, SOCKET_FLAGS, 0);
    *why = 0;
    if (fd < 0 || connect(fd, one->ai_addr, one->ai_addrlen) != 0)
        *why = errno;
    if (fd >= 0 && (*why == EINPROGRESS || *why == EINTR))
        *why = wait_connected(fd, deadline_ms);
    if (*why == 0) {
        tune(fd);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

// Cuts "host:port" or "[host]:port"; NULL for anything else. The port is returned.
static const char *cut_host(const char *text, char host[HOST_MAX_BYTES])
{
    bool bracketed = text[0] == '[';
    const char *start = text + bracketed;
    size_t len = strcspn(start, bracketed ? "]" : ":");
    const char *end = start + len;
    if (len == 0 || len >= HOST_MAX_BYTES || (bracketed && *end++ != ']') || *end != ':')
        return NULL;
    memcpy(host, start, len);
    host[len] = '\0';
    size_t digits = strspn(end + 1, "0123456789");
    return digits > 0 && end[1 + digits] == '\0' ? end + 1 : NULL;
}

static enum awa_code open_tcp(const char *text, int64_t deadline_ms, int *fd,
                              struct awa_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    char host[HOST_MAX_BYTES];
    const char *port = cut_host(text, host);
    if (port == NULL)
        return awai_fail(error, AWA_INVALID_ARGUMENT,
                         "\"tcp:%s\" is not tcp:host:port or tcp:[address]:port", text);
    unsigned long number = strtoul(port, NULL, 10); // too large a number is the largest there is
    if (number < 1 || number > PORT_MAX)
        return awai_fail(error, AWA_INVALID_ARGUMENT, "the port of tcp:%s is not 1 to %d", text,
                         PORT_MAX);
    int failed = getaddrinfo(host, port, &hints, &found);
    if (failed != 0)
        return awai_fail(error, AWA_UNAVAILABLE, "cannot look up %s: %s", host,
                         gai_strerror(failed));
    int why = 0;
    *fd = -1;
    for (const struct addrinfo *one = found; one != NULL && *fd < 0; one = one->ai_next)
        *fd = try_one(one, deadline_ms, &why);
    freeaddrinfo(found);
    if (*fd < 0)
        return awai_fail(error, AWA_UNAVAILABLE, "cannot connect to tcp:%s: %s", text,
                         strerror(why));
    return AWA_OK;
}

enum awa_code awai_open_socket(const char *address, int64_t deadline_ms, int *fd,
                               struct awa_error *error)
{
    if (address != NULL && strncmp(address, "unix:", 5) == 0)
        return open_unix(address + 5, deadline_ms, fd, error);
    if (address != NULL && strncmp(address, "tcp:", 4) == 0)
        return open_tcp(address + 4, deadline_ms, fd, error);
    return awai_fail(error, AWA_INVALID_ARGUMENT,
                     "the address must look like unix:/path or tcp:host:port");
}
