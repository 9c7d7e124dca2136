/* url: the database URL: judged before it is used, shown without what is secret in it, and begun to
 * be connected to. Why: libpq's complaint about a malformed URL may quote the password. Not here:
 * its hosts (hosts.h). */
#ifndef PG_URL_H
#define PG_URL_H

#include <stddef.h>

#include <libpq-fe.h>

#include "base/err.h"
#include "pg/hosts.h"

/* Whether libpq understands the URL or keyword string. */
enum code url_check(const char *url, struct err *err) MUST_CHECK;

/* As keywords, without passwords; cut to fit. The URL must have passed url_check. */
const char *url_text(const char *url, char *out, size_t out_bytes);

/* Begins a connection to these hosts of the URL (PQconnectStart); not NULL. It prints no notices.
 * Looks no name up, except where hosts_from left that to libpq. */
PGconn *url_connect(const char *url, const struct hosts *hosts);

/* The first line of libpq's complaint. Told an address, libpq leaves out the host's name: it is
 * added while the line is about the first host. Empty: libpq says nothing. */
void url_failure(const PGconn *connection, const struct hosts *hosts, char *text,
                 size_t text_bytes);

#endif
