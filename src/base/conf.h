/* conf: the settings of the daemon. conf.def is the table; everything here comes from it.
 *
 * Precedence: flag over environment over file over default. An empty environment value counts as
 * not set. A bad value is an error wherever it stands, also where a stronger source hides it, and
 * the sentence names the source, the setting and the limit; never the value of a secret.
 * Invariant: after conf_load returned CODE_OK each value lies in its range and the settings fit
 * each other. A conf owns all it holds: it may be copied. Not here: what a text means (an address,
 * a URL), which its user judges.
 */
#ifndef BASE_CONF_H
#define BASE_CONF_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum conf_id {
#define CONF_TEXT(member, ...)   CONF_ID_##member,
#define CONF_U32(member, ...)    CONF_ID_##member,
#define CONF_CHOICE(member, ...) CONF_ID_##member,
#define CONF_SWITCH(member, ...) CONF_ID_##member,
#include "base/conf.def"
#undef CONF_TEXT
#undef CONF_U32
#undef CONF_CHOICE
#undef CONF_SWITCH
    CONF_COUNT,
};

/* In the order of their precedence. */
enum conf_source { CONF_DEFAULT, CONF_FILE, CONF_ENVIRONMENT, CONF_FLAG };

struct conf_origin {
    enum conf_source source;
    unsigned line;  /* of the file */
    unsigned inner; /* of the file that this line includes; 0: it includes none */
};

struct conf {
#define CONF_TEXT(member, flag, environment, preset, bytes_max, ...) char member[(bytes_max) + 1];
#define CONF_U32(member, ...)                                        uint32_t member;
#define CONF_CHOICE(member, ...)                                     uint32_t member;
#define CONF_SWITCH(member, ...)                                     uint32_t member;
#include "base/conf.def"
#undef CONF_TEXT
#undef CONF_U32
#undef CONF_CHOICE
#undef CONF_SWITCH
    struct conf_origin origins[CONF_COUNT];
};

enum { CONF_VALUE_BYTES = 2100 }; /* any value as a text */

/* argv[0] is skipped. getenv_fn is getenv, or a test's own. What is no setting (--help) is the
 * caller's to take out before. */
enum code conf_load(struct conf *conf, int argc, char **argv, char *(*getenv_fn)(const char *name),
                    struct err *err) MUST_CHECK;

/* The name of a setting, as in the file; its value as a text, "(not shown)" for a secret; and where
 * the value is from, as a phrase. */
const char *conf_name(enum conf_id id);
const char *conf_value(const struct conf *conf, enum conf_id id, char out[CONF_VALUE_BYTES]);
const char *conf_origin(const struct conf *conf, enum conf_id id, char out[CONF_VALUE_BYTES]);

bool conf_differs(const struct conf *one, const struct conf *other, enum conf_id id);

/* Whether a running daemon can take a new value; and taking it, with its origin. */
bool conf_is_reloadable(enum conf_id id);
void conf_adopt(struct conf *running, const struct conf *fresh, enum conf_id id);

/* One paragraph a setting; and the reference page, docs/configuration.md. */
void conf_print_help(FILE *out);
void conf_print_reference(FILE *out);

#endif
