/* migrations: those that this binary knows: the folders of sql/, embedded at build time by
 * src/pg/embed_sql. Version n is migrations[n - 1]; the table ends with an entry whose version is
 * 0. Not here: applying them (migrate.h). */
#ifndef PG_MIGRATIONS_H
#define PG_MIGRATIONS_H

#include <stddef.h>

struct migration_file {
    const char *name;
    const char *text;
};

struct migration {
    int version;
    const char *name;
    const struct migration_file *files;
    size_t file_count;
};

extern const struct migration migrations[];

#endif
