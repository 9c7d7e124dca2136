/* server: the daemon: wires the event loop, clients, core and the database together.
 *
 * One turn of the loop: callbacks (frames, results) -> database_reap -> core_turn ->
 * database_dispatch -> net_turn -> turn_end. So what came in together shares a transaction, and
 * each client is written to once. SIGTERM or SIGINT: stop listening, answer what is in flight, let
 * workers finish what they hold until drain_timeout, hand back the rest, end. A second signal hands
 * back at once. SIGHUP: read the settings again (settings.h). SIGUSR1: log the counters, as at the
 * end.
 */
#ifndef APP_SERVER_H
#define APP_SERVER_H

#include <stdbool.h>

#include "app/settings.h"

/* Until a signal ends it. False after a complaint on stderr: it could not begin. */
bool server_run(struct settings *settings);

#endif
