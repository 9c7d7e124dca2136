/* names: a library for LD_PRELOAD that answers for some host names in place of the resolver.
 *
 * Why: what a slow or dead name server does to a program is tested without one. AWA_NAMES_FOLDER
 * holds a file for each such name: its numeric addresses, with spaces between; empty: a temporary
 * failure. A lookup takes a shared lock on the file first, so it hangs as long as the test holds an
 * exclusive one. All other names go to the C library. Not here: what must be true meanwhile; see
 * tests/integration/test_names.py.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

typedef int resolve(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* The C library's own, or a sanitizer's. */
static resolve *next_resolve(void)
{
    static _Atomic(resolve *) next;

    if (next == NULL)
        next = (resolve *)dlsym(RTLD_NEXT, "getaddrinfo");
    return next;
}

/* -1: not one of our names. */
static int open_name(const char *name)
{
    const char *folder = getenv("AWA_NAMES_FOLDER");
    char path[4096];

    if (folder == NULL || name == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static void read_name(int fd, char *text, size_t text_bytes)
{
    while (flock(fd, LOCK_SH) != 0)
        continue;
    ssize_t len = read(fd, text, text_bytes - 1);
    text[len > 0 ? len : 0] = '\0';
    close(fd);
}

/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): glibc's are reserved names. */

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict list)
{
    int fd = open_name(name);
    char text[1024];
    char *rest = text;
    struct addrinfo **end = list;

    if (fd < 0)
        return next_resolve()(name, service, hints, list);
    read_name(fd, text, sizeof text);
    *list = NULL;
    for (char *address; (address = strsep(&rest, " ")) != NULL;) {
        if (address[0] == '\0' || next_resolve()(address, service, hints, end) != 0)
            continue;
        while (*end != NULL)
            end = &(*end)->ai_next;
    }
    return *list != NULL ? 0 : EAI_AGAIN;
}

/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
