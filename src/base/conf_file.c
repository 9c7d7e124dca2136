/* conf_file: the configuration file: lines of `name = value`, and of `include = path`.
 *
 * A line that begins with # is a comment, and so is the rest of a line from a # behind a blank.
 * Nothing is quoted, no control character is taken, and nothing continues on the next line. Each
 * setting stands at most once, in the file and all it includes together. What is included (a secret
 * that is kept elsewhere, say) stands where its line stands, is looked for beside the file that
 * names it, and includes nothing itself. A line that is not understood is not shown: it may hold a
 * password.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/conf_table.h"
#include "base/mem.h"

enum { FILE_BYTES_MAX = 64 * 1024, PATH_BYTES_MAX = 1000, PATH_SHOWN_BYTES = 100 };

/* The file that is being read, and the line of the file that includes it. */
struct source {
    struct conf *conf;
    const char *path;
    unsigned including; /* 0: it is not included */
};

static enum code read_source(const struct source *source, struct err *err);

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

/* A refusal shows what it refuses, on a terminal or in a log. */
static bool has_control_characters(const char *text)
{
    for (; *text != '\0'; text++)
        if (*text != '\t' && iscntrl((unsigned char)*text))
            return true;
    return false;
}

static const struct conf_row *row_of_name(const char *name)
{
    for (size_t i = 0; i < CONF_COUNT; i++)
        if (conf_rows[i].trait != CONF_NOT_IN_FILE && strcmp(conf_rows[i].name, name) == 0)
            return &conf_rows[i];
    return NULL;
}

static struct conf_origin origin_of(const struct source *source, unsigned line)
{
    if (source->including == 0)
        return (struct conf_origin){.source = CONF_FILE, .line = line};
    return (struct conf_origin){.source = CONF_FILE, .line = source->including, .inner = line};
}

static enum code refuse_name(const char *at, const char *name, struct err *err)
{
    const struct conf_row *meant = conf_nearest(name, strlen(name), true);

    if (!conf_is_word(name, strlen(name)))
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: what stands before = is not a name", at);
    if (meant == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: there is no setting \"%.40s\"", at, name);
    return err_set(err, CODE_INVALID_ARGUMENT,
                   "%s: there is no setting \"%.40s\"; did you mean %s?", at, name, meant->name);
}

static enum code refuse_second(const char *at, const struct conf_row *row,
                               const struct conf_origin *before, struct err *err)
{
    char inner[64] = "";

    if (before->inner != 0)
        snprintf(inner, sizeof inner, " (line %u of what it includes)", before->inner);
    return err_set(err, CODE_INVALID_ARGUMENT, "%s: %s was set in line %u%s already", at, row->name,
                   before->line, inner);
}

static enum code set_line(const struct source *source, const char *at, unsigned line,
                          const char *name, const char *value, struct err *err)
{
    const struct conf_row *row = row_of_name(name);
    char where[PATH_SHOWN_BYTES + 100];

    if (row == NULL)
        return refuse_name(at, name, err);
    const struct conf_origin *before = &source->conf->origins[row - conf_rows];
    if (before->source == CONF_FILE)
        return refuse_second(at, row, before, err);
    snprintf(where, sizeof where, "%s: %s", at, name);
    return conf_set(source->conf, row, origin_of(source, line), where, value, err);
}

static enum code include(const struct source *source, const char *at, unsigned line,
                         const char *value, struct err *err)
{
    const char *slash = value[0] == '/' ? NULL : strrchr(source->path, '/');
    int folder_len = slash != NULL ? (int)(slash + 1 - source->path) : 0;
    char path[PATH_BYTES_MAX + 1];

    if (source->including != 0)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: an included file can not include others",
                       at);
    if (*value == '\0')
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: include needs a path", at);
    int len = snprintf(path, sizeof path, "%.*s%s", folder_len, source->path, value);
    if (len > PATH_BYTES_MAX)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: the path is longer than %d bytes", at,
                       PATH_BYTES_MAX);
    return read_source(&(struct source){source->conf, path, line}, err);
}

static enum code read_line(const struct source *source, unsigned number, char *line,
                           struct err *err)
{
    char at[PATH_SHOWN_BYTES + 32];

    cut_comment(line);
    line = trim(line);
    if (*line == '\0')
        return CODE_OK;
    snprintf(at, sizeof at, "%.*s, line %u", PATH_SHOWN_BYTES, source->path, number);
    if (has_control_characters(line))
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: holds a control character", at);
    char *equals = strchr(line, '=');
    if (equals == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT, "%s: not of the form name = value", at);
    *equals = '\0';
    const char *name = trim(line);
    const char *value = trim(equals + 1);
    if (strcmp(name, "include") == 0)
        return include(source, at, number, value, err);
    return set_line(source, at, number, name, value, err);
}

static enum code read_lines(const struct source *source, char *text, struct err *err)
{
    enum code code = CODE_OK;

    for (unsigned number = 1; text != NULL && code == CODE_OK; number++) {
        char *end = strchr(text, '\n');
        if (end != NULL)
            *end++ = '\0';
        code = read_line(source, number, text, err);
        text = end;
    }
    return code;
}

static enum code refuse_file(const char *path, const char *why, struct err *err)
{
    return err_set(err, CODE_NOT_FOUND, "cannot read %.*s: %s", PATH_SHOWN_BYTES, path, why);
}

/* Reads what is there, at most `room` bytes; false: errno says why not. */
static bool read_all(int fd, char *text, size_t room, size_t *len)
{
    ssize_t got = 1;

    for (*len = 0; *len < room && got != 0;) {
        got = read(fd, text + *len, room - *len);
        if (got < 0 && errno != EINTR)
            return false;
        *len += got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* A file that can not make us wait: SIGHUP reads it in the middle of our work. */
static enum code read_regular(const char *path, char *text, size_t room, size_t *len,
                              struct err *err)
{
    struct stat stat;
    enum code code = CODE_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return refuse_file(path, strerror(errno), err);
    if (fstat(fd, &stat) != 0 || !S_ISREG(stat.st_mode))
        code = refuse_file(path, "it is not a file", err);
    else if (!read_all(fd, text, room, len))
        code = refuse_file(path, strerror(errno), err);
    close(fd);
    return code;
}

/* The whole file in memory of its own, a NUL behind it. */
static enum code slurp(const char *path, char **text, struct err *err)
{
    size_t len = 0;

    *text = mem_zalloc(FILE_BYTES_MAX + 2);
    enum code code = read_regular(path, *text, FILE_BYTES_MAX + 1, &len, err);
    if (code != CODE_OK)
        return code;
    if (len > FILE_BYTES_MAX)
        return err_set(err, CODE_INVALID_ARGUMENT, "%.*s: longer than %d bytes", PATH_SHOWN_BYTES,
                       path, FILE_BYTES_MAX);
    if (memchr(*text, '\0', len) != NULL)
        return err_set(err, CODE_INVALID_ARGUMENT, "%.*s: holds a NUL byte", PATH_SHOWN_BYTES,
                       path);
    return CODE_OK;
}

static enum code read_source(const struct source *source, struct err *err)
{
    char *text = NULL;
    enum code code = slurp(source->path, &text, err);

    if (code == CODE_OK)
        code = read_lines(source, text, err);
    mem_free(text);
    return code;
}

enum code conf_read_file(struct conf *conf, const char *path, struct err *err)
{
    return read_source(&(struct source){conf, path, 0}, err);
}
