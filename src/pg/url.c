/* url: see url.h. */
#include "pg/url.h"

#include <stdio.h>
#include <string.h>

#include <libpq-fe.h>

#include "base/check.h"
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

static void ignore_notice(void *ctx, const PGresult *result)
{
    (void)ctx;
    (void)result;
}

PGconn *url_connect(const char *url, const struct hosts *hosts)
{
    char *lists[HOST_PARTS];
    for (size_t part = 0; part < HOST_PARTS; part++)
        lists[part] = hosts_list(hosts, (enum host_part)part);
    /* What stands before dbname may be overridden by the URL, and that by what stands behind. NULL
     * overrides nothing. */
    const char *const keywords[] = {"client_encoding",
                                    "fallback_application_name",
                                    "tcp_user_timeout",
                                    "target_session_attrs",
                                    "dbname",
                                    "host",
                                    "hostaddr",
                                    "port",
                                    NULL};
    const char *const values[] = {
        "UTF8",           "awa-proxy",         "30000",          "read-write", url,
        lists[HOST_NAME], lists[HOST_ADDRESS], lists[HOST_PORT], NULL};
    PGconn *connection = PQconnectStartParams(keywords, values, 1);

    for (size_t part = 0; part < HOST_PARTS; part++)
        mem_free(lists[part]);
    CHECK(connection != NULL);
    PQsetNoticeReceiver(connection, ignore_notice, NULL);
    return connection;
}

void url_failure(const PGconn *connection, const struct hosts *hosts, char *text, size_t text_bytes)
{
    const char *message = PQerrorMessage(connection);
    const struct host *first = hosts->count > 0 ? &hosts->items[0] : NULL;
    bool is_left_out = strncmp(message, "connection to server at", 23) == 0 && first != NULL &&
                       first->part[HOST_NAME] != NULL && first->part[HOST_ADDRESS] != NULL;

    snprintf(text, text_bytes, "%s%s%.*s", is_left_out ? first->part[HOST_NAME] : "",
             is_left_out ? ": " : "", (int)strcspn(message, "\n"), message);
}
