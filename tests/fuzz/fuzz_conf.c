/* Any bytes as the configuration file; what stands behind the first 0xff is the file that the line
 * `include = 99` reads. Besides not crashing: a refusal says why in one printable line. What is
 * accepted and written down again means the same, and twice over is refused: each setting stands
 * once. No password is shown, whatever stands around it.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The files are memory, and their names the numbers of their descriptors. */
enum { MAIN_FD = 98, INCLUDED_FD = 99, TEXT_BYTES_MAX = 64 * 1024 };

#define MAIN_PATH "/proc/self/fd/98"
#define SECRET    "hunter2"

static void make_file(int fd)
{
    int made = memfd_create("conf", 0);

    CHECK(made >= 0 && dup2(made, fd) == fd);
    close(made);
}

static void write_file(int fd, struct bytes content)
{
    CHECK(ftruncate(fd, 0) == 0);
    CHECK(pwrite(fd, content.data, content.len, 0) == (ssize_t)content.len);
}

static char *no_environment(const char *name)
{
    (void)name;
    return NULL;
}

static bool load(struct conf *conf, struct err *err)
{
    char program[] = "awa-proxy";
    char flag[] = "--config";
    char path[] = MAIN_PATH;
    char *argv[] = {program, flag, path, NULL};

    *err = (struct err){.code = CODE_OK};
    enum code code = conf_load(conf, 3, argv, no_environment, err);
    CHECK(code == err->code);
    return code == CODE_OK;
}

static void check_refusal(const struct err *err)
{
    size_t len = strlen(err->message);

    CHECK(len > 0 && len < ERR_MESSAGE_BYTES);
    for (size_t i = 0; i < len; i++)
        CHECK(err->message[i] == '\t' || !iscntrl((unsigned char)err->message[i]));
}

struct text {
    char bytes[TEXT_BYTES_MAX];
    size_t len;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    int len = vsnprintf(text->bytes + text->len, sizeof text->bytes - text->len, format, args);
    va_end(args);
    CHECK(len >= 0 && (size_t)len < sizeof text->bytes - text->len);
    text->len += (size_t)len;
}

/* What the file had set, each with a comment behind it and blanks around. */
static size_t write_down(const struct conf *conf, struct text *out)
{
    char value[CONF_VALUE_BYTES];
    size_t count = 0;

    for (enum conf_id id = 0; id < CONF_COUNT; id++) {
        if (conf->origins[id].source != CONF_FILE)
            continue;
        CHECK(conf->origins[id].line >= 1);
        bool is_secret = id == CONF_ID_database_url;
        add(out, "  %s\t=%s\t # comment\r\n\n", conf_name(id),
            is_secret ? conf->database_url : conf_value(conf, id, value));
        count++;
    }
    return count;
}

static void check_written_down(const struct conf *conf)
{
    static struct text text;
    static struct conf again;
    struct err err;

    text.len = 0;
    size_t count = write_down(conf, &text);
    write_file(MAIN_FD, bytes_of(text.bytes, text.len));
    CHECK(load(&again, &err));
    for (enum conf_id id = 0; id < CONF_COUNT; id++)
        CHECK(!conf_differs(conf, &again, id));
    write_down(conf, &text);
    write_file(MAIN_FD, bytes_of(text.bytes, text.len));
    CHECK(load(&again, &err) == (count == 0));
}

static bool shows_secret(const struct conf *conf)
{
    char value[CONF_VALUE_BYTES];

    for (enum conf_id id = 0; id < CONF_COUNT; id++)
        if (strstr(conf_value(conf, id, value), SECRET) != NULL)
            return true;
    return false;
}

static bool holds_secret(const uint8_t *data, size_t size)
{
    return size > 0 && memmem(data, size, SECRET, strlen(SECRET)) != NULL;
}

/* The same with a password in its last line. */
static void check_secret(struct bytes main_file)
{
    static struct text text;
    static struct conf conf;
    struct err err;

    text.len = main_file.len;
    memcpy(text.bytes, main_file.data, main_file.len);
    add(&text, "\ndatabase_url = postgresql://ann:" SECRET "@host/db");
    write_file(MAIN_FD, bytes_of(text.bytes, text.len));
    if (load(&conf, &err))
        CHECK(!shows_secret(&conf));
    else
        CHECK(strstr(err.message, SECRET) == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool is_made;
    static struct conf conf;
    const uint8_t *cut = size > 0 ? memchr(data, 0xff, size) : NULL;
    size_t len = cut != NULL ? (size_t)(cut - data) : size;
    struct err err;

    if (!is_made) {
        make_file(MAIN_FD);
        make_file(INCLUDED_FD);
        is_made = true;
    }
    write_file(MAIN_FD, bytes_of(data, len));
    write_file(INCLUDED_FD, cut != NULL ? bytes_of(cut + 1, size - len - 1) : bytes_of_text(""));
    if (load(&conf, &err))
        check_written_down(&conf);
    else
        check_refusal(&err);
    if (len < TEXT_BYTES_MAX / 2 && !holds_secret(data, size))
        check_secret(bytes_of(data, len));
    return 0;
}
