"""`awa-proxy serve` and the schema: what does not fit is refused, said once, and tried again."""
import subprocess

import pytest

from postgres import connected
from proxy_process import Proxy, wait_for
from wire_client import Client, pb

DRAIN = ("--drain-timeout-ms", "50")


def execute(url, sql):
    with connected(url) as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else None


def known(url):
    return execute(url, "SELECT max(version) FROM awa.schema_migrations")[0][0]


@pytest.fixture
def serve(awa_proxy, tmp_path):
    """Starts a proxy that may not become ready."""
    started = []

    def run(url, *options):
        started.append(Proxy(awa_proxy, tmp_path, url, *DRAIN, *options))
        return started[-1]
    yield run
    for proxy in started:
        proxy.end()


def wait_for_tries(url, count):
    """Until so many sessions of others have begun."""
    with connected(url) as cursor:
        def sessions():
            cursor.execute("SELECT sessions FROM pg_stat_database WHERE datname = current_database()")
            return cursor.fetchone()[0]
        before = sessions()
        wait_for(lambda: sessions() >= before + count)


def wait_refused(proxy, words):
    """Refused in these words, which stay the only ones while it goes on trying."""
    wait_for(lambda: "pg_connect_failed" in proxy.log())
    assert words in proxy.log(), proxy.log()
    assert "ready listen=" not in proxy.log()


SPOILT = {
    "newer": ("INSERT INTO awa.schema_migrations VALUES (99, 'future')",
              "DELETE FROM awa.schema_migrations WHERE version = 99",
              "schema awa is at version 99, this binary knows up to"),
    "half installed": ("CREATE TABLE public.kept AS TABLE awa.schema_migrations; TRUNCATE awa.schema_migrations",
                       "INSERT INTO awa.schema_migrations SELECT * FROM public.kept",
                       "schema awa is half installed: its schema_migrations is empty"),
    "of another program": ("UPDATE awa.schema_migrations SET name = name || 'x' WHERE version = 1",
                           "UPDATE awa.schema_migrations SET name = rtrim(name, 'x') WHERE version = 1",
                           "schema awa is not from this program: its version 1 is"),
    "without a ledger": ("ALTER TABLE awa.schema_migrations RENAME TO hidden",
                         "ALTER TABLE awa.hidden RENAME TO schema_migrations",
                         "schema awa holds objects but no schema_migrations"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_what_does_not_fit_is_refused_until_it_fits(serve, own_database, what):
    spoil, mend, words = SPOILT[what]
    execute(own_database, spoil)
    proxy = serve(own_database)
    wait_refused(proxy, words)
    wait_for_tries(own_database, 6)
    assert "ready listen=" not in proxy.log()
    assert proxy.log().count("pg_connect_failed") <= 2, proxy.log()  # once a pool
    execute(own_database, mend)
    client = Client(proxy.wait_ready().socket)
    assert client.enqueue("q", b"{}")[0].job_id > 0
    client.close()
    assert proxy.stop() == 0


def test_older_is_refused_until_it_is_migrated(serve, awa_proxy, own_database):
    newest = known(own_database)
    if newest == 1:
        pytest.skip("there is one version only")
    execute(own_database, f"DELETE FROM awa.schema_migrations WHERE version = {newest}")
    wait_refused(serve(own_database),
                 f"schema awa is at version {newest - 1}, this binary needs version {newest}; run awa-proxy migrate")


def test_empty_schema(serve, awa_proxy, database):
    execute(database, "CREATE SCHEMA awa")
    proxy = serve(database)
    wait_refused(proxy, "schema awa is empty; run awa-proxy migrate")
    subprocess.run([awa_proxy, "migrate", "--database", database], check=True, stdout=subprocess.DEVNULL, timeout=60)
    proxy.wait_ready()
    assert proxy.stop() == 0


def test_every_new_connection_looks_again(serve, cluster, own_database):
    """A newer schema does not disturb the connections that exist; their successors refuse it."""
    proxy = serve(own_database).wait_ready()
    client = Client(proxy.socket)
    execute(own_database, SPOILT["newer"][0])
    assert client.enqueue("q", b"{}")[0].job_id > 0
    execute(cluster.superuser_url(own_database.split("/")[3].split("?")[0]),
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'awa-proxy'"
            " AND datname = current_database()")
    wait_for(lambda: proxy.log().count(SPOILT["newer"][2]) == 2)  # data and control
    execute(own_database, SPOILT["newer"][1])
    assert client.enqueue("q", b"{}")[0].job_id > 0
    client.close()
    assert proxy.stop() == 0


def test_ptrap_07_another_reason_is_said_too(serve, own_database):
    """What hinders at last is not what hindered at first: both have to be mended."""
    execute(own_database, "ALTER SCHEMA awa RENAME TO elsewhere")
    proxy = serve(own_database)
    wait_for(lambda: "schema awa does not exist" in proxy.log())
    name = own_database.split("/")[3].split("?")[0]
    execute(own_database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    wait_for(lambda: "is read-only" in proxy.log())
    assert proxy.log().count("pg_connect_failed") <= 4, proxy.log()  # two pools, two reasons


def test_a_role_that_may_not_work_is_told_once(serve, cluster, own_database):
    """It may log in and see the schema, but not use the tables; its callers hear that from the server."""
    name = own_database.split("/")[3].split("?")[0]
    cluster.execute("CREATE ROLE poor LOGIN")
    try:
        execute(own_database, "GRANT USAGE ON SCHEMA awa TO poor; GRANT SELECT ON awa.schema_migrations TO poor")
        proxy = serve(cluster.url(name, "poor"))
        wait_for(lambda: "pg_lost pool=control" in proxy.log())
        client = Client(proxy.socket)
        wait_for_tries(own_database, 6)
        wait_for(lambda: "no control connection" in client.call(
            claim=pb.Claim(queues=["q"], max_jobs=1)).error.message)
        error = client.call(claim=pb.Claim(queues=["q"], max_jobs=1)).error
        assert (error.code, error.sqlstate) == (pb.PERMISSION_DENIED, "42501"), error
        assert "permission denied for table" in error.message
        log = [line for line in proxy.log().splitlines() if "pool=control" in line]
        assert [line.split("event=")[1].split()[0] for line in log] == ["pg_connected", "pg_lost"], log
        assert "sqlstate=42501" in log[1]
        execute(own_database, "GRANT ALL ON ALL TABLES IN SCHEMA awa TO poor; GRANT ALL ON ALL SEQUENCES IN SCHEMA awa TO poor")
        proxy.wait_ready()
        wait_for(lambda: proxy.log().count("pg_connected pool=control") == 2)  # once it has proved to work
        client.close()
        assert proxy.stop() == 0
    finally:
        proxy.end()
        cluster.execute("DROP OWNED BY poor", name)
        cluster.execute("DROP ROLE poor")
