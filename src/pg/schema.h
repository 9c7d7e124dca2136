/* schema: what is installed in a schema, judged by its ledger of migrations, and whether its
 * database can hold it, in one set of sentences for `migrate`, `serve` and every other command.
 *
 * What: two queries (the catalogue, then the ledger) and the judgement of their rows, as text. How
 * they are asked is the caller's: pipelined by the daemon, one after the other by commands. Why not
 * a function of the schema: the schema may not be there.
 */
#ifndef PG_SCHEMA_H
#define PG_SCHEMA_H

#include <stdbool.h>
#include <stdint.h>

#include <libpq-fe.h>

#include "base/err.h"

enum { SCHEMA_QUERY_BYTES = 256 };

/* $1 is the schema's name. */
extern const char schema_catalogue_query[];
/* Fails with 42P01 where there is no ledger. quoted: the name as an identifier. */
const char *schema_ledger_query(const char *quoted, char out[SCHEMA_QUERY_BYTES]);

bool schema_has_ledger(const PGresult *catalogue);

/* What schema_id() of the storage says there; 0 without a schema. */
int64_t schema_id_of(const PGresult *catalogue);

/* The version of the schema; *exists may be true with version 0. Refuses what is newer than this
 * binary, half installed or not from this program. ledger is NULL where the catalogue knows none.
 */
enum code schema_judge(const char *schema, const PGresult *catalogue, const PGresult *ledger,
                       bool *exists, int *version, struct err *err) MUST_CHECK;

/* The same, and refuses what this binary can not work with, too; says what to run. */
enum code schema_require_current(const char *schema, const PGresult *catalogue,
                                 const PGresult *ledger, struct err *err) MUST_CHECK;

int schema_known_version(void);

/* In any other encoding than UTF8 a text has another length there than here, and a claim of so many
 * bytes would not fit a frame. SQL_ASCII converts nothing. */
enum code schema_check_encoding(const PGconn *connection, struct err *err) MUST_CHECK;

#endif
