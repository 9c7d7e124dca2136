/* conf_table: the rows of conf.def as data, for the files that make up conf (conf.c, conf_file.c,
 * conf_nearest.c, conf_help.c). Nobody else includes this. */
#ifndef BASE_CONF_TABLE_H
#define BASE_CONF_TABLE_H

#include <stddef.h>

#include "base/conf.h"

enum conf_kind { CONF_KIND_TEXT, CONF_KIND_U32, CONF_KIND_CHOICE, CONF_KIND_SWITCH };
enum conf_trait { CONF_PLAIN, CONF_SECRET, CONF_LIST, CONF_NOT_IN_FILE };
enum conf_reload { CONF_RESTART, CONF_RELOAD };

struct conf_row {
    const char *name;
    const char *flag;
    const char *environment;
    const char *text_preset; /* CONF_KIND_TEXT */
    const char *choices;     /* CONF_KIND_CHOICE: separated by bars */
    const char *unit;        /* CONF_KIND_U32 */
    const char *help;
    size_t offset;
    enum conf_kind kind;
    enum conf_trait trait;
    enum conf_reload reload;
    uint32_t preset;
    uint32_t min;
    uint32_t max; /* of a number, or the bytes of a text */
};

extern const struct conf_row conf_rows[CONF_COUNT];

/* Where a value stands, for the sentence about it: "--pool-size", "AWA_POOL_SIZE" or
 * "/etc/awa.conf, line 3: pool_size". */
enum code conf_set(struct conf *conf, const struct conf_row *row, struct conf_origin origin,
                   const char *where, const char *value, struct err *err) MUST_CHECK;

/* Reads the file into conf. (conf_file.c) */
enum code conf_read_file(struct conf *conf, const char *path, struct err *err) MUST_CHECK;

/* The setting whose name, or whose flag, is nearly this one; NULL when none is. (conf_nearest.c) */
const struct conf_row *conf_nearest(const char *name, size_t len, bool in_file);

/* The choice with this number; *len is its length. */
const char *conf_choice(const struct conf_row *row, uint32_t number, size_t *len);

/* Whether a text may be shown although nobody knows what it is: it holds nothing that a URL or a
 * password would. */
bool conf_is_word(const char *text, size_t len);

#endif
