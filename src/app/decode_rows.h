/* decode_rows: rows of the storage's functions as core's replies (core/db.h). Pure; the counterpart
 * of encode_calls. Strict: what does not have the expected shape fails as a whole. Only a claimed
 * job whose content makes no sense is set apart (rows.claim.unreadable): it is no reason to lose
 * its neighbours. */
#ifndef APP_DECODE_ROWS_H
#define APP_DECODE_ROWS_H

#include <stdbool.h>

#include <libpq-fe.h>

#include "base/arena.h"
#include "core/db.h"

/* Fills reply->rows for the call; memory comes from the arena and from the result. */
bool decode_rows(const struct db_call *call, const PGresult *rows, struct arena *arena,
                 struct db_reply *reply);

#endif
