"""What the proxy holds in memory: bounds of an idle one and of one with many sessions."""
import re
import subprocess

import pytest

from proxy_process import Proxy, wait_for
from wire_client import Client, pb

IDLE_KIB = 3 * 1024
SESSIONS = 1000
SESSIONS_KIB = 6 * 1024
LARGE = 48  # jobs of 1 MiB
UNREAD_KIB = 32 * 1024  # 8 MiB in its output, which has room for twice that, and what libpq and malloc keep


@pytest.fixture
def proxy(awa_proxy, database, tmp_path):
    subprocess.run([awa_proxy, "migrate", "--database", database], check=True, stdout=subprocess.DEVNULL, timeout=60)
    running = Proxy(awa_proxy, tmp_path, database, "--drain-timeout-ms", "50").wait_ready()
    yield running
    running.end()


def anonymous_kib(proxy):
    status = open(f"/proc/{proxy.process.pid}/status", encoding="utf-8").read()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status).group(1))


def test_memory_idle_and_with_many_sessions(proxy, capsys):
    wait_for(lambda: "event=leading" in proxy.log())
    idle = anonymous_kib(proxy)
    clients = [Client(proxy.socket) for _ in range(SESSIONS)]
    job = pb.NewJob(queue="q", kind="k", args=b'{"n": 1}')
    for client, stored in [(c, c.send(enqueue=pb.Enqueue(jobs=[job]))) for c in clients]:
        assert client.answer(stored).enqueue_ok.results[0].job_id
    for client, claim in [(c, c.send(claim=pb.Claim(queues=["q"], max_jobs=1, wait_ms=20000))) for c in clients]:
        assert client.complete(*client.answer(claim).claim_ok.jobs)[0].status == pb.DONE
    for client in clients:  # as workers do: a claim waits
        client.send(claim=pb.Claim(queues=["q"], max_jobs=10, wait_ms=60000))
    clients[-1].call(ping=pb.Ping())
    busy = anonymous_kib(proxy)
    with capsys.disabled():
        print(f"\n    RssAnon: idle {idle / 1024:.1f} MiB, {SESSIONS} sessions {busy / 1024:.1f} MiB")
    assert idle <= IDLE_KIB
    assert busy <= SESSIONS_KIB
    for client in clients:
        client.close()


def test_who_does_not_read_costs_little_and_loses_nothing(proxy):
    """Its claims wait until it reads; meanwhile others get the jobs."""
    wait_for(lambda: "event=leading" in proxy.log())
    producer = Client(proxy.socket)
    args = b'"' + b"x" * (1024 * 1024 - 2) + b'"'

    def store(count):
        for _ in range(count):
            job = pb.NewJob(queue="q", kind="k", args=args)
            assert producer.call(enqueue=pb.Enqueue(jobs=[job])).enqueue_ok.results[0].job_id

    store(LARGE)
    idle = anonymous_kib(proxy)
    slow = Client(proxy.socket)
    waiting = [slow.send(claim=pb.Claim(queues=["q"], max_jobs=1, wait_ms=60000)) for _ in range(LARGE)]
    wait_for(lambda: producer.counts("q").running > 0)
    neighbour = Client(proxy.socket)
    done = []

    def is_empty():
        jobs = neighbour.claim("q", jobs=4, wait_ms=500)
        if jobs:
            assert {result.status for result in neighbour.complete(*jobs)} == {pb.DONE}
        done.extend(jobs)
        return not jobs and producer.counts("q").available == 0

    wait_for(is_empty)
    grown = anonymous_kib(proxy) - idle
    assert len(done) >= LARGE // 2, f"{len(done)} for the neighbour"
    assert grown <= UNREAD_KIB, f"{grown} KiB for one that does not read"
    store(len(done))  # for the claims that wait
    assert all(len(slow.answer(claim).claim_ok.jobs) == 1 for claim in waiting)
    for client in (producer, slow, neighbour):
        client.close()
