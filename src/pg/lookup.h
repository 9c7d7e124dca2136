/* lookup: looks the names of hosts up in a helper thread, and hands the addresses to the loop.
 *
 * Why: getaddrinfo waits, for seconds where a name server is slow or dead, and no other call does
 * what it does (nsswitch, /etc/hosts, resolv.conf as it is now): docs/decisions/0220. The only
 * thread beside the loop, and none of it in the data path.
 * Invariants: the thread touches nothing but the memory that it shares with its lookup; it writes
 * the answer to a name before it counts it as answered, and never after; what is shared is freed by
 * whoever lets go last. So a lookup may be freed at any time, however long the thread still hangs,
 * and the process ends without it. The thread is sent no signals and allocates nothing itself.
 * Limit: LOOKUPS_MAX threads for each struct lookups, those that nobody waits for any more
 * included; as many: the next lookup is refused, until one of them ends. Not here: when to give up
 * (pipe.h), what an address is good for (hosts.h).
 */
#ifndef PG_LOOKUP_H
#define PG_LOOKUP_H

#include "base/err.h"
#include "ev/loop.h"
#include "pg/hosts.h"

struct lookups; /* those that count against one limit */
struct lookup;

struct lookups *lookups_new(void);
void lookups_free(struct lookups *lookups); /* does not wait for any */

/* Begins; the names are looked up one after the other. What `hosts` holds, some names among it,
 * is taken, also on failure. on_end is called once, from the loop, when all are answered; it may
 * free the lookup. NULL: *err says why. */
struct lookup *lookup_new_take(struct loop *loop, struct lookups *lookups, struct hosts *hosts,
                               void (*on_end)(void *ctx), void *ctx, struct err *err);
void lookup_free(struct lookup *lookup); /* NULL is fine */

/* At any time: the hosts that can be connected to as far as is known now, to be freed by the
 * caller; without those whose names were not found, or not yet. *err: of the first of these. */
void lookup_found(const struct lookup *lookup, struct hosts *found, struct err *err);

#endif
