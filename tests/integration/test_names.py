"""Host names of Postgres: name servers that hang or fail, and names with several addresses."""
import contextlib
import fcntl
import os
import socket
import time

import pytest

from proxy_process import Proxy, is_healthy, wait_for
from relay import TcpRelay
from wire_client import Client, pb, statuses

NAME = "db.test"
PROMPT_S = 8  # the machine may be busy; a loop that is held up stands for 10
HANG_TEXT = f"could not translate host name '{NAME}' to address: no answer in time"
FAIL_TEXT = f"could not translate host name '{NAME}' to address: Temporary failure in name resolution"


class Names:
    """What the library of tests/support/names.c answers; `env` goes to the proxy."""

    def __init__(self, build, folder):
        self.folder = folder
        self.folder.mkdir()
        self.env = {"LD_PRELOAD": str(build / "tests/support/libnames.so"), "AWA_NAMES_FOLDER": str(folder)}

    def set(self, addresses, name=NAME):
        """Separated by spaces; none: a temporary failure."""
        (self.folder / name).write_text(addresses)

    @contextlib.contextmanager
    def hanging(self, name=NAME):
        with open(self.folder / name, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@pytest.fixture
def names(build, tmp_path):
    return Names(build, tmp_path / "names")


@pytest.fixture
def run(awa_proxy, own_database, tmp_path, names):
    """Starts a proxy whose Postgres has this host and port; it need not become ready."""
    started = []

    def start(host, port, *options):
        database = own_database.split("/")[3].split("?")[0]
        url = f"dbname={database} user=awa_owner host={host} port={port} sslmode=disable gssencmode=disable"
        started.append(Proxy(awa_proxy, tmp_path, url, *options, env=names.env))
        return started[-1]

    yield start
    for proxy in started:
        proxy.end()
        assert is_healthy(proxy), proxy.log()


@pytest.fixture
def relay(cluster, own_database):
    with TcpRelay(cluster, own_database) as relay:
        yield relay


def events(proxy, name, pool):
    return [line for line in proxy.log().splitlines() if f"event={name} pool={pool}" in line]


def lookups(proxy):
    """How many are under way: threads beside the loop."""
    return len(os.listdir(f"/proc/{proxy.process.pid}/task")) - 1


def lose_control(proxy, cluster):
    pid = events(proxy, "pg_connected", "control")[-1].split("pid=")[1]
    cluster.execute(f"SELECT pg_terminate_backend({pid})")


def work(client):
    """One job from end to end, and a ping; returns the seconds of the slowest step."""
    slowest = 0
    steps = [lambda: client.heartbeat(), lambda: client.enqueue("q", b"{}"),
             lambda: client.claim("q", wait_ms=15000)]
    for step in steps:
        start = time.monotonic()
        result = step()
        slowest = max(slowest, time.monotonic() - start)
    assert statuses(client.complete(*result)) == ["DONE"]
    return slowest


def test_a_lookup_that_hangs_keeps_nobody_waiting(run, names, relay, cluster):
    names.set("127.0.0.1")
    proxy = run(NAME, relay.port, "--instance-missing-ms", "120000").wait_ready()  # it claims for half of that while nobody sees it
    client = Client(proxy.socket)
    assert work(client) < PROMPT_S
    wait_for(lambda: "event=leading" in proxy.log())
    with names.hanging():
        lose_control(proxy, cluster)
        wait_for(lambda: lookups(proxy) > 0)
        slowest = 0
        while not (failed := events(proxy, "pg_connect_failed", "control")):
            slowest = max(slowest, work(client))
            time.sleep(0.02)  # not a load test
        assert HANG_TEXT in failed[0]
        assert slowest < PROMPT_S
        wait_for(lambda: lookups(proxy) > 1)  # the next attempt; the first one still hangs
        assert work(client) < PROMPT_S
    wait_for(lambda: proxy.log().count("event=leading") == 2 and lookups(proxy) == 0)
    assert work(client) < PROMPT_S
    client.close()
    assert proxy.stop() == 0
    assert "stopped clean=yes" in proxy.log()


@pytest.mark.parametrize("serves", [True, False])
def test_the_end_does_not_wait_for_a_lookup(run, names, relay, cluster, serves):
    names.set("127.0.0.1")
    with contextlib.ExitStack() as stack:
        if not serves:
            stack.enter_context(names.hanging())
        proxy = run(NAME, relay.port)
        if serves:
            proxy.wait_ready()
            assert work(Client(proxy.socket)) < PROMPT_S
            stack.enter_context(names.hanging())
            lose_control(proxy, cluster)
        wait_for(lambda: lookups(proxy) > 0)
        start = time.monotonic()
        assert proxy.stop() == 0
        assert time.monotonic() - start < PROMPT_S
        assert "stopped clean=yes" in proxy.log()


def test_a_name_that_is_not_found_is_said_and_tried_again(run, names, relay):
    """To whoever waits, too."""
    names.set("")
    proxy = run(NAME, relay.port)
    wait_for(lambda: all(events(proxy, "pg_connect_failed", pool) for pool in ("data", "control")))
    assert FAIL_TEXT in events(proxy, "pg_connect_failed", "data")[0]
    client = Client(proxy.socket)
    answer = client.call(queue_counts=pb.QueueCounts(queue="q"))
    assert answer.error.message == FAIL_TEXT.replace("'", '"')
    names.set("127.0.0.1")
    proxy.wait_ready()
    work(client)


def test_libpq_is_told_the_name_and_the_address(run, names, tmp_path):
    """TLS and passwords go by the name. Nothing listens there."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.9", 0))
        port = unused.getsockname()[1]
        names.set("127.0.0.9")
        proxy = run(NAME, port)
        wait_for(lambda: events(proxy, "pg_connect_failed", "data"))
    assert f"{NAME}: connection to server at '127.0.0.9', port {port} failed: Connection refused" in proxy.log()


def test_an_address_that_says_nothing_does_not_hide_the_next(run, names, cluster, own_database):
    with socket.create_server(("127.0.0.2", 0)) as silent:
        port = silent.getsockname()[1]
        with TcpRelay(cluster, own_database, "127.0.0.3", port):
            names.set("127.0.0.2 127.0.0.3")
            work(Client(run(NAME, port).wait_ready().socket))


def test_a_name_that_hangs_does_not_hide_the_next_host(run, names, cluster):
    names.set("127.0.0.1")
    with names.hanging():
        proxy = run(f"{NAME},{cluster.dir}/socket", "5432,5432").wait_ready()
        work(Client(proxy.socket))
