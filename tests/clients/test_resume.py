"""Clients of a real proxy whose connection is cut, half open, or whose proxy goes away."""
import contextlib
import itertools
import signal
import socket
import threading
import time

import pytest

import drivers
from relaying import READ_BYTES, accept_pairs, shut

numbers = itertools.count(1)
WAIT_MS = 10_000


class Relay:
    """Between client and proxy. Each connection is cut once so many bytes have gone through as the
    next of `budgets` says, in whichever direction; when there are no more, they last."""

    def __init__(self, path, target, budgets=()):
        self.address, self.target = f"unix:{path}", target.removeprefix("unix:")
        self.budgets = list(budgets)
        self.pairs = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        for client, server in accept_pairs(self.listener, self.target):
            self.pairs.append((client, server))
            left = [self.budgets.pop(0) if self.budgets else 1 << 40]
            for here, there in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(here, there, left), daemon=True).start()

    @staticmethod
    def pump(here, there, left):
        with contextlib.suppress(OSError):
            while data := here.recv(READ_BYTES):
                there.sendall(data[:left[0]])
                left[0] -= len(data)
                if left[0] <= 0:
                    break
        shut(here, there)

    def close(self):
        self.listener.close()
        for pair in self.pairs:
            for end in pair:
                end.close()


@pytest.fixture
def queue(driver):
    return f"sessions-{driver.name}-{next(numbers)}"


@pytest.fixture
def relay(tmp_path, proxy):
    made = []

    def start(budgets=()):
        made.append(Relay(tmp_path / f"relay{len(made)}", proxy, budgets))
        return made[-1]

    yield start
    for relay in made:
        relay.close()


def store(driver, queue, count, kind="complete"):
    results = driver.enqueue(*[{"queue": queue, "kind": kind}] * count)
    assert all(code == "OK" for _, code, _ in results)
    return [job_id for job_id, _, _ in results]


def wait_for_counts(driver, queue, expected):
    deadline = time.monotonic() + drivers.DEADLINE_S
    while (seen := {s: n for s, n in driver.counts(queue).items() if n}) != expected:
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)


def hold_two(driver, queue, start_worker, address):
    """A worker that runs one job and has another ready."""
    worker = start_worker(address, queue, concurrency=1, prefetch=1)
    store(driver, queue, 2, kind="wait")
    worker.started()
    wait_for_counts(driver, queue, {"running": 2})
    return worker


def test_a_worker_whose_connection_is_cut_again_and_again(driver, proxy, relay, queue, start_worker):
    """No job is lost, none runs twice: each session comes back in time."""
    driver.connect(proxy)
    cuts = relay([200 + 97 * number for number in range(20)])
    worker = start_worker(cuts.address, queue, concurrency=2, prefetch=2)
    for _ in range(5):
        store(driver, queue, 20)
    wait_for_counts(driver, queue, {"completed": 100})
    worker.stop()
    stats = worker.join()
    assert len(worker.starts) == len(set(worker.starts)) == 100
    assert stats.executed == stats.done == 100
    assert stats.reconnects > 3 and stats.resumed > 0


def test_a_half_open_connection_is_taken_over(driver, proxy, relay, queue, start_worker):
    driver.connect(proxy)
    between = relay()
    worker = hold_two(driver, queue, start_worker, between.address)
    client, server = between.pairs[0]
    between.pairs[0] = (client, server.dup())       # the proxy's end stays open
    client.shutdown(socket.SHUT_RDWR)
    worker.let_end()
    wait_for_counts(driver, queue, {"completed": 2})
    worker.stop()
    stats = worker.join()
    assert (stats.executed, stats.done, stats.reconnects, stats.resumed) == (2, 2, 1, 1)


def test_resume_by_hand(driver, proxy, queue):
    session_id, resumed = driver.connect(proxy)
    assert not resumed
    store(driver, queue, 1)
    [job] = driver.claim(queue, wait_ms=WAIT_MS)
    assert driver.connect(proxy, resume=session_id) == (session_id, True)
    assert driver.heartbeat(job.receipt, b"nonsense") == [True, False]
    assert [status for status, _, _ in driver.finish((job.receipt, "complete", 0, ""))] == ["DONE"]
    assert driver.heartbeat(job.receipt) == [False]
    assert driver.connect(proxy, resume=b"x" * 16)[1] is False


def test_a_draining_proxy_and_its_successor(driver, proxy, serve, queue, start_worker):
    driver.connect(proxy)
    served = serve()
    worker = hold_two(driver, queue, start_worker, served.address)
    served.process.send_signal(signal.SIGTERM)
    wait_for_counts(driver, queue, {"running": 1, "available": 1})     # what had not started
    worker.let_end()
    assert served.process.wait(drivers.DEADLINE_S) == 0     # a second signal would not wait for it
    wait_for_counts(driver, queue, {"completed": 1, "available": 1})
    serve()
    wait_for_counts(driver, queue, {"completed": 2})
    worker.stop()
    stats = worker.join()
    assert (stats.executed, stats.done, stats.resumed) == (2, 2, 0)


def test_a_killed_proxy_and_its_successor(driver, proxy, serve, queue, start_worker):
    """The attempts are still open: what runs is told to the successor, the rest released to it."""
    driver.connect(proxy)
    served = serve()
    worker = hold_two(driver, queue, start_worker, served.address)
    served.end(signal.SIGKILL)
    serve()
    worker.let_end()
    wait_for_counts(driver, queue, {"completed": 2})
    worker.stop()
    stats = worker.join()
    assert (stats.executed, stats.done, stats.resumed) == (2, 2, 0)
    assert stats.reconnects >= 1
