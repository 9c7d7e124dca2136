/* params: the parameters of one statement in Postgres' binary format.
 *
 * Use: params_reset, then one params_… call per parameter in order; an array is params_array_open,
 * exactly as many params_item_… as announced, and params_array_close. One buffer is reused for all
 * statements: libpq copies it when the statement is sent. Invariant: at most PARAMS_MAX parameters.
 */
#ifndef PG_PARAMS_H
#define PG_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

enum { PARAMS_MAX = 16 };

/* The types we use; numbers of pg_type.dat, which never change. */
enum pg_type {
    PG_NONE = 0,
    PG_BOOL = 16,
    PG_INT8 = 20,
    PG_INT2 = 21,
    PG_INT4 = 23,
    PG_TEXT = 25,
    PG_JSON = 114,
    PG_JSON_ARRAY = 199,
    PG_INT2_ARRAY = 1005,
    PG_INT4_ARRAY = 1007,
    PG_TEXT_ARRAY = 1009,
    PG_INT8_ARRAY = 1016,
    PG_TIMESTAMPTZ = 1184,
    PG_TIMESTAMPTZ_ARRAY = 1185,
};

/* Postgres counts from 2000-01-01, we from 1970-01-01. */
#define PG_EPOCH_US (INT64_C(946684800) * 1000 * 1000)

struct params {
    struct buf bytes;
    size_t starts[PARAMS_MAX];
    size_t lens[PARAMS_MAX];
    bool nulls[PARAMS_MAX];
    int count;
    size_t items_left;
    size_t flags_at; /* of the open array */
};

void params_init(struct params *params);
void params_free(struct params *params);
void params_reset(struct params *params);

void params_int(struct params *params, int64_t value, size_t width);
void params_text(struct params *params, struct bytes text);
void params_null(struct params *params);

void params_array_open(struct params *params, enum pg_type item_type, size_t count);
void params_item_int(struct params *params, int64_t value, size_t width);
void params_item_bytes(struct params *params, struct bytes bytes); /* data NULL: a NULL */
void params_array_close(struct params *params);

/* For libpq. Pointers into the buffer: valid until the next params_reset. */
void params_values(const struct params *params, const char *values[PARAMS_MAX],
                   int lens[PARAMS_MAX], int formats[PARAMS_MAX]);

#endif
