/* rows: see rows.h. */
#include "pg/rows.h"

static int64_t sign_extended(uint64_t raw, size_t width)
{
    unsigned unused_bits = (unsigned)(8 * (sizeof raw - width));
    return (int64_t)(raw << unused_bits) >> unused_bits;
}

bool value_int(struct bytes value, size_t width, int64_t *out)
{
    struct cursor c = cursor_of(value);

    if (value.data == NULL || value.len != width)
        return false;
    *out = sign_extended(cursor_be(&c, width), width);
    return true;
}

bool array_open(struct array_reader *array, struct bytes value, enum pg_type item_type)
{
    *array = (struct array_reader){.count = 0};
    if (value.data == NULL)
        return false;
    array->cursor = cursor_of(value);
    uint32_t dimensions = cursor_u32(&array->cursor);
    cursor_u32(&array->cursor); /* has-null flag: each item says so itself */
    uint32_t type = cursor_u32(&array->cursor);
    if (array->cursor.failed || type != (uint32_t)item_type || dimensions > 1)
        return false;
    if (dimensions == 0)
        return cursor_left(&array->cursor) == 0;
    uint32_t count = cursor_u32(&array->cursor);
    cursor_u32(&array->cursor);                                          /* lower bound */
    if (array->cursor.failed || count > cursor_left(&array->cursor) / 4) /* each has a length */
        return false;
    array->count = count;
    array->left = count;
    return true;
}

bool array_next(struct array_reader *array, struct bytes *item)
{
    *item = (struct bytes){NULL, 0};
    if (array->left == 0)
        return false;
    array->left--;
    uint32_t len = cursor_u32(&array->cursor);
    if (array->cursor.failed)
        return false;
    if (len == UINT32_MAX)
        return true;
    *item = cursor_take(&array->cursor, len);
    return !array->cursor.failed;
}

bool array_next_int(struct array_reader *array, size_t width, int64_t *out)
{
    struct bytes item;
    return array_next(array, &item) && value_int(item, width, out);
}
