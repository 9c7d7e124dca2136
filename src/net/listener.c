/* listener: see listener.h. */
#include "net/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

enum { BACKLOG = 512, ACCEPTS_PER_TURN = 64, SOCKET_MODE = 0660 };

/* A TCP client that is silent for 30 s is asked whether it is there, and one that acknowledges
 * nothing for 30 s is gone: its jobs go back. */
enum {
    KEEPALIVE_IDLE_S = 30,
    KEEPALIVE_EVERY_S = 10,
    KEEPALIVE_PROBES = 3,
    UNACKED_MS = 30 * 1000
};

struct listener {
    struct loop *loop;
    int fd;
    int spare_fd;
    dev_t device; /* of our socket file, so that we do not remove another's */
    ino_t inode;
    struct address address;
    struct watch *watch;
    struct loop_timer *pause;
    void (*on_accept)(void *ctx, int fd);
    void *ctx;
};

/* ---- a Unix socket ---- */

/* Two that start at once must not both find the same dead file, and the later one remove the
 * other's new one. So looking, removing and making are done under a lock on the folder. */
static enum code lock_folder(const struct sockaddr_un *address, int *fd, struct err *err)
{
    char path[sizeof address->sun_path];

    memcpy(path, address->sun_path, sizeof path);
    *fd = open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*fd >= 0 && flock(*fd, LOCK_EX) == 0)
        return CODE_OK;
    return err_set(err, CODE_PERMISSION_DENIED, "cannot make the socket %s: %s", address->sun_path,
                   errno == ENOENT ? "its folder does not exist" : strerror(errno));
}

/* A socket file that nobody answers on is left over from a process that died. */
static enum code remove_stale(const struct sockaddr_un *address, struct err *err)
{
    struct stat found;

    if (lstat(address->sun_path, &found) != 0)
        return CODE_OK;
    if (!S_ISSOCK(found.st_mode))
        return err_set(err, CODE_ALREADY_EXISTS, "%s exists and is not a socket",
                       address->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_set(err, CODE_INTERNAL, "socket: %s", strerror(errno));
    int connected = connect(fd, (const struct sockaddr *)address, sizeof *address);
    int why = errno;
    close(fd);
    if (connected == 0 || why == EAGAIN)
        return err_set(err, CODE_ALREADY_EXISTS, "another process listens on %s",
                       address->sun_path);
    if (why != ECONNREFUSED)
        return err_set(err, CODE_PERMISSION_DENIED, "%s: %s", address->sun_path, strerror(why));
    unlink(address->sun_path);
    return CODE_OK;
}

static enum code bind_unix(struct listener *listener, struct err *err)
{
    const struct sockaddr_un *address = &listener->address.of.local;
    struct stat made;

    mode_t before = umask(0777 & ~SOCKET_MODE); /* no moment in which others could connect */
    int bound = bind(listener->fd, (const struct sockaddr *)address, sizeof *address);
    int why = errno;
    umask(before);
    if (bound != 0)
        return err_set(err, CODE_PERMISSION_DENIED, "cannot make the socket %s: %s",
                       address->sun_path, strerror(why));
    if (listen(listener->fd, BACKLOG) != 0 || lstat(address->sun_path, &made) != 0)
        return err_set(err, CODE_INTERNAL, "listen %s: %s", address->sun_path, strerror(errno));
    listener->device = made.st_dev;
    listener->inode = made.st_ino;
    return CODE_OK;
}

static enum code open_unix(struct listener *listener, struct err *err)
{
    int folder = -1;
    enum code code = lock_folder(&listener->address.of.local, &folder, err);

    if (code == CODE_OK)
        code = remove_stale(&listener->address.of.local, err);
    if (code == CODE_OK)
        code = bind_unix(listener, err);
    if (folder >= 0)
        close(folder); /* and its lock goes */
    return code;
}

/* ---- a TCP socket ---- */

static void set_option(int fd, int level, int option, int value)
{
    (void)setsockopt(fd, level, option, &value, sizeof value); /* without it, it still works */
}

static enum code open_tcp(struct listener *listener, struct err *err)
{
    struct address *address = &listener->address;
    char text[ADDRESS_TEXT_BYTES];

