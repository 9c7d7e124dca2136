/* conf: see conf.h. A table of rows made from conf.def, and one setter that all sources use. */
#include "base/conf.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/conf_table.h"

const struct conf_row conf_rows[CONF_COUNT] = {
#define CONF_TEXT(member, flag_name, env_name, default_text, bytes_max, reload_name, trait_name,   \
                  help_text)                                                                       \
    [CONF_ID_##member] = {.kind = CONF_KIND_TEXT,                                                  \
                          .trait = CONF_##trait_name,                                              \
                          .reload = CONF_##reload_name,                                            \
                          .name = #member,                                                         \
                          .flag = flag_name,                                                       \
                          .environment = env_name,                                                 \
                          .text_preset = default_text,                                             \
                          .max = bytes_max,                                                        \
                          .offset = offsetof(struct conf, member),                                 \
                          .help = help_text},
#define CONF_U32(member, flag_name, env_name, default_u32, min_u32, max_u32, unit_text,            \
                 reload_name, help_text)                                                           \
    [CONF_ID_##member] = {.kind = CONF_KIND_U32,                                                   \
                          .reload = CONF_##reload_name,                                            \
                          .name = #member,                                                         \
                          .flag = flag_name,                                                       \
                          .environment = env_name,                                                 \
                          .preset = default_u32,                                                   \
                          .min = min_u32,                                                          \
                          .max = max_u32,                                                          \
                          .unit = unit_text,                                                       \
                          .offset = offsetof(struct conf, member),                                 \
                          .help = help_text},
#define CONF_CHOICE(member, flag_name, env_name, default_number, choices_text, reload_name,        \
                    help_text)                                                                     \
    [CONF_ID_##member] = {.kind = CONF_KIND_CHOICE,                                                \
                          .reload = CONF_##reload_name,                                            \
                          .name = #member,                                                         \
                          .flag = flag_name,                                                       \
                          .environment = env_name,                                                 \
                          .preset = default_number,                                                \
                          .choices = choices_text,                                                 \
                          .offset = offsetof(struct conf, member),                                 \
                          .help = help_text},
#define CONF_SWITCH(member, flag_name, env_name, reload_name, help_text)                           \
    [CONF_ID_##member] = {.kind = CONF_KIND_SWITCH,                                                \
                          .reload = CONF_##reload_name,                                            \
                          .name = #member,                                                         \
                          .flag = flag_name,                                                       \
                          .environment = env_name,                                                 \
                          .offset = offsetof(struct conf, member),                                 \
                          .help = help_text},
#include "base/conf.def"
#undef CONF_TEXT
#undef CONF_U32
#undef CONF_CHOICE
#undef CONF_SWITCH
};

static char *text_in(struct conf *conf, const struct conf_row *row)
{
    return (char *)conf + row->offset;
}

static const char *text_of(const struct conf *conf, const struct conf_row *row)
{
    return (const char *)conf + row->offset;
}

static uint32_t number_of(const struct conf *conf, const struct conf_row *row)
{
    uint32_t number;
    memcpy(&number, (const char *)conf + row->offset, sizeof number);
    return number;
}

static enum code put_number(struct conf *conf, const struct conf_row *row, uint32_t number)
{
    memcpy((char *)conf + row->offset, &number, sizeof number);
    return CODE_OK;
}

/* ---- one value ---- */

const char *conf_choice(const struct conf_row *row, uint32_t number, size_t *len)
{
    const char *at = row->choices;

    for (; number > 0; number--)
        at += strcspn(at, "|") + 1;
    *len = strcspn(at, "|");
    return at;
}

/* A list that flags have begun goes on; everything else is replaced. */
static enum code set_text(struct conf *conf, const struct conf_row *row, struct conf_origin origin,
                          const char *where, const char *value, struct err *err)
{
    char *text = text_in(conf, row);
    const struct conf_origin *before = &conf->origins[row - conf_rows];
    size_t kept =
        row->trait == CONF_LIST && origin.source == CONF_FLAG && before->source == CONF_FLAG
            ? strlen(text)
            : 0;
    size_t len = strlen(value);

    if (kept + (kept > 0) + len > row->max)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: longer than %u bytes", where, row->max);
    if (kept > 0)
        text[kept++] = ',';
    memcpy(text + kept, value, len + 1);
    return CODE_OK;
}

static enum code set_u32(struct conf *conf, const struct conf_row *row, const char *where,
                         const char *value, struct err *err)
{
    char *end = NULL;

    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (!isdigit((unsigned char)value[0]) || *end != '\0' || errno != 0 || number < row->min ||
        number > row->max)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: \"%.40s\" is not a number from %u to %u",
                       where, value, row->min, row->max);
    return put_number(conf, row, (uint32_t)number);
}

