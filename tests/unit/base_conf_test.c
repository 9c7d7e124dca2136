/* conf: defaults, precedence, and that nothing wrong passes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    assert_null(strstr(err.message, "hunter2"));
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
    refuses("--pool", "4", "unknown option \"--pool\"");
    refuses("--pool-sise", "4", "unknown option \"--pool-sise\"; did you mean --pool-size?");
    refuses("--pool_size=4", NULL, "did you mean --pool-size?");
    refuses("--xyzzy", "4", "unknown option \"--xyzzy\"");
    refuses("extra", NULL, "unexpected argument \"extra\"");
    refuses("--log-level", "loud", "\"loud\" is not one of debug|info|warn|error");
    refuses("--log-level", "inf", "log-level");
    refuses("--insecure=maybe", NULL, "--insecure: \"maybe\" is not yes or no");
}

static void what_may_hold_a_password_is_not_shown(void **state)
{
    (void)state;
    char long_url[3000];
    memset(long_url, 'x', sizeof long_url);
    memcpy(long_url, "postgresql://u:hunter2@", 23);
    long_url[sizeof long_url - 1] = '\0';

    refuses("postgresql://u:hunter2@h/db", NULL, "unexpected argument (it is not shown");
    refuses("--databse=postgresql://u:hunter2@h/db", NULL, "did you mean --database?");
    refuses("--database", long_url, "--database: longer than 2000 bytes");
}

static void settings_must_fit_each_other(void **state)
{
    (void)state;
    struct conf conf;
    struct err err;
    char *poll[] = {"serve", "--poll-min-ms=251"};
    char *shards[] = {"serve", "--pool-size=2", "--completion-shards=3"};

    assert_int_equal(conf_load(&conf, 2, poll, no_environment, &err), CODE_INVALID_ARGUMENT);
    assert_string_equal(err.message, "poll_min_ms is 251, which is more than poll_max_ms, 250");
    assert_int_equal(conf_load(&conf, 3, shards, no_environment, &err), CODE_INVALID_ARGUMENT);
    assert_string_equal(err.message, "completion_shards is 3, which is more than pool_size, 2");
}

static void a_list_grows_and_the_rest_is_replaced(void **state)
{
    (void)state;
    struct conf conf;
    struct err err;
    char *argv[] = {"serve",      "--listen",  "unix:/a", "--listen=tcp:127.0.0.1:1",
                    "--schema=x", "--schema=y"};

    assert_int_equal(conf_load(&conf, 6, argv, no_environment, &err), CODE_OK);
    assert_string_equal(conf.listen, "unix:/a,tcp:127.0.0.1:1");
    assert_string_equal(conf.schema, "y");
}

static void switches_need_no_value(void **state)
{
    (void)state;
    struct conf conf;
    struct err err;
    char *argv[] = {"serve", "--insecure", "--pool-size", "3"};
    char *off[] = {"serve", "--insecure", "--insecure=no"};

    assert_int_equal(conf_load(&conf, 4, argv, no_environment, &err), CODE_OK);
    assert_true(conf.insecure && conf.pool_size == 3);
    assert_int_equal(conf_load(&conf, 3, off, no_environment, &err), CODE_OK);
    assert_false(conf.insecure);
}

/* ---- the file ---- */

static char file_path[] = "/tmp/awa-conf-XXXXXX";

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(file_path);
    return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(file_path);
}

static char *file_in_environment(const char *name)
{
    return strcmp(name, "AWA_CONFIG") == 0 ? file_path : some_environment(name);
}

