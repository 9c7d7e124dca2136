/* address: see address.h. */
#include "net/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

enum { HOST_BYTES_MAX = 64, PORT_DIGITS_MAX = 5, PORT_MAX = 65535, SHOWN_BYTES = 100 };

static enum code parse_unix(struct address *address, const char *path, struct err *err)
{
    size_t size = sizeof address->of.local.sun_path;

    if (path[0] == '\0')
        return err_set(err, CODE_INVALID_ARGUMENT, "unix: needs the path of a socket");
    if (strlen(path) >= size)
        return err_set(err, CODE_INVALID_ARGUMENT, "the socket path is longer than %zu bytes: %.*s",
                       size - 1, SHOWN_BYTES, path);
    address->of.local.sun_family = AF_UNIX;
    memcpy(address->of.local.sun_path, path, strlen(path) + 1);
    address->len = sizeof address->of.local;
    return CODE_OK;
}

/* Cuts "host:port" or "[host]:port"; NULL for anything else. The port is what is returned. */
static const char *cut_host(const char *text, char host[HOST_BYTES_MAX])
{
    bool bracketed = text[0] == '[';
    const char *start = text + bracketed;
    size_t len = strcspn(start, bracketed ? "]" : ":");
    const char *end = start + len;

    if (len == 0 || len >= HOST_BYTES_MAX || (bracketed && *end++ != ']') || *end != ':')
        return NULL;
    memcpy(host, start, len);
    host[len] = '\0';
    return end + 1;
}

static bool is_port(const char *text)
{
    size_t len = strlen(text);
    unsigned number = 0;

    for (size_t i = 0; i < len && len <= PORT_DIGITS_MAX; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
        number = number * 10 + (unsigned)(text[i] - '0');
    }
    return len > 0 && len <= PORT_DIGITS_MAX && number <= PORT_MAX;
}

static enum code parse_tcp(struct address *address, const char *text, struct err *err)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                             .ai_family = text[0] == '[' ? AF_INET6 : AF_INET,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[HOST_BYTES_MAX];
    const char *port = cut_host(text, host);

    if (port == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT,
                       "\"tcp:%.*s\" is not tcp:address:port or tcp:[address]:port", SHOWN_BYTES,
                       text);
    if (!is_port(port))
        return err_set(err, CODE_INVALID_ARGUMENT, "\"tcp:%.*s\": the port is not 0 to %d",
                       SHOWN_BYTES, text, PORT_MAX);
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return err_set(err, CODE_INVALID_ARGUMENT,
                       "\"%s\" is not an address such as 127.0.0.1 or [::1]; names are not looked"
                       " up",
                       host);
    memcpy(&address->of.storage, found->ai_addr, found->ai_addrlen);
    address->len = found->ai_addrlen;
    freeaddrinfo(found);
    return CODE_OK;
}

enum code address_parse(struct address *address, const char *text, struct err *err)
{
    *address = (struct address){.len = 0};
    if (strncmp(text, "unix:", 5) == 0)
        return parse_unix(address, text + 5, err);
    if (strncmp(text, "tcp:", 4) == 0)
        return parse_tcp(address, text + 4, err);
    return err_set(err, CODE_INVALID_ARGUMENT,
                   "\"%.*s\" is not unix:/path, tcp:address:port or tcp:[address]:port",
                   SHOWN_BYTES, text);
}

const char *address_text(const struct address *address, char out[ADDRESS_TEXT_BYTES])
{
    char host[HOST_BYTES_MAX] = "?";
    char port[PORT_DIGITS_MAX + 1] = "?";

    if (address_is_unix(address)) {
        snprintf(out, ADDRESS_TEXT_BYTES, "unix:%s", address->of.local.sun_path);
        return out;
    }
    getnameinfo(&address->of.any, address->len, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, ADDRESS_TEXT_BYTES,
             address->of.any.sa_family == AF_INET6 ? "tcp:[%s]:%s" : "tcp:%s:%s", host, port);
    return out;
}

bool address_is_unix(const struct address *address)
{
    return address->of.any.sa_family == AF_UNIX;
}

bool address_is_private(const struct address *address)
{
    if (address_is_unix(address))
        return true;
    if (address->of.any.sa_family == AF_INET) {
        struct sockaddr_in four;
        memcpy(&four, &address->of.storage, sizeof four);
        return ntohl(four.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    }
    struct sockaddr_in6 six;
    memcpy(&six, &address->of.storage, sizeof six);
    return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) && six.sin6_addr.s6_addr[12] == IN_LOOPBACKNET);
}
