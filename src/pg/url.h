/* url: the database URL as a text of its own: judged before it is used, and shown without what is
 * secret in it. Why: libpq's complaint about a malformed URL may quote the password. And its list
 * of hosts, begun at another one. */
#ifndef PG_URL_H
#define PG_URL_H

#include <stddef.h>

#include "base/err.h"

/* Whether libpq understands the URL or keyword string. */
enum code url_check(const char *url, struct err *err) MUST_CHECK;

/* As keywords, without passwords; cut to fit. The URL must have passed url_check. */
const char *url_text(const char *url, char *out, size_t out_bytes);

/* As libpq wants them, lists with commas; NULL: the URL does not say. Owned. */
struct url_hosts {
    char *host;
    char *hostaddr;
    char *port;
};

/* The hosts of the URL from number `first` on (from 0, counted round). */
void url_hosts_from(const char *url, unsigned first, struct url_hosts *hosts);
void url_hosts_free(struct url_hosts *hosts);

#endif
