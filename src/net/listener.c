/* listener: see listener.h. */
#include "net/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"

enum { BACKLOG = 512, ACCEPTS_PER_TURN = 64, SOCKET_MODE = 0660 };

struct listener {
    struct loop *loop;
    int fd;
    int spare_fd;
    dev_t device; /* of our socket file, so that we do not remove another's */
    ino_t inode;
    struct sockaddr_un address;
    struct watch *watch;
    struct loop_timer *pause;
    void (*on_accept)(void *ctx, int fd);
    void *ctx;
};

static enum code fill_address(const char *text, struct sockaddr_un *address, struct err *err)
{
    static const char scheme[] = "unix:";
    const char *path = text + sizeof scheme - 1;

    if (strncmp(text, scheme, sizeof scheme - 1) != 0 || path[0] == '\0')
        return err_set(err, CODE_INVALID_ARGUMENT, "listen address \"%s\" is not unix:/path", text);
    if (strlen(path) >= sizeof address->sun_path)
        return err_set(err, CODE_INVALID_ARGUMENT, "the socket path is longer than %zu bytes: %s",
                       sizeof address->sun_path - 1, path);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path, path, strlen(path) + 1);
    return CODE_OK;
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

static enum code bind_and_listen(struct listener *listener, struct err *err)
{
    const struct sockaddr_un *address = &listener->address;
    struct stat made;

    listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0)
        return err_set(err, CODE_INTERNAL, "socket: %s", strerror(errno));
    mode_t before = umask(0777 & ~SOCKET_MODE); /* no moment in which others could connect */
    int bound = bind(listener->fd, (const struct sockaddr *)address, sizeof *address);
    int why = errno;
    umask(before);
    if (bound != 0)
        return err_set(err, CODE_PERMISSION_DENIED, "cannot make the socket %s: %s",
                       address->sun_path,
                       why == ENOENT ? "its folder does not exist" : strerror(why));
    if (listen(listener->fd, BACKLOG) != 0 || lstat(address->sun_path, &made) != 0)
        return err_set(err, CODE_INTERNAL, "listen %s: %s", address->sun_path, strerror(errno));
    listener->device = made.st_dev;
    listener->inode = made.st_ino;
    return CODE_OK;
}

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
            listener->on_accept(listener->ctx, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            pause_accepting(listener);
        if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

enum code listener_open(struct loop *loop, const char *address,
                        void (*on_accept)(void *ctx, int fd), void *ctx, struct listener **out,
                        struct err *err)
{
    struct listener *listener = mem_zalloc(sizeof *listener);
    enum code code = CODE_OK;

    *listener = (struct listener){
        .loop = loop, .fd = -1, .spare_fd = -1, .on_accept = on_accept, .ctx = ctx};
    code = fill_address(address, &listener->address, err);
    if (code == CODE_OK)
        code = remove_stale(&listener->address, err);
    if (code == CODE_OK)
        code = bind_and_listen(listener, err);
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

static void remove_own_file(const struct listener *listener)
{
    struct stat found;

    if (listener->inode != 0 && lstat(listener->address.sun_path, &found) == 0 &&
        found.st_dev == listener->device && found.st_ino == listener->inode)
        unlink(listener->address.sun_path);
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
