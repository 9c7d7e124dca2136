/* url: see url.h. */
#include "pg/url.h"

#include <stdio.h>
#include <string.h>

#include <libpq-fe.h>

#include "base/mem.h"

enum code url_check(const char *url, struct err *err)
{
    char *message = NULL;
    PQconninfoOption *options = PQconninfoParse(url, &message);

    PQfreemem(message);
    if (options == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT,
                       "the database URL is malformed (it is not shown, it may hold a password)");
    PQconninfoFree(options);
    return CODE_OK;
}

const char *url_text(const char *url, char *out, size_t out_bytes)
{
    PQconninfoOption *options = PQconninfoParse(url, NULL);
    size_t used = 0;

    out[0] = '\0';
    for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL; option++) {
        /* libpq marks with * what no dialogue should show */
        if (option->val == NULL || strchr(option->dispchar, '*') != NULL || used >= out_bytes)
            continue;
        int written = snprintf(out + used, out_bytes - used, "%s%s=%s", used > 0 ? " " : "",
                               option->keyword, option->val);
        used += written > 0 ? (size_t)written : 0;
    }
    PQconninfoFree(options);
    return out;
}

/* ---- hosts ---- */

static size_t item_count(const char *list)
{
    size_t count = 1;

    for (const char *at = list; *at != '\0'; at++)
        count += *at == ',';
    return count;
}

/* The list with its first items, so many, moved to the end. */
static char *rotated(const char *list, size_t by)
{
    size_t len = strlen(list);
    const char *start = list;
    char *out = mem_alloc(len + 1);

    for (; by > 0; by--)
        start = strchr(start, ',') + 1;
    size_t tail_len = len - (size_t)(start - list);
    memcpy(out, start, tail_len);
    if (start != list) {
        out[tail_len] = ',';
        memcpy(out + tail_len + 1, list, (size_t)(start - list) - 1);
    }
    out[len] = '\0';
    return out;
}

void url_hosts_from(const char *url, unsigned first, struct url_hosts *hosts)
{
    const struct {
        const char *keyword;
        char **out;
    } lists[] = {{"hostaddr", &hosts->hostaddr}, {"host", &hosts->host}, {"port", &hosts->port}};
    PQconninfoOption *options = PQconninfoParse(url, NULL);
    size_t count = 1;

    *hosts = (struct url_hosts){NULL, NULL, NULL};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        for (PQconninfoOption *option = options; option != NULL && option->keyword != NULL;
             option++) {
            if (option->val == NULL || strcmp(option->keyword, lists[i].keyword) != 0)
                continue;
            size_t items = item_count(option->val);
            if (lists[i].out != &hosts->port)
                count = items;
            *lists[i].out = rotated(option->val, items == count ? first % count : 0);
        }
    }
    PQconninfoFree(options);
}

void url_hosts_free(struct url_hosts *hosts)
{
    mem_free(hosts->host);
    mem_free(hosts->hostaddr);
    mem_free(hosts->port);
}
