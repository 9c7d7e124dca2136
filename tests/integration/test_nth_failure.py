"""The Nth allocation and the Nth socket write of the proxy fail, for every N of a short scenario: always an
answer or a clean close, and nothing acknowledged is lost."""
import signal

import pytest

from nth_failure import ALLOCATION, SEND, SEND_FAILURES, NthFailure
from postgres import connected
from proxy_process import Proxy, is_healthy
from wire_client import Client, pb, statuses

OPTIONS = ("--drain-timeout-ms", "50", "--session-grace-ms", "100", "--instance-missing-ms", "1000", "--pool-size", "2")
SENDS_MAX = 60          # more than the scenario needs, with what the leader does meanwhile
ALLOCATIONS_MAX = 1 << 30
ALLOCATIONS_TRIED = 80  # each may cost a proxy


class Promises:
    """What clients were told, over all scenarios."""

    def __init__(self):
        self.stored, self.completed, self.queues = [], [], []

    def run(self, proxy, queue):
        """Every request once. True: said goodbye to; false: closed before the end."""
        self.queues.append(queue)
        try:
            self.talk(Client(proxy.socket, hello=False), queue)
            return True
        except OSError:
            return False
        except AssertionError as error:
            if str(error).split("\n")[0] not in ("closed before the answer", "the stream ended inside a frame"):
                raise
            return False

    def talk(self, client, queue):
        with client.socket:
            assert client.call(hello=pb.Hello(major=1)).HasField("hello_ok")
            results = client.enqueue(queue, b"{}", b"[1]", b"2")
            self.stored += [result.job_id for result in results if result.job_id]
            claim = client.call(claim=pb.Claim(queues=[queue], max_jobs=2, wait_ms=2000))
            jobs = claim.claim_ok.jobs
            client.heartbeat(*jobs)
            if jobs:
                result, = client.complete(jobs[0])
                if statuses([result])[0] in ("DONE", "ALREADY_DONE"):
                    self.completed.append((jobs[0].job_id, jobs[0].attempt))
            client.call(release=pb.Release(receipts=[job.receipt for job in jobs[1:]]))
            client.call(queue_counts=pb.QueueCounts(queue=queue))
            assert client.call(goodbye=pb.Goodbye()).HasField("goodbye_ok")

    def check(self, proxy, url):
        """Completes the rest. Every acknowledged job is there once, and what was acknowledged as done was so."""
        client = Client(proxy.socket)
        client.socket.settimeout(60)
        open_queues = list(self.queues)
        while open_queues:
            for at in range(0, len(open_queues), 16):
                jobs = client.claim(*open_queues[at:at + 16], jobs=512)
                if jobs:
                    assert set(statuses(client.complete(*jobs))) == {"DONE"}
            with connected(url) as cursor:
                cursor.execute("SELECT q FROM unnest(%s::text[]) q, awa.queue_counts_exact(q) c"
                               " WHERE c.available + c.running + c.retryable > 0", (open_queues,))
                open_queues = [queue for queue, in cursor.fetchall()]
        with connected(url) as cursor:
            cursor.execute("SELECT id, state, attempt FROM unnest(%s::bigint[]) id, awa.get_job(id)", (self.stored,))
            rows = {job_id: (state, attempt) for job_id, state, attempt in cursor.fetchall()}
        assert set(rows) == set(self.stored) and len(self.stored) == len(rows)
        assert {state for state, _ in rows.values()} == {"completed"}
        for job_id, attempt in self.completed:
            assert rows[job_id] == ("completed", attempt)
        client.close()


@pytest.fixture
def nth(build, tmp_path):
    return NthFailure(build, tmp_path)


@pytest.fixture
def start_armed(awa_proxy, own_database, tmp_path, nth):
    """Starts proxies that may die, one after the other."""
    started = []

    def run():
        for running in started:
            running.end()
        folder = tmp_path / f"proxy-{len(started)}"
        folder.mkdir()
        started.append(Proxy(awa_proxy, folder, own_database, *OPTIONS, env=nth.env).wait_ready())
        return started[-1]

    yield run
    for running in started:
        running.end()


@pytest.fixture
def proxy(awa_proxy, own_database, tmp_path, nth):
    running = Proxy(awa_proxy, tmp_path, own_database, *OPTIONS, env=nth.env).wait_ready()
    yield running
    running.end()


def test_every_socket_write_fails_once(proxy, own_database, nth):
    """Towards clients and towards Postgres, one after the other; the same proxy serves on."""
    promises = Promises()
    struck = 0
    for name, failure in SEND_FAILURES.items():
        for number in range(1, SENDS_MAX):
            nth.arm(SEND, number, failure)
            whole = promises.run(proxy, f"{name}-{number}")
            if nth.left() > 0:
                assert whole
                break
            if name in ("again", "short"):
                assert whole, number    # no failure at all
        assert number > 10 and nth.disarm() - struck == number - 1
        struck = nth.disarm()
    assert len(promises.completed) > len(promises.queues) / 2
    promises.check(proxy, own_database)
    assert proxy.stop() == 0
    assert is_healthy(proxy), proxy.log()


def count_allocations(proxy, nth, promises):
    nth.arm(ALLOCATION, ALLOCATIONS_MAX)
    assert promises.run(proxy, "count")
    count = ALLOCATIONS_MAX - nth.left()
    nth.disarm()
    if count == 0:
        pytest.skip("a sanitizer has its own allocator")
    return count


def numbers_up_to(count):
    """All, or where they are too many some, evenly."""
    tried = min(count, ALLOCATIONS_TRIED)
    return sorted({1 + at * count // tried for at in range(tried)})


def test_every_allocation_fails_once(start_armed, own_database, nth):
    """It ends the process with its sentence; another one takes over what it promised."""
    promises = Promises()
    proxy = start_armed()
    count = count_allocations(proxy, nth, promises)
    for number in numbers_up_to(count):
        nth.arm(ALLOCATION, number)
        whole = promises.run(proxy, f"allocation-{number}")
        if nth.left() > 0:
            assert whole    # it needed fewer this time
            continue
        nth.disarm()
        assert proxy.process.wait(20) == -signal.SIGABRT
        assert " level=fatal event=out_of_memory bytes=" in proxy.log().splitlines()[-1], proxy.log()
        proxy = start_armed()
    nth.disarm()
    promises.check(proxy, own_database)
    assert proxy.stop() == 0
