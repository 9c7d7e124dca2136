/* target: the database and the schema that a command works on: from its options, else from the
 * environment. Not here: the daemon's, which are settings among others (settings.h). */
#ifndef APP_TARGET_H
#define APP_TARGET_H

#include "base/err.h"

struct target {
    const char *url;    /* NULL: nobody named one */
    const char *schema; /* awa, where nobody named one */
};

/* As the environment has it; options then replace what they name. */
struct target target_from_environment(void);

enum code target_check(const struct target *target, struct err *err) MUST_CHECK;

#endif
