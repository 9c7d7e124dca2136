/* params: see params.h. An array is: dimensions, has-null flag, item type, size, lower bound, then
 * each item with its length; an empty one has no dimensions. */
#include "pg/params.h"

#include "base/check.h"

enum { WORD = 4, KEEP_BYTES = 1024 * 1024 };

void params_init(struct params *params)
{
    *params = (struct params){.count = 0};
    buf_init(&params->bytes);
}

void params_free(struct params *params)
{
    buf_free(&params->bytes);
}

void params_reset(struct params *params)
{
    buf_clear(&params->bytes, KEEP_BYTES);
    params->count = 0;
    params->items_left = 0;
}

static void begin(struct params *params)
{
    CHECK(params->count < PARAMS_MAX && params->items_left == 0);
    params->starts[params->count] = buf_len(&params->bytes);
    params->nulls[params->count] = false;
}

static void end(struct params *params)
{
    params->lens[params->count] = buf_len(&params->bytes) - params->starts[params->count];
    params->count++;
}

void params_int(struct params *params, int64_t value, size_t width)
{
    begin(params);
    buf_add_be(&params->bytes, (uint64_t)value, width);
    end(params);
}

void params_text(struct params *params, struct bytes text)
{
    begin(params);
    buf_add(&params->bytes, text.data, text.len);
    end(params);
}

void params_null(struct params *params)
{
    begin(params);
    params->nulls[params->count] = true;
    end(params);
}

void params_array_open(struct params *params, enum pg_type item_type, size_t count)
{
    begin(params);
    buf_add_be(&params->bytes, count > 0 ? 1 : 0, WORD);
    params->flags_at = buf_len(&params->bytes);
    buf_add_be(&params->bytes, 0, WORD);
    buf_add_be(&params->bytes, (uint64_t)item_type, WORD);
    if (count > 0) {
        buf_add_be(&params->bytes, count, WORD);
        buf_add_be(&params->bytes, 1, WORD);
    }
    params->items_left = count;
}

void params_item_int(struct params *params, int64_t value, size_t width)
{
    CHECK(params->items_left > 0);
    params->items_left--;
    uint8_t *out = buf_reserve(&params->bytes, WORD + width);
    out[0] = out[1] = out[2] = 0;
    out[3] = (uint8_t)width;
    for (size_t i = 0; i < width; i++)
        out[WORD + i] = (uint8_t)((uint64_t)value >> (8 * (width - 1 - i)));
    buf_commit(&params->bytes, WORD + width);
}

void params_item_bytes(struct params *params, struct bytes bytes)
{
    CHECK(params->items_left > 0);
    params->items_left--;
    if (bytes.data == NULL) {
        buf_add_be(&params->bytes, UINT32_MAX, WORD);
        buf_patch_be32(&params->bytes, params->flags_at, 1);
        return;
    }
    buf_add_be(&params->bytes, bytes.len, WORD);
    buf_add(&params->bytes, bytes.data, bytes.len);
}

void params_array_close(struct params *params)
{
    CHECK(params->items_left == 0);
    end(params);
}

void params_values(const struct params *params, const char *values[PARAMS_MAX],
                   int lens[PARAMS_MAX], int formats[PARAMS_MAX])
{
    for (int i = 0; i < params->count; i++) {
        /* An empty text still needs a pointer: NULL would be an SQL NULL. */
        const char *start = params->bytes.memory != NULL
                                ? (const char *)buf_data(&params->bytes) + params->starts[i]
                                : "";
        values[i] = params->nulls[i] ? NULL : start;
        lens[i] = (int)params->lens[i];
        formats[i] = 1;
    }
}