static enum code set_choice(struct conf *conf, const struct conf_row *row, const char *where,
                            const char *value, struct err *err)
{
    size_t len = 0;

    for (uint32_t i = 0;; i++) {
        const char *choice = conf_choice(row, i, &len);
        if (strlen(value) == len && memcmp(choice, value, len) == 0)
            return put_number(conf, row, i);
        if (choice[len] == '\0')
            break;
    }
    return err_set(err, CODE_INVALID_ARGUMENT, "%s: \"%.40s\" is not one of %s", where, value,
                   row->choices);
}

static enum code set_switch(struct conf *conf, const struct conf_row *row, const char *where,
                            const char *value, struct err *err)
{
    bool on = strcmp(value, "yes") == 0;

    if (!on && strcmp(value, "no") != 0)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: \"%.40s\" is not yes or no", where, value);
    return put_number(conf, row, on);
}

static enum code set_value(struct conf *conf, const struct conf_row *row, struct conf_origin origin,
                           const char *where, const char *value, struct err *err)
{
    switch (row->kind) {
    case CONF_KIND_TEXT: return set_text(conf, row, origin, where, value, err);
    case CONF_KIND_U32: return set_u32(conf, row, where, value, err);
    case CONF_KIND_CHOICE: return set_choice(conf, row, where, value, err);
    case CONF_KIND_SWITCH: return set_switch(conf, row, where, value, err);
    }
    UNREACHABLE("a kind of setting");
}

enum code conf_set(struct conf *conf, const struct conf_row *row, struct conf_origin origin,
                   const char *where, const char *value, struct err *err)
{
    enum code code = set_value(conf, row, origin, where, value, err);

    if (code == CODE_OK)
        conf->origins[row - conf_rows] = origin;
    return code;
}

/* ---- the sources ---- */

static void put_defaults(struct conf *conf)
{
    memset(conf, 0, sizeof *conf);
    for (size_t i = 0; i < CONF_COUNT; i++) {
        const struct conf_row *row = &conf_rows[i];
        if (row->kind == CONF_KIND_TEXT)
            memcpy(text_in(conf, row), row->text_preset, strlen(row->text_preset) + 1);
        else
            put_number(conf, row, row->preset);
    }
}

static enum code load_environment(struct conf *conf, char *(*getenv_fn)(const char *name),
                                  struct err *err)
{
    const struct conf_origin origin = {.source = CONF_ENVIRONMENT};

    for (size_t i = 0; i < CONF_COUNT; i++) {
        const struct conf_row *row = &conf_rows[i];
        const char *value = getenv_fn(row->environment);
        if (value == NULL || value[0] == '\0')
            continue;
        enum code code = conf_set(conf, row, origin, row->environment, value, err);
        if (code != CODE_OK)
            return code;
    }
    return CODE_OK;
}

bool conf_is_word(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)text[i]) && strchr("-_./", text[i]) == NULL)
            return false;
    return true;
}

static const struct conf_row *row_of_flag(const char *name, size_t name_len)
{
    for (size_t i = 0; i < CONF_COUNT; i++)
        if (strlen(conf_rows[i].flag) == name_len && memcmp(conf_rows[i].flag, name, name_len) == 0)
            return &conf_rows[i];
    return NULL;
}

static enum code refuse_argument(const char *what, const char *arg, size_t len, struct err *err)
{
    if (conf_is_word(arg, len))
        return err_set(err, CODE_INVALID_ARGUMENT, "%s \"%.*s\"", what, len < 60 ? (int)len : 60,
                       arg);
    return err_set(err, CODE_INVALID_ARGUMENT, "%s (it is not shown, it may hold a password)",
                   what);
}

static enum code refuse_option(const char *arg, size_t len, struct err *err)
{
    const struct conf_row *meant = conf_nearest(arg + 2, len - 2, false);

    if (meant == NULL || !conf_is_word(arg, len))
        return refuse_argument("unknown option", arg, len, err);
    return err_set(err, CODE_INVALID_ARGUMENT, "unknown option \"%.*s\"; did you mean --%s?",
                   (int)len, arg, meant->flag);
}

/* Reads "--flag value", "--flag=value" or, for a switch, "--flag" at argv[*at] and moves *at to the
 * last element used. */
static enum code load_flag(struct conf *conf, int argc, char **argv, int *at, struct err *err)
{
    const struct conf_origin origin = {.source = CONF_FLAG};
    const char *arg = argv[*at];
    const char *equals = strchr(arg, '=');
    size_t len = equals != NULL ? (size_t)(equals - arg) : strlen(arg);
    char where[64];