static enum code load_file(struct conf *conf, const char *text, size_t len, struct err *err)
{
    char *argv[] = {"serve", "--queue-lap-ms=2000"};
    FILE *file = fopen(file_path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
    return conf_load(conf, 2, argv, file_in_environment, err);
}

static void the_file_stands_between_environment_and_default(void **state)
{
    (void)state;
    static const char text[] = "# all of it\n\n  poll_max_ms\t=  7 # quick\r\n"
                               "pool_size=9\nqueue_lap_ms = 3000\n"
                               "database_url = host=/x password=a#b\nlisten = unix:/a, unix:/b\n"
                               "log_level = warn\ninsecure = yes\nschema =";
    struct conf conf;
    struct err err;
    char out[CONF_VALUE_BYTES];

    assert_int_equal(load_file(&conf, text, sizeof text - 1, &err), CODE_OK);
    assert_int_equal(conf.poll_max_ms, 7);
    assert_int_equal(conf.pool_size, 5);       /* the environment's */
    assert_int_equal(conf.queue_lap_ms, 2000); /* the flag's */
    assert_string_equal(conf.database_url, "host=/x password=a#b");
    assert_string_equal(conf.listen, "unix:/a, unix:/b");
    assert_string_equal(conf.schema, "");
    assert_true(conf.log_level == 2 && conf.insecure);
    assert_string_equal(conf_value(&conf, CONF_ID_database_url, out), "(not shown)");
    assert_string_equal(conf_value(&conf, CONF_ID_log_level, out), "warn");
    assert_string_equal(conf_origin(&conf, CONF_ID_pool_size, out), "AWA_POOL_SIZE");
    assert_string_equal(conf_origin(&conf, CONF_ID_queue_lap_ms, out), "--queue-lap-ms");
    assert_string_equal(conf_origin(&conf, CONF_ID_closed_ms, out), "default");
    assert_non_null(strstr(conf_origin(&conf, CONF_ID_poll_max_ms, out), ", line 3"));
}

static void refuses_file_of(const char *text, size_t len, const char *words)
{
    struct conf conf;
    struct err err;

    assert_int_equal(load_file(&conf, text, len, &err), CODE_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, file_path));
    if (strstr(err.message, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
    assert_null(strstr(err.message, "hunter2"));
}

static void refuses_file(const char *text, const char *words)
{
    refuses_file_of(text, strlen(text), words);
}

static void a_bad_file_is_named_with_its_line(void **state)
{
    (void)state;
    refuses_file("pool_size = 4\npool = 4\n", "line 2: there is no setting \"pool\"");
    refuses_file("pool-size = 4\n", "line 1: there is no setting \"pool-size\"");
    refuses_file("config = /x\n", "line 1: there is no setting \"config\"");
    refuses_file("pol_max_ms = 4\n", "\"pol_max_ms\"; did you mean poll_max_ms?");
    refuses_file("\n\npool_size = 65", "line 3: pool_size: \"65\" is not a number from 1 to 64");
    refuses_file("pool_size =\n", "line 1: pool_size: \"\" is not a number");
    refuses_file("closed_ms = 1\n#\nclosed_ms = 1", "line 3: closed_ms was set in line 1 already");
    refuses_file("log_format = xml", "log_format: \"xml\" is not one of logfmt|json");
    refuses_file("postgresql://u:hunter2@h/db\n", "line 1: not of the form name = value");
    refuses_file("postgresql://u:hunter2@h/db?a=b\n", "line 1: what stands before = is not a name");
    refuses_file("[serve]\n", "line 1: not of the form");
    refuses_file("# \x1b\npool_size = 4\x1b[2J\n", "line 2: holds a control character");
    refuses_file_of("schema = a\0b\n", 13, "holds a NUL byte");
}

static void a_long_file_is_refused(void **state)
{
    (void)state;
    char *text = malloc(70000);

    assert_non_null(text);
    memset(text, '\n', 70000);
    refuses_file_of(text, 65537, "longer than 65536 bytes");
    struct conf conf;
    struct err err;
    assert_int_equal(load_file(&conf, text, 65536, &err), CODE_OK);
    free(text);
}

static void a_file_that_is_not_there_is_an_error(void **state)
{
    (void)state;
    struct conf conf;
    struct err err;
    char *argv[] = {"serve", "--config", "/nowhere/awa.conf"};
    char *folder[] = {"serve", "--config", "/tmp"};

    assert_int_equal(conf_load(&conf, 3, argv, no_environment, &err), CODE_NOT_FOUND);
    assert_string_equal(err.message, "cannot read /nowhere/awa.conf: No such file or directory");
    assert_int_equal(conf_load(&conf, 3, folder, no_environment, &err), CODE_NOT_FOUND);
}

/* ---- what it includes ---- */

static char folder_path[] = "/tmp/awa-conf-folder-XXXXXX";
static char main_path[sizeof folder_path + 16];

static int make_folder(void **state)
{
    (void)state;
    memset(folder_path + sizeof folder_path - 7, 'X', 6);
    if (mkdtemp(folder_path) == NULL)
        return -1;
    snprintf(main_path, sizeof main_path, "%s/main.conf", folder_path);
    return 0;
}

static void write_into_folder(const char *name, const char *text)
{
    char path[sizeof folder_path + 32];

    snprintf(path, sizeof path, "%s/%s", folder_path, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"main.conf", "inner.conf", "pipe"};
    char path[sizeof folder_path + 32];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder_path, names[i]);
        unlink(path);
    }
    return rmdir(folder_path);
}

