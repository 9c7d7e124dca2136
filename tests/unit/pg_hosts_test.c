/* hosts: which hosts a URL means, in which order, and what libpq is told once names were found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "pg/hosts.h"

/* "-": nobody says it. */
static void expect_list(const struct hosts *hosts, enum host_part part, const char *expected)
{
    char *list = hosts_list(hosts, part);

    assert_string_equal(list != NULL ? list : "-", expected);
    mem_free(list);
}

static void expect_lists(const struct hosts *hosts, const char *names, const char *addresses,
                         const char *ports)
{
    expect_list(hosts, HOST_NAME, names);
    expect_list(hosts, HOST_ADDRESS, addresses);
    expect_list(hosts, HOST_PORT, ports);
}

static void expect(const char *url, unsigned attempt, const char *names, const char *addresses,
                   const char *ports)
{
    struct hosts hosts;

    hosts_from(url, attempt, &hosts);
    expect_lists(&hosts, names, addresses, ports);
    hosts_free(&hosts);
}

static void the_list_begins_at_any_host(void **state)
{
    (void)state;
    const char *three = "postgresql://a:1,b:2,c:3/app";

    expect(three, 0, "a,b,c", "-", "1,2,3");
    expect(three, 1, "b,c,a", "-", "2,3,1");
    expect(three, 2, "c,a,b", "-", "3,1,2");
    expect(three, 3, "a,b,c", "-", "1,2,3");
    expect(three, 4000000000u, "b,c,a", "-", "2,3,1");
}

static void what_is_said_once_is_for_all_hosts(void **state)
{
    (void)state;
    expect("host=a,b port=5433 dbname=app", 1, "b,a", "-", "5433,5433");
    expect("host=a,b dbname=app", 1, "b,a", "-", "-");
    expect("host=a,b hostaddr=::1,127.0.0.1", 1, "b,a", "127.0.0.1,::1", "-");
    expect("hostaddr=::1,127.0.0.1 port=1,2", 1, "-", "127.0.0.1,::1", "2,1");
    expect("host=a,b,c port=,5433,", 1, "b,c,a", "-", "5433,,"); /* empty: the default */
    expect("host=,a", 1, "a,", "-", "-");
    expect("postgresql://a:1/app", 7, "a", "-", "1");
}

static void what_only_libpq_can_judge_is_left_to_it(void **state)
{
    (void)state;
    expect("postgresql:///app", 7, "-", "-", "-");
    expect("host=a port=1,2", 7, "-", "-", "-");
    expect("host=a,b hostaddr=::1", 1, "-", "-", "-");
    expect("host=a service=x", 0, "-", "-", "-");
}

static void the_environment_says_what_the_url_does_not(void **state)
{
    (void)state;
    setenv("PGHOST", "a,b", 1);
    setenv("PGPORT", "1,2", 1);
    expect("dbname=app", 1, "b,a", "-", "2,1");
    expect("host=c,d dbname=app", 1, "d,c", "-", "2,1");
    expect("host=c port=3 dbname=app", 0, "c", "-", "3");
    setenv("PGHOSTADDR", "::1,::2", 1);
    expect("host=c,d dbname=app", 1, "d,c", "::2,::1", "2,1");
    setenv("PGSERVICE", "x", 1);
    expect("host=c,d dbname=app", 1, "-", "-", "-");
    unsetenv("PGSERVICE");
    unsetenv("PGHOSTADDR");
    unsetenv("PGPORT");
    unsetenv("PGHOST");
}

static void only_names_are_looked_up(void **state)
{
    (void)state;
    static const char *const expected[] = {"db", NULL, NULL, NULL, NULL, NULL, NULL, "::ffff:1.2"};
    struct hosts hosts;

    hosts_from("host=db,/run/pg,@pg,127.0.0.1,::1,,db,::ffff:1.2 hostaddr=,,,,,,::1,", 0, &hosts);
    assert_int_equal(hosts.count, 8);
    for (size_t i = 0; i < hosts.count; i++) {
        const char *name = host_name_to_find(&hosts.items[i]);
        assert_string_equal(name != NULL ? name : "-", expected[i] != NULL ? expected[i] : "-");
    }
    assert_true(hosts_have_names(&hosts));
    hosts_free(&hosts);
    hosts_from("host=/run/pg,127.0.0.1", 0, &hosts);
    assert_false(hosts_have_names(&hosts));
    hosts_free(&hosts);
}