    if (strncmp(arg, "--", 2) != 0)
        return refuse_argument("unexpected argument", arg, strlen(arg), err);
    const struct conf_row *row = row_of_flag(arg + 2, len - 2);
    if (row == NULL)
        return refuse_option(arg, len, err);
    const char *value = equals != NULL ? equals + 1 : NULL;
    if (value == NULL && row->kind == CONF_KIND_SWITCH)
        value = "yes";
    else if (value == NULL && *at + 1 < argc)
        value = argv[++*at];
    if (value == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT, "--%s needs a value", row->flag);
    snprintf(where, sizeof where, "--%s", row->flag);
    return conf_set(conf, row, origin, where, value, err);
}

static enum code load_over_file(struct conf *conf, int argc, char **argv,
                                char *(*getenv_fn)(const char *name), struct err *err)
{
    enum code code = load_environment(conf, getenv_fn, err);

    for (int at = 1; at < argc && code == CODE_OK; at++)
        code = load_flag(conf, argc, argv, &at, err);
    return code;
}

/* ---- all together ---- */

static enum code check_together(const struct conf *conf, struct err *err)
{
    if (conf->poll_min_ms > conf->poll_max_ms)
        return err_set(err, CODE_INVALID_ARGUMENT,
                       "poll_min_ms is %u, which is more than poll_max_ms, %u", conf->poll_min_ms,
                       conf->poll_max_ms);
    if (conf->completion_shards > conf->pool_size)
        return err_set(err, CODE_INVALID_ARGUMENT,
                       "completion_shards is %u, which is more than pool_size, %u",
                       conf->completion_shards, conf->pool_size);
    return CODE_OK;
}

/* Twice over what is above the file: first to learn which file. */
enum code conf_load(struct conf *conf, int argc, char **argv, char *(*getenv_fn)(const char *name),
                    struct err *err)
{
    char path[sizeof conf->config];
    enum code code = CODE_OK;

    put_defaults(conf);
    code = load_over_file(conf, argc, argv, getenv_fn, err);
    if (code == CODE_OK && conf->config[0] != '\0') {
        memcpy(path, conf->config, sizeof path);
        put_defaults(conf);
        code = conf_read_file(conf, path, err);
        if (code == CODE_OK)
            code = load_over_file(conf, argc, argv, getenv_fn, err);
    }
    return code == CODE_OK ? check_together(conf, err) : code;
}

/* ---- looking at them ---- */

const char *conf_name(enum conf_id id)
{
    return conf_rows[id].name;
}

const char *conf_value(const struct conf *conf, enum conf_id id, char out[CONF_VALUE_BYTES])
{
    const struct conf_row *row = &conf_rows[id];
    size_t len = 0;

    if (row->trait == CONF_SECRET)
        return text_of(conf, row)[0] != '\0' ? "(not shown)" : "";
    switch (row->kind) {
    case CONF_KIND_TEXT: return text_of(conf, row);
    case CONF_KIND_U32: snprintf(out, CONF_VALUE_BYTES, "%u", number_of(conf, row)); return out;
    case CONF_KIND_CHOICE: {
        const char *choice = conf_choice(row, number_of(conf, row), &len);
        snprintf(out, CONF_VALUE_BYTES, "%.*s", (int)len, choice);
        return out;
    }
    case CONF_KIND_SWITCH: return number_of(conf, row) != 0 ? "yes" : "no";
    }
    UNREACHABLE("a kind of setting");
}

const char *conf_origin(const struct conf *conf, enum conf_id id, char out[CONF_VALUE_BYTES])
{
    const struct conf_row *row = &conf_rows[id];
    const struct conf_origin *origin = &conf->origins[id];

    switch (origin->source) {
    case CONF_DEFAULT: return "default";
    case CONF_FILE:
        if (origin->inner != 0)
            snprintf(out, CONF_VALUE_BYTES, "%s, line %u: line %u of what it includes",
                     conf->config, origin->line, origin->inner);
        else
            snprintf(out, CONF_VALUE_BYTES, "%s, line %u", conf->config, origin->line);
        return out;
    case CONF_ENVIRONMENT: return row->environment;
    case CONF_FLAG: snprintf(out, CONF_VALUE_BYTES, "--%s", row->flag); return out;
    }
    UNREACHABLE("a source");
}

bool conf_differs(const struct conf *one, const struct conf *other, enum conf_id id)
{
    const struct conf_row *row = &conf_rows[id];

    if (row->kind == CONF_KIND_TEXT)
        return strcmp(text_of(one, row), text_of(other, row)) != 0;
    return number_of(one, row) != number_of(other, row);
}

bool conf_is_reloadable(enum conf_id id)
{
    return conf_rows[id].reload == CONF_RELOAD;
}

void conf_adopt(struct conf *running, const struct conf *fresh, enum conf_id id)
{
    const struct conf_row *row = &conf_rows[id];
    size_t size = row->kind == CONF_KIND_TEXT ? row->max + 1 : sizeof(uint32_t);

    memcpy((char *)running + row->offset, (const char *)fresh + row->offset, size);
    running->origins[id] = fresh->origins[id];
}
