/* conf_file: the configuration file: lines of `name = value`.
 *
 * A line that begins with # is a comment, and so is the rest of a line from a # behind a blank.
 * Nothing is quoted and nothing continues on the next line. Each setting stands at most once.
 * A line that is not understood is not shown: it may hold a password.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf_table.h"
#include "base/mem.h"

enum { FILE_BYTES_MAX = 64 * 1024, PATH_SHOWN_BYTES = 100 };

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts blanks off both ends, in place. */
static char *trim(char *text)
{
    size_t len = strlen(text);

    while (len > 0 && is_blank(text[len - 1]))
        text[--len] = '\0';
    while (is_blank(*text))
        text++;
    return text;
}

static void cut_comment(char *line)
{
    for (char *at = strchr(line, '#'); at != NULL; at = strchr(at + 1, '#'))
        if (at == line || is_blank(at[-1])) {
            *at = '\0';
            return;
        }
}

static const struct conf_row *row_of_name(const char *name)
{
    for (size_t i = 0; i < CONF_COUNT; i++)
        if (conf_rows[i].trait != CONF_NOT_IN_FILE && strcmp(conf_rows[i].name, name) == 0)
            return &conf_rows[i];
    return NULL;
}

static enum code set_line(struct conf *conf, const char *at, unsigned line, const char *name,
                          const char *value, struct err *err)
{
    const struct conf_row *row = row_of_name(name);
    char where[PATH_SHOWN_BYTES + 100];

    if (row == NULL && conf_is_word(name, strlen(name)))
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: there is no setting \"%.40s\"", at, name);
    if (row == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: what stands before = is not a name", at);
    const struct conf_origin *before = &conf->origins[row - conf_rows];
    if (before->source == CONF_FILE)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: %s was set in line %u already", at, name,
                       before->line);
    snprintf(where, sizeof where, "%s: %s", at, name);
    return conf_set(conf, row, (struct conf_origin){CONF_FILE, line}, where, value, err);
}

static enum code read_line(struct conf *conf, const char *path, unsigned number, char *line,
                           struct err *err)
{
    char at[PATH_SHOWN_BYTES + 32];

    cut_comment(line);
    line = trim(line);
    if (*line == '\0')
        return CODE_OK;
    snprintf(at, sizeof at, "%.*s, line %u", PATH_SHOWN_BYTES, path, number);
    char *equals = strchr(line, '=');
    if (equals == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: not of the form name = value", at);
    *equals = '\0';
    return set_line(conf, at, number, trim(line), trim(equals + 1), err);
}

static enum code read_lines(struct conf *conf, const char *path, char *text, struct err *err)
{
    enum code code = CODE_OK;

    for (unsigned number = 1; text != NULL && code == CODE_OK; number++) {
        char *end = strchr(text, '\n');
        if (end != NULL)
            *end++ = '\0';
        code = read_line(conf, path, number, text, err);
        text = end;
    }
    return code;
}

/* The whole file in memory of its own, a NUL behind it. */
static enum code slurp(const char *path, char **text, struct err *err)
{
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return err_set(err, CODE_NOT_FOUND, "cannot read %.*s: %s", PATH_SHOWN_BYTES, path,
                       strerror(errno));
    *text = mem_zalloc(FILE_BYTES_MAX + 2);
    size_t len = fread(*text, 1, FILE_BYTES_MAX + 1, file);
    int failed = ferror(file) ? errno : 0;
    fclose(file);
    if (failed != 0)
        return err_set(err, CODE_NOT_FOUND, "cannot read %.*s: %s", PATH_SHOWN_BYTES, path,
                       strerror(failed));
    if (len > FILE_BYTES_MAX)
        return err_set(err, CODE_INVALID_ARGUMENT, "%.*s: longer than %d bytes", PATH_SHOWN_BYTES,
                       path, FILE_BYTES_MAX);
    if (memchr(*text, '\0', len) != NULL)
        return err_set(err, CODE_INVALID_ARGUMENT, "%.*s: holds a NUL byte", PATH_SHOWN_BYTES,
                       path);
    return CODE_OK;
}

enum code conf_read_file(struct conf *conf, const char *path, struct err *err)
{
    char *text = NULL;
    enum code code = slurp(path, &text, err);

    if (code == CODE_OK)
        code = read_lines(conf, path, text, err);
    mem_free(text);
    return code;
}
