/* hosts: the hosts that a database URL means, one entry each, in the order in which a connection
 * tries them.
 *
 * Why: libpq looks names up inside the calls that must not block, so names are looked up before
 * (lookup.h), and libpq is told the address beside the name: TLS and passwords are still judged by
 * the name. Known: what the URL says, else libpq's environment variables (PGHOST, PGHOSTADDR,
 * PGPORT). Left to libpq, as it is: a service file (service=, PGSERVICE), lists that do not fit
 * each other (libpq says what is wrong before it looks anything up), and no host at all. Attempt
 * number N begins with host N % hosts; and each time all hosts were first once, the addresses
 * behind every name begin one further. So whichever host or address takes connections and then says
 * nothing, another one is tried first soon. Not here: threads.
 */
#ifndef PG_HOSTS_H
#define PG_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/limits.h"

enum host_part { HOST_NAME, HOST_ADDRESS, HOST_PORT, HOST_PARTS };

struct host {
    char *part[HOST_PARTS]; /* NULL: not said; may be empty, as in "host=a,,b" */
};

/* Owned. count 0: libpq reads the URL by itself. */
struct hosts {
    struct host *items;
    size_t count;
    unsigned round; /* how often each of them was first already */
};

enum { ADDRESS_TEXT_MAX = 64 }; /* numeric, with an interface's name behind '%' */

struct addresses {
    size_t count;
    char text[ADDRESSES_PER_NAME_MAX][ADDRESS_TEXT_MAX];
};

/* For attempt number `attempt`, from 0. */
void hosts_from(const char *url, unsigned attempt, struct hosts *hosts);
void hosts_free(struct hosts *hosts);

/* The name that somebody must look up before libpq can connect; NULL: none. */
const char *host_name_to_find(const struct host *host);
bool hosts_have_names(const struct hosts *hosts);

/* Unless it is there already, or there is no room. */
void addresses_add(struct addresses *addresses, const char *text);

/* Appends a copy of the host. */
void hosts_add(struct hosts *hosts, const struct host *host);

/* Appends the host once for each address. As long as nothing has failed (round 0) in the resolver's
 * order, which may spread load; later sorted, or a resolver that turns its list round each time
 * could undo our turning. */
void hosts_add_found(struct hosts *hosts, const struct host *host, const struct addresses *found);

/* This part of all hosts as libpq wants it, with commas; NULL: nobody said it. The caller's. */
char *hosts_list(const struct hosts *hosts, enum host_part part);

#endif