    set_option(listener->fd, SOL_SOCKET, SO_REUSEADDR, 1); /* connections of a former process */
    if (address->of.any.sa_family == AF_INET6)
        set_option(listener->fd, IPPROTO_IPV6, IPV6_V6ONLY, 1); /* 0.0.0.0 is another address */
    if (bind(listener->fd, &address->of.any, address->len) != 0 ||
        listen(listener->fd, BACKLOG) != 0 ||
        getsockname(listener->fd, &address->of.any, &address->len) != 0)
        return err_set(err, CODE_ALREADY_EXISTS, "cannot listen on %s: %s",
                       address_text(address, text),
                       errno == EADDRINUSE ? "another process does" : strerror(errno));
    return CODE_OK;
}

static void tune_client(int fd)
{
    set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1); /* answers are collected here already */
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, UNACKED_MS);
}

/* ---- accepting ---- */

/* Out of descriptors: give up the spare one, so that one client is told by a close instead of
 * hanging. */
static void pause_accepting(struct listener *listener)
{
    log_event(LOG_WARN, "accept_paused", "pause_ms=%d reason=\"%s\"", ACCEPT_PAUSE_MS,
              strerror(errno));
    close(listener->spare_fd);
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    watch_want(listener->watch, 0);
    loop_timer_set(listener->pause, clock_mono_us() + (uint64_t)ACCEPT_PAUSE_MS * US_PER_MS);
}

static void on_pause_over(void *ctx)
{
    struct listener *listener = ctx;
    watch_want(listener->watch, WATCH_READ);
}

static void on_ready(void *ctx, unsigned ready)
{
    struct listener *listener = ctx;

    (void)ready;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            if (!address_is_unix(&listener->address))
                tune_client(fd);
            listener->on_accept(listener->ctx, fd);
            continue;
        }
        if (errno == ECONNABORTED || errno == EINTR)
            continue;
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            pause_accepting(listener);
        return;
    }
}

static enum code open_socket(struct listener *listener, struct err *err)
{
    listener->fd =
        socket(listener->address.of.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0)
        return err_set(err, CODE_INTERNAL, "socket: %s", strerror(errno));
    return address_is_unix(&listener->address) ? open_unix(listener, err) : open_tcp(listener, err);
}

enum code listener_open(struct loop *loop, const struct address *address,
                        void (*on_accept)(void *ctx, int fd), void *ctx, struct listener **out,
                        struct err *err)
{
    struct listener *listener = mem_zalloc(sizeof *listener);

    *listener = (struct listener){.loop = loop,
                                  .fd = -1,
                                  .spare_fd = -1,
                                  .address = *address,
                                  .on_accept = on_accept,
                                  .ctx = ctx};
    enum code code = open_socket(listener, err);
    if (code != CODE_OK) {
        listener_close(listener);
        return code;
    }
    listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    listener->watch = watch_new(loop, listener->fd, on_ready, listener);
    listener->pause = loop_timer_new(loop, on_pause_over, listener);
    watch_want(listener->watch, WATCH_READ);
    *out = listener;
    return CODE_OK;
}

const struct address *listener_address(const struct listener *listener)
{
    return &listener->address;
}

static void remove_own_file(const struct listener *listener)
{
    const char *path = listener->address.of.local.sun_path;
    struct stat found;

    if (listener->inode != 0 && lstat(path, &found) == 0 && found.st_dev == listener->device &&
        found.st_ino == listener->inode)
        unlink(path);
}

void listener_close(struct listener *listener)
{
    if (listener == NULL)
        return;
    loop_timer_free(listener->pause);
    watch_free(listener->watch);
    remove_own_file(listener);
    if (listener->fd >= 0)
        close(listener->fd);
    if (listener->spare_fd >= 0)
        close(listener->spare_fd);
    mem_free(listener);
}
