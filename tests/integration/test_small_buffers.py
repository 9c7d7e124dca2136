"""Sockets that hold next to nothing, with 10 MB to be said in each direction before anybody listens."""
import socket
import threading

import pytest

from proxy_process import Proxy, is_healthy, wait_for
from relay import Relay
from wire_client import Client, pb, statuses

SMALL = 1               # the kernel makes it its least: some 2 to 5 kB
REQUESTS = 100
ARGS = b'"' + b"x" * 100_000 + b'"'


@pytest.fixture
def proxy(awa_proxy, build, cluster, own_database, tmp_path):
    """All sockets are small: towards clients, towards Postgres, and those in between."""
    env = {"LD_PRELOAD": str(build / "tests/support/libnth_failure.so"), "AWA_NTH_SOCKET_BYTES": str(SMALL)}
    with Relay(cluster, own_database, SMALL) as relay:
        running = Proxy(awa_proxy, tmp_path, relay.url, "--pool-size", "1", "--drain-timeout-ms", "2000", env=env)
        yield running.wait_ready()
        running.end()
    assert is_healthy(running), running.log()


def connect_small(proxy):
    client = Client(proxy.socket)
    client.socket.settimeout(60)
    for side in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        client.socket.setsockopt(socket.SOL_SOCKET, side, SMALL)
    return client


def send_all(client, queue, requests=REQUESTS):
    """10 MB, and not a byte is read meanwhile."""
    return [client.send(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue=queue, kind="k", args=ARGS)])) for _ in range(requests)]


def receive_all(client, sent):
    for request in sent:
        result, = client.answer(request).enqueue_ok.results
        assert result.job_id, result


def test_ptrap_14_everybody_sends_before_reading(proxy):
    producer, worker = connect_small(proxy), connect_small(proxy)
    receive_all(producer, send_all(producer, "one"))
    sent = []
    sender = threading.Thread(target=lambda: sent.extend(send_all(producer, "two")))
    sender.start()          # 10 MB go in while 10 MB come out, on one connection to Postgres
    done = 0
    while done < REQUESTS:
        requests = [worker.send(claim=pb.Claim(queues=["one"], max_jobs=25, wait_ms=10000)) for _ in range(2)]
        for request in requests:
            jobs = worker.answer(request).claim_ok.jobs
            assert all(job.args == ARGS for job in jobs)
            if jobs:
                assert set(statuses(worker.complete(*jobs))) == {"DONE"}
            done += len(jobs)
    sender.join(60)
    receive_all(producer, sent)
    counts = producer.counts("two")
    assert (done, len(sent), counts.available) == (REQUESTS, REQUESTS, REQUESTS)
    claim = worker.send(claim=pb.Claim(queues=["two"], max_jobs=25, wait_ms=10000))
    wait_for(lambda: producer.counts("two").running == 25)
    sent = send_all(worker, "three", 25)  # while as much is owed to it, and stuck
    assert [job.args for job in worker.answer(claim).claim_ok.jobs] == [ARGS] * 25
    receive_all(worker, sent)
    assert "pg_lost" not in proxy.log()
    assert proxy.stop() == 0
