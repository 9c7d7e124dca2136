/* url: see url.h. */
#include "pg/url.h"

#include <stdio.h>
#include <string.h>

#include <libpq-fe.h>

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
