/* conf: the settings of the daemon. conf.def is the table; this struct, the defaults, the flags,
 * the environment names and the help text all come from it.
 *
 * Precedence: flag over environment over default. An empty environment value counts as not set.
 * Invariant: after conf_load returned CODE_OK each number lies in its range and each text is not
 * NULL. Texts are borrowed from argv, the environment and the table: they live as long as the
 * process.
 */
#ifndef BASE_CONF_H
#define BASE_CONF_H

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

struct conf {
#define CONF_TEXT(member, flag, environment, preset, help)          const char *member;
#define CONF_U32(member, flag, environment, preset, min, max, help) uint32_t member;
#include "base/conf.def"
#undef CONF_TEXT
#undef CONF_U32
};

/* argv[0] is skipped. getenv_fn is getenv, or a test's own. "--help" is the caller's to look for.
 */
enum code conf_load(struct conf *conf, int argc, char **argv, char *(*getenv_fn)(const char *name),
                    struct err *err) MUST_CHECK;

/* One paragraph a setting: flag, environment name, range, default, meaning. */
void conf_print_help(FILE *out);

#endif