static enum code load_folder(struct conf *conf, const char *main_text, const char *inner_text,
                             struct err *err)
{
    char *argv[] = {"serve", "--config", main_path};

    write_into_folder("main.conf", main_text);
    write_into_folder("inner.conf", inner_text);
    return conf_load(conf, 3, argv, no_environment, err);
}

static void an_included_file_stands_in_the_place_of_its_line(void **state)
{
    (void)state;
    struct conf conf;
    struct err err;
    char out[CONF_VALUE_BYTES];

    assert_int_equal(load_folder(&conf,
                                 "pool_size = 3\ninclude = inner.conf # beside it\nclosed_ms = 1\n",
                                 "\npoll_max_ms = 9\n", &err),
                     CODE_OK);
    assert_true(conf.pool_size == 3 && conf.poll_max_ms == 9 && conf.closed_ms == 1);
    assert_non_null(strstr(conf_origin(&conf, CONF_ID_poll_max_ms, out),
                           "main.conf, line 2: line 2 of what it includes"));
    assert_non_null(strstr(conf_origin(&conf, CONF_ID_closed_ms, out), "main.conf, line 3"));
}

static void refuses_folder(const char *main_text, const char *inner_text, const char *words)
{
    struct conf conf;
    struct err err;

    assert_int_not_equal(load_folder(&conf, main_text, inner_text, &err), CODE_OK);
    if (strstr(err.message, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void a_bad_include_is_named(void **state)
{
    (void)state;
    char pipe_path[sizeof folder_path + 16];

    refuses_folder("include = inner.conf", "pool_size = 0", "inner.conf, line 1: pool_size: \"0\"");
    refuses_folder("closed_ms = 1\ninclude = inner.conf", "closed_ms = 2",
                   "inner.conf, line 1: closed_ms was set in line 1 already");
    refuses_folder("include = inner.conf\nclosed_ms = 1", "\nclosed_ms = 2",
                   "closed_ms was set in line 1 (line 2 of what it includes) already");
    refuses_folder("include = inner.conf", "include = main.conf",
                   "inner.conf, line 1: an included file can not include others");
    refuses_folder("include =", "", "include needs a path");
    refuses_folder("include = other.conf", "", "other.conf: No such file");
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder_path);
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    refuses_folder("include = pipe", "", "pipe: it is not a file");
}

static void only_what_may_change_is_adopted(void **state)
{
    (void)state;
    struct conf running, fresh;
    struct err err;
    char *before[] = {"serve", "--poll-max-ms=100"};
    char *after[] = {"serve", "--poll-max-ms=200", "--pool-size=8", "--schema=other"};

    assert_int_equal(conf_load(&running, 2, before, no_environment, &err), CODE_OK);
    assert_int_equal(conf_load(&fresh, 4, after, no_environment, &err), CODE_OK);
    for (enum conf_id id = 0; id < CONF_COUNT; id++) {
        bool differs = id == CONF_ID_poll_max_ms || id == CONF_ID_pool_size || id == CONF_ID_schema;
        assert_int_equal(conf_differs(&running, &fresh, id), differs);
    }
    assert_true(conf_is_reloadable(CONF_ID_poll_max_ms));
    assert_false(conf_is_reloadable(CONF_ID_pool_size));
    conf_adopt(&running, &fresh, CONF_ID_poll_max_ms);
    assert_int_equal(running.poll_max_ms, 200);
    assert_int_equal(running.pool_size, 4);
    assert_string_equal(running.schema, "awa");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_of_the_contract),
        cmocka_unit_test(a_flag_beats_the_environment_beats_the_default),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(what_may_hold_a_password_is_not_shown),
        cmocka_unit_test(settings_must_fit_each_other),
        cmocka_unit_test(a_list_grows_and_the_rest_is_replaced),
        cmocka_unit_test(switches_need_no_value),
        cmocka_unit_test(the_file_stands_between_environment_and_default),
        cmocka_unit_test(a_bad_file_is_named_with_its_line),
        cmocka_unit_test(a_long_file_is_refused),
        cmocka_unit_test(a_file_that_is_not_there_is_an_error),
        cmocka_unit_test_setup_teardown(an_included_file_stands_in_the_place_of_its_line,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_bad_include_is_named, make_folder, remove_folder),
        cmocka_unit_test(only_what_may_change_is_adopted),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
