/* settings: the daemon's settings from their sources, judged as a whole: the table (base/conf.h),
 * and what only upper layers understand, the addresses and the database URL. Reading them again is
 * here too; what a new value does is the server's. */
#ifndef APP_SETTINGS_H
#define APP_SETTINGS_H

#include <stdio.h>

#include "base/conf.h"
#include "base/limits.h"
#include "net/address.h"

struct settings {
    int argc; /* of the command line, which is read again too */
    char **argv;
    struct conf conf;
    struct address listen[LISTENERS_MAX];
    size_t listen_count;
};

/* argv without what is no setting. The argv must stay. */
enum code settings_load(struct settings *settings, int argc, char **argv,
                        struct err *err) MUST_CHECK;

/* Each setting with its origin, one a line; no password. */
void settings_print(const struct settings *settings, FILE *out);

/* Loads anew, takes over what may change while running, and logs what that is and what needs a
 * restart. False: nothing changed, and the log says why. */
bool settings_reload(struct settings *running);

#endif
