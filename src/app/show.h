/* show: rows of a query on stdout, for people or as JSON. The rows are in text format, times in
 * UTC. */
#ifndef APP_SHOW_H
#define APP_SHOW_H

#include <libpq-fe.h>

/* A line a row under a line of names; columns aligned, numbers to the right. */
void show_table(const PGresult *rows);

/* One row, a line a column; NULLs are left out. */
void show_record(const PGresult *rows);

/* The members of a JSON object for one row, without braces; and an array of objects. */
void show_json_members(const PGresult *rows, int row);
void show_json_array(const PGresult *rows);

#endif
