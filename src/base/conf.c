/* conf: see conf.h. A table of rows made from conf.def, and one setter that both sources use. */
#include "base/conf.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct row {
    const char *flag;
    const char *environment;
    const char *text_preset; /* NULL for a number */
    uint32_t preset;
    uint32_t min;
    uint32_t max;
    size_t offset;
    const char *help;
};

static const struct row rows[] = {
#define CONF_TEXT(member, flag_name, env_name, default_text, help_text)                            \
    {.flag = flag_name,                                                                            \
     .environment = env_name,                                                                      \
     .text_preset = default_text,                                                                  \
     .offset = offsetof(struct conf, member),                                                      \
     .help = help_text},
#define CONF_U32(member, flag_name, env_name, default_u32, min_u32, max_u32, help_text)            \
    {.flag = flag_name,                                                                            \
     .environment = env_name,                                                                      \
     .preset = default_u32,                                                                        \
     .min = min_u32,                                                                               \
     .max = max_u32,                                                                               \
     .offset = offsetof(struct conf, member),                                                      \
     .help = help_text},
#include "base/conf.def"
#undef CONF_TEXT
#undef CONF_U32
};
static const size_t row_count = sizeof rows / sizeof rows[0];

static void put_text(struct conf *conf, const struct row *row, const char *value)
{
    memcpy((char *)conf + row->offset, &value, sizeof value);
}

static void put_u32(struct conf *conf, const struct row *row, uint32_t value)
{
    memcpy((char *)conf + row->offset, &value, sizeof value);
}

static void put_default(struct conf *conf, const struct row *row)
{
    if (row->text_preset != NULL)
        put_text(conf, row, row->text_preset);
    else
        put_u32(conf, row, row->preset);
}

static enum code put_value(struct conf *conf, const struct row *row, const char *source,
                           const char *value, struct err *err)
{
    char *end = NULL;

    if (row->text_preset != NULL) {
        put_text(conf, row, value);
        return CODE_OK;
    }
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (!isdigit((unsigned char)value[0]) || *end != '\0' || errno != 0 || number < row->min ||
        number > row->max)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: \"%.40s\" is not a number from %u to %u",
                       source, value, row->min, row->max);
    put_u32(conf, row, (uint32_t)number);
    return CODE_OK;
}

static const struct row *row_of_flag(const char *name, size_t name_len)
{
    for (size_t i = 0; i < row_count; i++)
        if (strlen(rows[i].flag) == name_len && memcmp(rows[i].flag, name, name_len) == 0)
            return &rows[i];
    return NULL;
}

/* Reads "--flag value" or "--flag=value" at argv[*at] and moves *at to the last element used. */
static enum code load_flag(struct conf *conf, int argc, char **argv, int *at, struct err *err)
{
    const char *arg = argv[*at];
    if (strncmp(arg, "--", 2) != 0)
        return err_set(err, CODE_INVALID_ARGUMENT, "unexpected argument \"%.60s\"", arg);
    const char *equals = strchr(arg, '=');
    size_t name_len = equals != NULL ? (size_t)(equals - arg) - 2 : strlen(arg) - 2;
    const struct row *row = row_of_flag(arg + 2, name_len);
    if (row == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT, "unknown option \"%.60s\"", arg);
    const char *value = equals != NULL ? equals + 1 : NULL;
    if (value == NULL && *at + 1 < argc)
        value = argv[++*at];
    if (value == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT, "--%s needs a value", row->flag);
    return put_value(conf, row, arg, value, err);
}

enum code conf_load(struct conf *conf, int argc, char **argv, char *(*getenv_fn)(const char *name),
                    struct err *err)
{
    enum code code = CODE_OK;

    for (size_t i = 0; i < row_count && code == CODE_OK; i++) {
        const char *value = getenv_fn(rows[i].environment);
        put_default(conf, &rows[i]);
        if (value != NULL && value[0] != '\0')
            code = put_value(conf, &rows[i], rows[i].environment, value, err);
    }
    for (int at = 1; at < argc && code == CODE_OK; at++)
        code = load_flag(conf, argc, argv, &at, err);
    return code;
}

void conf_print_help(FILE *out)
{
    for (size_t i = 0; i < row_count; i++) {
        const struct row *row = &rows[i];
        if (row->text_preset != NULL)
            fprintf(out, "  --%s TEXT, %s (default \"%s\")\n", row->flag, row->environment,
                    row->text_preset);
        else
            fprintf(out, "  --%s %u..%u, %s (default %u)\n", row->flag, row->min, row->max,
                    row->environment, row->preset);
        fprintf(out, "      %s\n", row->help);
    }
}
