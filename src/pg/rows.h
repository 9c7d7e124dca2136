/* rows: reads Postgres' binary values, strictly.
 *
 * Why strictly: what arrives is decided by the schema in the database, which may be of another
 * version. A value of another length, type or shape is a failure that the caller reports, never a
 * misreading. All bytes are borrowed from the result.
 */
#ifndef PG_ROWS_H
#define PG_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "pg/params.h"

/* False: NULL or not of that width. */
bool value_int(struct bytes value, size_t width, int64_t *out);

struct array_reader {
    struct cursor cursor;
    size_t count; /* of all items */
    size_t left;
};

/* False: not a one-dimensional array of that type (an empty one has no dimensions and count 0). */
bool array_open(struct array_reader *array, struct bytes value, enum pg_type item_type);

/* The next item; data NULL for a NULL. False: none left, or truncated. */
bool array_next(struct array_reader *array, struct bytes *item);

/* The next item as an integer of that width. False also for a NULL. */
bool array_next_int(struct array_reader *array, size_t width, int64_t *out);

#endif
