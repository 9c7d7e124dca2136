/* url: the list of hosts, begun at another one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "pg/url.h"

/* "-": the URL does not say. */
static void expect(const char *url, unsigned first, const char *host, const char *hostaddr,
                   const char *port)
{
    struct url_hosts hosts;

    url_hosts_from(url, first, &hosts);
    assert_string_equal(hosts.host != NULL ? hosts.host : "-", host);
    assert_string_equal(hosts.hostaddr != NULL ? hosts.hostaddr : "-", hostaddr);
    assert_string_equal(hosts.port != NULL ? hosts.port : "-", port);
    url_hosts_free(&hosts);
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
    expect("host=a,b port=5433 dbname=app", 1, "b,a", "-", "5433");
    expect("host=a,b dbname=app", 1, "b,a", "-", "-");
    expect("host=a,b hostaddr=::1,127.0.0.1", 1, "b,a", "127.0.0.1,::1", "-");
    expect("hostaddr=::1,127.0.0.1 port=1,2", 1, "-", "127.0.0.1,::1", "2,1");
    expect("host=a,b,c port=,5433,", 1, "b,c,a", "-", "5433,,"); /* empty: the default */
    expect("host=,a", 1, "a,", "-", "-");
}

static void one_host_or_none(void **state)
{
    (void)state;
    expect("postgresql:///app", 7, "-", "-", "-");
    expect("postgresql://a:1/app", 7, "a", "-", "1");
    expect("host=a port=1,2", 7, "a", "-", "1,2"); /* libpq says that this is wrong */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_begins_at_any_host),
        cmocka_unit_test(what_is_said_once_is_for_all_hosts),
        cmocka_unit_test(one_host_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
