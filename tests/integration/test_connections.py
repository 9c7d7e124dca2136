"""The proxy's connections to Postgres: how old they get, and who may stand between."""
import contextlib
import threading

import pytest

from postgres import connected
from proxy_process import Proxy, wait_for
from relay import Relay
from wire_client import Client, pb, statuses

LIFETIME_MS = 1000


def retired(proxy):
    return proxy.log().count("event=pg_retired")


class Load:
    """A thread that enqueues, claims and completes; every request must succeed."""

    def __init__(self, proxy):
        self.client = Client(proxy.socket)
        self.done = 0
        self.failure = None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.stopping.is_set():
                assert all(r.job_id for r in self.client.enqueue("q", *[b"{}"] * 20))
                jobs = self.client.claim("q", jobs=20, wait_ms=5000)
                assert jobs and set(statuses(self.client.complete(*jobs))) == {"DONE"}
                self.done += len(jobs)
        except (AssertionError, OSError) as error:
            self.failure = repr(error)

    def stop(self):
        self.stopping.set()
        self.thread.join(30)
        assert self.failure is None and not self.thread.is_alive()


@pytest.mark.parametrize("size", ["1", "4"])
def test_old_connections_are_replaced_under_load(start, own_database, size):
    """Nobody notices, and one at a time."""
    proxy = start("--connection-lifetime-ms", str(LIFETIME_MS), "--pool-size", size)
    load = [Load(proxy) for _ in range(3)]
    wait_for(lambda: retired(proxy) >= 4)
    for each in load:
        each.stop()
    log = proxy.log()
    assert sum(each.done for each in load) > 0
    assert "pg_lost" not in log and "outcome_unknown" not in log and "pg_connect_failed" not in log
    with connected(own_database) as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'awa-proxy' AND datname = current_database()")
        open_now, = cursor.fetchone()
    assert open_now <= 1 + int(size)


def test_an_idle_proxy_keeps_one_connection_through_the_change(start, own_database):
    """The successor is there before the old one goes, so what comes next waits for no login."""
    proxy = start("--connection-lifetime-ms", str(LIFETIME_MS))
    wait_for(lambda: retired(proxy) >= 2)
    data = [line for line in proxy.log().splitlines() if "pool=data" in line]
    events = [line.split("event=")[1].split()[0] for line in data]
    assert events[:4] == ["pg_connected", "pg_connected", "pg_retired", "pg_connected"]
    assert "pool=control" not in "".join(line for line in proxy.log().splitlines() if "pg_retired" in line)


def test_an_old_connection_is_kept_while_no_other_can_be_had(awa_proxy, cluster, own_database, tmp_path):
    name = own_database.partition("@/")[2].partition("?")[0]
    proxy = Proxy(awa_proxy, tmp_path, own_database, "--connection-lifetime-ms", str(LIFETIME_MS)).wait_ready()
    with contextlib.ExitStack() as stack:
        stack.callback(proxy.end)
        client = Client(proxy.socket)
        assert client.counts("q").available == 0
        cluster.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        stack.callback(cluster.execute, f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        wait_for(lambda: "pg_connect_failed" in proxy.log())
        assert client.call(queue_counts=pb.QueueCounts(queue="q")).HasField("queue_counts_ok")


def test_a_pooler_in_between_is_named(awa_proxy, cluster, own_database, tmp_path):
    """By the process number that the client hears, which is then another than the server's."""
    with Relay(cluster, own_database) as relay:
        for folder in ("plain", "pooled"):
            (tmp_path / folder).mkdir()
            proxy = Proxy(awa_proxy, tmp_path / folder, relay.url).wait_ready()
            try:
                wait_for(lambda: "pg_connected pool=data" in proxy.log() and "event=leading" in proxy.log())
                log = proxy.log()
            finally:
                proxy.end()
            assert log.count("event=pg_pooler") == (2 if folder == "pooled" else 0)
            relay.inject("renumber", None, times=99)
    assert "connect directly" in log
