/* nth_failure: a library for LD_PRELOAD that makes one call of a running program fail: the Nth
 * allocation by the program itself (not by its libraries), or the Nth send(), from now on.
 *
 * Why: what a program does at its worst moment is tested at every moment, without hooks in it. The
 * test steers through a file that both map (AWA_NTH_FILE): it writes what is to fail, then how many
 * calls from now, and reads whether it struck. AWA_NTH_SOCKET_BYTES makes the send and receive
 * buffers of every socket so small. Not here: what must be true afterwards; see
 * tests/integration/test_nth_failure.py and tests/clients/test_memory.py. Under AddressSanitizer
 * allocations are its own: they do not come by here.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum target { TARGET_NONE, TARGET_ALLOCATION, TARGET_SEND };

enum { ERRNO_SHORT = 0 }; /* no error: one byte is taken */

/* The file. The test writes `left` last. */
struct plan {
    _Atomic uint32_t target;
    _Atomic uint32_t failure; /* of send: an errno, or ERRNO_SHORT */
    _Atomic int64_t left;     /* strikes when it becomes 0 */
    _Atomic uint64_t struck;
};

/* Only such a library can have no owner for these. */
static struct plan *plan;
static int socket_bytes;
static uintptr_t program_start;
static uintptr_t program_end;

/* The C library's own, from before this library came. */
extern void *__libc_malloc(size_t size_bytes);
extern void *__libc_calloc(size_t count, size_t size_bytes);
extern void *__libc_realloc(void *old, size_t size_bytes);

static int note_program(struct dl_phdr_info *info, size_t size_bytes, void *ctx)
{
    (void)size_bytes;
    (void)ctx;
    program_start = UINTPTR_MAX;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type != PT_LOAD)
            continue;
        program_start = start < program_start ? start : program_start;
        program_end = start + part->p_memsz > program_end ? start + part->p_memsz : program_end;
    }
    return 1; /* the program is the first */
}

__attribute__((constructor)) static void open_plan(void)
{
    const char *path = getenv("AWA_NTH_FILE");
    const char *bytes = getenv("AWA_NTH_SOCKET_BYTES");

    socket_bytes = bytes != NULL ? (int)strtol(bytes, NULL, 10) : 0;
    dl_iterate_phdr(note_program, NULL);
    if (path == NULL)
        return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        abort();
    void *mapped = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (mapped == MAP_FAILED)
        abort();
    plan = mapped;
}

static int strikes(enum target target)
{
    if (plan == NULL || plan->target != (uint32_t)target || plan->left <= 0)
        return 0;
    if (atomic_fetch_sub(&plan->left, 1) != 1)
        return 0;
    plan->struck++;
    return 1;
}

static int allocation_strikes(const void *caller)
{
    uintptr_t at = (uintptr_t)caller;

    return at >= program_start && at < program_end && strikes(TARGET_ALLOCATION);
}

static void *no_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): glibc's are reserved names. */

void *malloc(size_t size_bytes)
{
    return allocation_strikes(__builtin_return_address(0)) ? no_memory()
                                                           : __libc_malloc(size_bytes);
}

void *calloc(size_t count, size_t size_bytes)
{
    return allocation_strikes(__builtin_return_address(0)) ? no_memory()
                                                           : __libc_calloc(count, size_bytes);
}

void *realloc(void *old, size_t size_bytes)
{
    return allocation_strikes(__builtin_return_address(0)) ? no_memory()
                                                           : __libc_realloc(old, size_bytes);
}

ssize_t send(int fd, const void *data, size_t size_bytes, int flags)
{
    if (!strikes(TARGET_SEND))
        return sendto(fd, data, size_bytes, flags, NULL, 0);
    if (plan->failure == ERRNO_SHORT)
        return sendto(fd, data, size_bytes > 0, flags, NULL, 0);
    if (plan->failure != EAGAIN)
        shutdown(fd, SHUT_RDWR); /* a lost connection can not be read either: libpq relies on it */
    errno = (int)plan->failure;
    return -1;
}

static int make_small(int fd)
{
    if (fd >= 0 && socket_bytes > 0) {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &socket_bytes, sizeof socket_bytes);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &socket_bytes, sizeof socket_bytes);
    }
    return fd;
}

int socket(int domain, int type, int protocol)
{
    static _Atomic(int (*)(int, int, int)) next;

    if (next == NULL)
        next = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
    return make_small(next(domain, type, protocol));
}

int accept4(int fd, struct sockaddr *restrict from, socklen_t *restrict len, int flags)
{
    static _Atomic(int (*)(int, struct sockaddr *, socklen_t *, int)) next;

    if (next == NULL)
        next = (int (*)(int, struct sockaddr *, socklen_t *, int))dlsym(RTLD_NEXT, "accept4");
    return make_small(next(fd, from, len, flags));
}

/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
