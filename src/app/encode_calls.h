/* encode_calls: core's database calls (core/db.h) as parameters of statements. Pure; the
 * counterpart of decode_rows. */
#ifndef APP_ENCODE_CALLS_H
#define APP_ENCODE_CALLS_H

#include "base/limits.h"
#include "core/db.h"
#include "pg/params.h"
#include "pg/statements.h"

/* Settings that the statements of maintenance, membership and claims pass on. */
struct call_settings {
    int64_t instance;
    char name[NAME_BYTES_MAX]; /* of the instance, for people */
    uint32_t instance_missing_ms;
    uint32_t queue_lap_ms;
    uint32_t claim_lap_ms;
    uint32_t completed_retention_ms;
    uint32_t closed_ms;
};

enum statement_id call_statement(const struct db_call *call);

void encode_call(const struct db_call *call, const struct call_settings *settings,
                 struct params *params);

#endif
