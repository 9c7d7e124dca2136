/* url: the database URL as a text of its own: judged before it is used, and shown without what is
 * secret in it. Why: libpq's complaint about a malformed URL may quote the password. */
#ifndef PG_URL_H
#define PG_URL_H

#include <stddef.h>

#include "base/err.h"

/* Whether libpq understands the URL or keyword string. */
enum code url_check(const char *url, struct err *err) MUST_CHECK;

/* As keywords, without passwords; cut to fit. The URL must have passed url_check. */
const char *url_text(const char *url, char *out, size_t out_bytes);

#endif
