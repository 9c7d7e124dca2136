/* show: see show.h.
 *
 * Text from jobs may hold anything. For people, what could steer a terminal is replaced by '?'; in
 * JSON it is escaped.
 */
#include "app/show.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum {
    OID_BOOL = 16,
    OID_INT8 = 20,
    OID_INT2 = 21,
    OID_INT4 = 23,
    OID_JSON = 114,
    OID_TIMESTAMPTZ = 1184,
    OID_JSONB = 3802,
};

static bool is_number(const PGresult *rows, int column)
{
    Oid type = PQftype(rows, column);
    return type == OID_INT8 || type == OID_INT2 || type == OID_INT4;
}

static bool is_control(char c)
{
    return (unsigned char)c < ' ' || c == 0x7f;
}

/* ---- for people ---- */

/* Characters, not bytes. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++)
        width += (*text & 0xc0) != 0x80;
    return width;
}

static void put_padding(int count)
{
    for (; count > 0; count--)
        putchar(' ');
}

static void put_plain(const char *text)
{
    for (; *text != '\0'; text++)
        putchar(*text == '\n' || *text == '\t' ? ' ' : is_control(*text) ? '?' : *text);
}

static void put_cell(const char *text, int width, bool right, bool last)
{
    int padding = width - width_of(text);

    if (right)
        put_padding(padding);
    put_plain(text);
    if (!right && !last)
        put_padding(padding);
    fputs(last ? "\n" : "  ", stdout);
}

static const char *cell_of(const PGresult *rows, int row, int column)
{
    return PQgetisnull(rows, row, column) ? "-" : PQgetvalue(rows, row, column);
}

static int column_width(const PGresult *rows, int column)
{
    int width = width_of(PQfname(rows, column));

    for (int row = 0; row < PQntuples(rows); row++) {
        int cell = width_of(cell_of(rows, row, column));
        width = cell > width ? cell : width;
    }
    return width;
}

void show_table(const PGresult *rows)
{
    int columns = PQnfields(rows);

    for (int row = -1; row < PQntuples(rows); row++)
        for (int column = 0; column < columns; column++)
            put_cell(row < 0 ? PQfname(rows, column) : cell_of(rows, row, column),
                     column_width(rows, column), is_number(rows, column), column == columns - 1);
}

void show_record(const PGresult *rows)
{
    int width = 0;

    for (int column = 0; column < PQnfields(rows); column++) {
        int name = width_of(PQfname(rows, column));
        width = name > width ? name : width;
    }
    for (int column = 0; column < PQnfields(rows); column++) {
        if (PQgetisnull(rows, 0, column))
            continue;
        put_cell(PQfname(rows, column), width, false, false);
        put_plain(PQgetvalue(rows, 0, column));
        putchar('\n');
    }
}

/* ---- JSON ---- */

static void put_string(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if (is_control(*text))
            printf("\\u%04x", (unsigned char)*text);
        else
            putchar(*text);
    }
    putchar('"');
}

/* "2026-01-02 03:04:05.6+00" becomes "2026-01-02T03:04:05.6Z". */
static void put_time(const char *text)
{
    size_t len = strlen(text);

    putchar('"');
    for (size_t i = 0; i < len && text[i] != '+'; i++)
        putchar(text[i] == ' ' ? 'T' : text[i]);
    fputs(len > 3 && strcmp(text + len - 3, "+00") == 0 ? "Z\"" : "\"", stdout);
}

/* A json keeps the line breaks that its author wrote: white space between its values. */
static void put_json(const char *text)
{
    for (; *text != '\0'; text++)
        putchar(is_control(*text) ? ' ' : *text);
}

static void put_value(const PGresult *rows, int row, int column)
{
    const char *text = PQgetvalue(rows, row, column);
    Oid type = PQftype(rows, column);

    if (PQgetisnull(rows, row, column))
        fputs("null", stdout);
    else if (is_number(rows, column))
        fputs(text, stdout);
    else if (type == OID_BOOL)
        fputs(text[0] == 't' ? "true" : "false", stdout);
    else if (type == OID_JSON || type == OID_JSONB)
        put_json(text);
    else if (type == OID_TIMESTAMPTZ)
        put_time(text);
    else
        put_string(text);
}

void show_json_members(const PGresult *rows, int row)
{
    for (int column = 0; column < PQnfields(rows); column++) {
        if (column > 0)
            putchar(',');
        put_string(PQfname(rows, column));
        putchar(':');
        put_value(rows, row, column);
    }
}

void show_json_array(const PGresult *rows)
{
    putchar('[');
    for (int row = 0; row < PQntuples(rows); row++) {
        fputs(row > 0 ? ",{" : "{", stdout);
        show_json_members(rows, row);
        putchar('}');
    }
    putchar(']');
}
