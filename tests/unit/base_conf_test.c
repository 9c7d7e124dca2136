/* conf: defaults, precedence, and that nothing wrong passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/conf.h"

static char *no_environment(const char *name)
{
    (void)name;
    return NULL;
}

static char *some_environment(const char *name)
{
    static char five[] = "5", empty[] = "";

    if (strcmp(name, "AWA_POOL_SIZE") == 0 || strcmp(name, "AWA_COMPLETION_SHARDS") == 0)
        return five;
    return strcmp(name, "AWA_SCHEMA") == 0 ? empty : NULL;
}

static void defaults_are_those_of_the_contract(void **state)
{
    (void)state;
    struct conf conf;
    struct err err;
    char *argv[] = {"serve"};

    assert_int_equal(conf_load(&conf, 1, argv, no_environment, &err), CODE_OK);
    assert_string_equal(conf.database_url, "");
    assert_string_equal(conf.schema, "awa");
    assert_int_equal(conf.pool_size, 4);
    assert_int_equal(conf.claim_batch_size, 512);
    assert_int_equal(conf.completion_batch_size, 512);
    assert_int_equal(conf.completion_flush_ms, 10);
}

static void a_flag_beats_the_environment_beats_the_default(void **state)
{
    (void)state;
    struct conf conf;
    struct err err;
    char *argv[] = {"serve", "--pool-size", "7", "--listen=unix:/x"};

    assert_int_equal(conf_load(&conf, 4, argv, some_environment, &err), CODE_OK);
    assert_int_equal(conf.pool_size, 7);
    assert_int_equal(conf.completion_shards, 5);
    assert_string_equal(conf.schema, "awa"); /* empty is not set */
    assert_string_equal(conf.listen, "unix:/x");
}

static void refuses(const char *flag, const char *value, const char *words)
{
    struct conf conf;
    struct err err;
    char *argv[] = {"serve", (char *)(uintptr_t)flag, (char *)(uintptr_t)value};

    assert_int_equal(conf_load(&conf, value != NULL ? 3 : 2, argv, no_environment, &err),
                     CODE_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, words));
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    refuses("--pool-size", "0", "from 1 to 64");
    refuses("--pool-size", "65", "from 1 to 64");
    refuses("--pool-size", "-1", "--pool-size");
    refuses("--pool-size", " 4", "--pool-size");
    refuses("--pool-size", "4x", "4x");
    refuses("--pool-size", "99999999999999999999999", "--pool-size");
    refuses("--pool-size", NULL, "needs a value");
    refuses("--pool", "4", "unknown option");
    refuses("extra", NULL, "unexpected argument");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_contract),
        cmocka_unit_test(a_flag_beats_the_environment_beats_the_default),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