/* Every host that has a name has these addresses, in the order of the resolver; a space ends one.
 */
static void expect_found(const char *url, unsigned attempt, const char *found, const char *names,
                         const char *addresses, const char *ports)
{
    struct addresses list = {.count = 0};
    struct hosts hosts, all;
    char text[ADDRESS_TEXT_MAX];

    for (const char *at = found; *at != '\0'; at += strcspn(at, " ") + 1) {
        size_t len = strcspn(at, " ");
        memcpy(text, at, len);
        text[len] = '\0';
        addresses_add(&list, text);
    }
    hosts_from(url, attempt, &hosts);
    all = (struct hosts){.round = hosts.round};
    for (size_t i = 0; i < hosts.count; i++)
        if (host_name_to_find(&hosts.items[i]) != NULL)
            hosts_add_found(&all, &hosts.items[i], &list);
        else
            hosts_add(&all, &hosts.items[i]);
    expect_lists(&all, names, addresses, ports);
    hosts_free(&all);
    hosts_free(&hosts);
}

static void a_name_is_repeated_for_each_address(void **state)
{
    (void)state;
    expect_found("postgresql://db:1/app", 0, "10.0.0.2 10.0.0.1 ", "db,db", "10.0.0.2,10.0.0.1",
                 "1,1");
    expect_found("host=/run/pg,db,127.0.0.9 port=1,2,3", 0, "::1 ::2 ", "/run/pg,db,db,127.0.0.9",
                 ",::1,::2,", "1,2,2,3");
    expect_found("host=db port=", 0, "::1 ::1 ::2 ", "db,db", "::1,::2", "-");
}

/* Whatever the resolver's order is today: each address is the first once in three attempts. */
static void every_address_has_its_turn(void **state)
{
    (void)state;
    expect_found("host=db", 1, "c a b ", "db,db,db", "b,c,a", "-");
    expect_found("host=db", 2, "a b c ", "db,db,db", "c,a,b", "-");
    expect_found("host=db", 3, "b c a ", "db,db,db", "a,b,c", "-");
    expect_found("host=a,b", 0, "1 2 ", "a,a,b,b", "1,2,1,2", "-");
    expect_found("host=a,b", 1, "1 2 ", "b,b,a,a", "1,2,1,2", "-");
    expect_found("host=a,b", 2, "1 2 ", "a,a,b,b", "2,1,2,1", "-");
    expect_found("host=a,b", 3, "1 2 ", "b,b,a,a", "2,1,2,1", "-");
}

static void a_name_has_no_more_addresses_than_there_is_room_for(void **state)
{
    (void)state;
    struct addresses list = {.count = 0};
    char text[ADDRESS_TEXT_MAX + 1];

    memset(text, '1', ADDRESS_TEXT_MAX);
    text[ADDRESS_TEXT_MAX] = '\0';
    addresses_add(&list, text);
    assert_int_equal(list.count, 0);
    for (int i = 0; i < 2 * ADDRESSES_PER_NAME_MAX; i++) {
        snprintf(text, sizeof text, "10.0.0.%d", i);
        addresses_add(&list, text);
    }
    assert_int_equal(list.count, ADDRESSES_PER_NAME_MAX);
}

int main(void)
{
    static const char *const variables[] = {"PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_begins_at_any_host),
        cmocka_unit_test(what_is_said_once_is_for_all_hosts),
        cmocka_unit_test(what_only_libpq_can_judge_is_left_to_it),
        cmocka_unit_test(the_environment_says_what_the_url_does_not),
        cmocka_unit_test(only_names_are_looked_up),
        cmocka_unit_test(a_name_is_repeated_for_each_address),
        cmocka_unit_test(every_address_has_its_turn),
        cmocka_unit_test(a_name_has_no_more_addresses_than_there_is_room_for),
    };

    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
