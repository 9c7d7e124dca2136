/* address: where clients connect: "unix:/path", "tcp:127.0.0.1:7433" or "tcp:[::1]:7433".
 *
 * Why only numbers after tcp: a name may stand for several addresses, and which machines can reach
 * it has to be known before anything listens. Pure: opens nothing.
 */
#ifndef NET_ADDRESS_H
#define NET_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/err.h"

enum { ADDRESS_TEXT_BYTES = 160 };

struct address {
    union {
        struct sockaddr any;
        struct sockaddr_un local;
        struct sockaddr_storage storage;
    } of;
    socklen_t len;
};

enum code address_parse(struct address *address, const char *text, struct err *err) MUST_CHECK;

/* Back to the text; after getsockname it holds the port that the system chose. */
const char *address_text(const struct address *address, char out[ADDRESS_TEXT_BYTES]);

bool address_is_unix(const struct address *address);

/* Whether only this machine can reach it. */
bool address_is_private(const struct address *address);

#endif
