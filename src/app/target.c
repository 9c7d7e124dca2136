/* target: see target.h. */
#include "app/target.h"

#include <stdlib.h>
#include <string.h>

#include "base/conf.h"

enum { SCHEMA_BYTES_MAX = sizeof((struct conf *)NULL)->schema - 1 }; /* the daemon's limit */

/* NULL when the variable is not set, or empty. */
static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

struct target target_from_environment(void)
{
    const char *schema = environment("AWA_SCHEMA");

    return (struct target){.url = environment("AWA_DATABASE_URL"),
                           .schema = schema != NULL ? schema : "awa"};
}

enum code target_check(const struct target *target, struct err *err)
{
    if (target->url == NULL)
        return err_set(err, CODE_INVALID_ARGUMENT,
                       "no database: give --database or AWA_DATABASE_URL");
    if (target->schema[0] == '\0')
        return err_set(err, CODE_INVALID_ARGUMENT, "schema: must not be empty");
    if (strlen(target->schema) > SCHEMA_BYTES_MAX) /* Postgres would cut it */
        return err_set(err, CODE_INVALID_ARGUMENT, "schema: longer than %d bytes",
                       SCHEMA_BYTES_MAX);
    return CODE_OK;
}
