"""Sessions that survive their connection: resumed in time, too late, twice at once; what becomes of
attempts when a client vanishes, at whatever point; notices, Heartbeat and CancelRequest."""
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import threading
import time

import pytest

from postgres import connected
from proxy_process import wait_for
from wire_client import Client, pb, statuses, varint

DRAIN_OPTION = ("--drain-timeout-ms", "50")
SHORT_GRACE = ("--session-grace-ms", "100")
LONG_GRACE = ("--session-grace-ms", "60000")  # where a client is in time however busy the machine is


def job_rows(url, job_ids):
    """By id: (state, attempt, error texts with the attempt each belongs to)"""
    with connected(url) as cursor:
        cursor.execute("SELECT id, state, attempt, payload -> 'errors' FROM unnest(%s::bigint[]) id,"
                       " LATERAL awa.get_job(id)", (list(job_ids),))
        return {job_id: (state, attempt, [(error["attempt"], error["error"]) for error in errors or []])
                for job_id, state, attempt, errors in cursor.fetchall()}


def job_row(url, job_id):
    return job_rows(url, [job_id])[job_id]


def claim_all(client, count, queue="q"):
    """Claims until that many jobs have come."""
    jobs = []
    while len(jobs) < count:
        part = client.claim(queue, jobs=count - len(jobs), wait_ms=15000)
        assert part, f"{len(jobs)} of {count} came"
        jobs += part
    return jobs


def hold(proxy, count, queue="q"):
    """A client that holds `count` jobs of its own."""
    client = Client(proxy.socket)
    client.enqueue(queue, *[b"{}"] * count)
    return client, claim_all(client, count, queue)


def let_turn(proxy):
    """The proxy has noticed what happened before, and looked at its timers since."""
    client = Client(proxy.socket)
    for _ in range(3):
        client.call(ping=pb.Ping())
    client.close()


def stop(proxy, *clients):
    for client in clients:
        client.close()
    assert proxy.stop() == 0, proxy.log()


# ---- resuming

def test_within_the_grace(start, own_database):
    proxy = start(*DRAIN_OPTION, *LONG_GRACE)
    old, jobs = hold(proxy, 3)
    old.close()
    let_turn(proxy)
    new = Client.resume(proxy.socket, old, held=jobs)
    assert new.limits.resumed and new.limits.session_id == old.limits.session_id
    assert new.heartbeat(*jobs) == [pb.HEARTBEAT_OK] * 3
    assert statuses(new.complete(*jobs)) == ["DONE"] * 3
    assert new.heartbeat(*jobs) == [pb.HEARTBEAT_LOST] * 3
    assert [job_row(own_database, job.job_id) for job in jobs] == [("completed", 1, [])] * 3
    stop(proxy, new)


def test_hello_ok_tells_the_rules(start):
    proxy = start(*DRAIN_OPTION, "--session-grace-ms", "1234")
    client = Client(proxy.socket)
    limits = client.limits
    assert (limits.session_grace_ms, limits.resumed) == (1234, False)
    assert 0 < limits.heartbeat_interval_ms * 2 < limits.idle_timeout_ms
    assert len(limits.session_id) == 16
    assert Client(proxy.socket).limits.session_id != limits.session_id
    stop(proxy, client)


def test_after_the_grace(start, own_database):
    proxy = start(*DRAIN_OPTION, *SHORT_GRACE)
    old, (job,) = hold(proxy, 1)
    old.close()
    wait_for(lambda: job_row(own_database, job.job_id)[0] == "retryable")
    new = Client.resume(proxy.socket, old, held=[job])
    assert not new.limits.resumed and new.limits.session_id != old.limits.session_id
    assert statuses(new.complete(job)) == ["STALE"]
    again, = new.claim("q", wait_ms=20000)
    assert (again.job_id, again.attempt) == (job.job_id, 2)
    assert statuses(new.complete(again)) == ["DONE"]
    assert job_row(own_database, job.job_id) == ("completed", 2, [(1, "worker lost")])
    stop(proxy, new)


def test_unknown_and_malformed_ids(start):
    proxy = start(*DRAIN_OPTION)
    client = Client(proxy.socket, {"session_id": os.urandom(16)})
    assert not client.limits.resumed
    other = Client(proxy.socket, hello=False)
    frame = other.call(hello=pb.Hello(major=1, session_id=b"short"))
    assert frame.error.code == pb.INVALID_ARGUMENT and "5 bytes, must be 16" in frame.error.message
    assert other.rest() == []
    stop(proxy, client)


def test_a_living_connection_is_taken_over(start):
    """The client gave it up, the proxy has not noticed: half open."""
    proxy = start(*DRAIN_OPTION)
    old, jobs = hold(proxy, 2)
    waiting = old.send(claim=pb.Claim(queues=["q"], max_jobs=5, wait_ms=60000))
    new = Client.resume(proxy.socket, old, held=jobs)
    assert new.limits.resumed
    error, = old.rest()
    assert (error.request_id, error.error.code) == (0, pb.FAILED_PRECONDITION)
    assert not error.error.retryable and waiting not in old.answers
    assert statuses(new.complete(*jobs)) == ["DONE"] * 2
    stop(proxy, new)


def test_twice_at_once(start):
    proxy = start(*DRAIN_OPTION, *LONG_GRACE)
    old, jobs = hold(proxy, 2)
    old.close()
    hello = pb.ClientFrame(request_id=1, hello=pb.Hello(major=1, session_id=old.limits.session_id))
    body = hello.SerializeToString()
    both = [Client(proxy.socket, hello=False) for _ in range(2)]
    for client in both:
        client.send_raw(varint(len(body)) + body)
    assert all(client.answer(1).hello_ok.resumed for client in both)
    select.select([client.socket for client in both], [], [], 20)
    losers = [client for client in both if select.select([client.socket], [], [], 0)[0]]
    error, = losers[0].rest()
    assert len(losers) == 1 and error.error.code == pb.FAILED_PRECONDITION
    winner, = set(both) - set(losers)
    winner.next_id = 10
    assert statuses(winner.complete(*jobs)) == ["DONE"] * 2
    stop(proxy, winner)


def test_what_the_client_never_got_goes_back_untouched(start, own_database):
    """Its ClaimOk was written but got lost; the list of what is held says so."""
    proxy = start(*DRAIN_OPTION, *LONG_GRACE)
    old, jobs = hold(proxy, 3)
    old.close()
    forged = pb.Job(receipt=b"nonsense")
    new = Client.resume(proxy.socket, old, held=[jobs[0], forged])
    notice = new.notice()
    assert (notice.kind, notice.receipt) == (pb.ATTEMPT_LOST, b"nonsense")
    again = claim_all(new, 2)
    assert sorted((job.job_id, job.attempt) for job in again) == sorted((job.job_id, 1) for job in jobs[1:])
    assert statuses(new.complete(jobs[0], *again)) == ["DONE"] * 3
    assert job_row(own_database, jobs[1].job_id) == ("completed", 1, [])
    stop(proxy, new)


def test_a_claim_that_never_left_the_proxy_goes_back_untouched(start, own_database):
    """The client does not read: most of a large ClaimOk stays in the proxy."""
    proxy = start(*DRAIN_OPTION, *SHORT_GRACE)
    producer = Client(proxy.socket)
    args = b'"' + b"x" * 100_000 + b'"'
    for _ in range(4):
        producer.enqueue("q", *[args] * 8)
    client = Client(proxy.socket)
    client.send(claim=pb.Claim(queues=["q"], max_jobs=32, wait_ms=5000))
    wait_for(lambda: producer.counts("q").running == 32)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    jobs = claim_all(producer, 32)
    assert {job.attempt for job in jobs} == {1}
    stop(proxy, producer)


def test_goodbye_leaves_nothing_to_resume(start):
    proxy = start(*DRAIN_OPTION)
    old, jobs = hold(proxy, 2)
    assert old.call(goodbye=pb.Goodbye()).goodbye_ok.released == 2
    new = Client.resume(proxy.socket, old)
    assert not new.limits.resumed
    assert statuses(new.complete(*jobs)) == ["STALE"] * 2
    assert {job.attempt for job in new.claim("q", jobs=2, wait_ms=5000)} == {1}
    stop(proxy, new)


def test_a_drain_hands_back_what_waits_for_its_client(start, own_database):
    proxy = start("--drain-timeout-ms", "20000", "--session-grace-ms", "600000")
    client, (job,) = hold(proxy, 1)
    client.close()
    assert proxy.stop() == 0
    assert job_row(own_database, job.job_id) == ("available", 0, [])


# ---- notices, Heartbeat, CancelRequest

def test_draining_is_told(start):
    proxy = start("--drain-timeout-ms", "20000")
    idle = Client(proxy.socket)
    client, jobs = hold(proxy, 1)
    proxy.process.send_signal(signal.SIGTERM)
    assert client.notice().kind == pb.DRAINING
    assert idle.notice().kind == pb.DRAINING
    assert [frame.error.code for frame in idle.rest()] == [pb.UNAVAILABLE]
    assert statuses(client.complete(*jobs)) == ["DONE"]
    assert [frame.error.code for frame in client.rest()] == [pb.UNAVAILABLE]
    assert proxy.process.wait(20) == 0


def test_what_others_end_is_told(start):
    proxy = start(*DRAIN_OPTION)
    client, (job, _) = hold(proxy, 2)
    other = Client(proxy.socket)
    assert statuses(other.finish(pb.FinishItem(receipt=job.receipt, fail=pb.Fail(error="e")))) == ["DONE"]
    notice = client.notice()
    assert (notice.kind, notice.receipt) == (pb.ATTEMPT_LOST, job.receipt)
    assert statuses(client.complete(job)) == ["STALE"]
    assert client.notices == []
    stop(proxy, client, other)


def test_heartbeat_limits(start):
    proxy = start(*DRAIN_OPTION)
    client, (job,) = hold(proxy, 1)
    assert client.heartbeat(*[job] * 1000) == [pb.HEARTBEAT_OK] * 1000
    assert client.heartbeat(pb.Job(receipt=b""), pb.Job(receipt=b"x" * 64)) == [pb.HEARTBEAT_LOST] * 2
    refused = client.call(heartbeat=pb.Heartbeat(items=[pb.HeartbeatItem()] * 1001)).error
    assert refused.code == pb.INVALID_ARGUMENT and "1000" in refused.message
    assert client.call(heartbeat=pb.Heartbeat()).error.code == pb.INVALID_ARGUMENT
    stop(proxy, client)


def test_cancel_request(start):
    proxy = start(*DRAIN_OPTION)
    client = Client(proxy.socket)
    waiting = client.send(claim=pb.Claim(queues=["q"], max_jobs=5, wait_ms=60000))
    assert client.call(cancel_request=pb.CancelRequest(request_id=waiting)).cancel_request_ok.cancelled
    assert len(client.answer(waiting).claim_ok.jobs) == 0
    for request_id in (waiting, 999, 0):
        answer = client.call(cancel_request=pb.CancelRequest(request_id=request_id))
        assert answer.HasField("cancel_request_ok") and not answer.cancel_request_ok.cancelled
    stop(proxy, client)


# ---- vanishing

class Conversation:
    """A client that may be cut at any byte it sends and after any frame it gets; or it sends nonsense there, and the proxy closes."""

    def __init__(self, proxy, cut_at_byte, cut_after_frames, nonsense=b""):
        self.client = Client(proxy.socket, hello=False)
        self.left_bytes, self.left_frames, self.nonsense = cut_at_byte, cut_after_frames, nonsense
        self.stored = []
        self.held = {}          # job id: attempt, of what it got and never began to end

    def ask(self, **request):
        request_id = self.client.next_id
        self.client.next_id += 1
        body = pb.ClientFrame(request_id=request_id, **request).SerializeToString()
        data = varint(len(body)) + body
        self.client.send_raw(data[:self.left_bytes])
        self.left_bytes -= len(data)
        if self.left_bytes < 0 or self.left_frames == 0:
            raise EOFError
        self.left_frames -= 1
        return self.client.answer(request_id)

    def end(self, *jobs, **request):
        """Asks for an end of these jobs; what comes of it is uncertain once the frame is out."""
        if self.left_bytes > 0:
            for job in jobs:
                del self.held[job.job_id]
        self.ask(**request)

    def run(self):
        with contextlib.suppress(EOFError):
            self.ask(hello=pb.Hello(major=1))
            answer = self.ask(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k")] * 3))
            self.stored += [result.job_id for result in answer.enqueue_ok.results]
            jobs = self.ask(claim=pb.Claim(queues=["q"], max_jobs=2, wait_ms=15000)).claim_ok.jobs
            self.held = {job.job_id: job.attempt for job in jobs}
            self.ask(heartbeat=pb.Heartbeat(items=[pb.HeartbeatItem(receipt=j.receipt) for j in jobs]))
            self.end(jobs[0], finish=pb.Finish(items=[pb.FinishItem(receipt=jobs[0].receipt, complete=pb.Complete())]))
            self.end(*jobs[1:], release=pb.Release(receipts=[j.receipt for j in jobs[1:]]))
            self.ask(cancel_request=pb.CancelRequest(request_id=3))
            self.ask(queue_counts=pb.QueueCounts(queue="q"))
            self.ask(goodbye=pb.Goodbye())
        with contextlib.suppress(BrokenPipeError):
            self.client.send_raw(self.nonsense)
        if self.nonsense:
            self.client.rest()
        self.client.close()


def finish_everything(proxy, queue="q"):
    """Completes what there is until nothing is left; returns the counts."""
    client = Client(proxy.socket)
    client.socket.settimeout(60)

    def is_over():
        jobs = client.claim(queue, jobs=512, wait_ms=200)
        if jobs:
            assert set(statuses(client.complete(*jobs))) == {"DONE"}
        counts = client.counts(queue)
        return counts.available + counts.running + counts.retryable == 0

    wait_for(is_over)
    counts = client.counts(queue)
    client.close()
    return counts


NONSENSE = b"\xff" * 20


@pytest.mark.parametrize("in_frame", [0, 1, 7])
def test_ptrap_01_a_client_vanishes_at_every_point(start, own_database, in_frame):
    """Before, in and after each request: no job is lost, none ends twice, and each that ran twice, or was in a client's
    hands when that vanished, has its rescue in its errors."""
    proxy = start(*DRAIN_OPTION, *SHORT_GRACE)
    stored, held = [], []
    conversations = [(1 << 30, frames, b"") for frames in range(10) for _ in range(3)]  # some find the answer on its way, others do not
    conversations += [(1 << 30, frames, NONSENSE) for frames in range(10)]
    conversations += [(cut_at_byte + in_frame, 99, b"") for cut_at_byte in range(1, 420, 20)]
    for cut in conversations:
        conversation = Conversation(proxy, *cut)
        conversation.run()
        stored += conversation.stored
        held += conversation.held.items()
    counts = finish_everything(proxy)
    assert counts.completed >= len(stored) > 0 and counts.failed == 0
    rows = job_rows(own_database, {*stored, *(job_id for job_id, _ in held)})
    assert set(rows) >= set(stored)
    for state, attempt, errors in rows.values():
        assert state == "completed"
        assert errors == [(number, "worker lost") for number in range(1, attempt)]
    assert len(held) > 10
    for job_id, attempt in held:
        assert (attempt, "worker lost") in rows[job_id][2]
    stop(proxy)


def test_ptrap_02_late_answers_never_reach_another_request(start):
    """The same request ids again on each new connection, while the old ones' answers are due."""
    proxy = start(*DRAIN_OPTION, *LONG_GRACE)
    producer = Client(proxy.socket)
    for number in range(1, 8):
        producer.enqueue(f"q{number}", *[b"{}"] * number)
    held, _ = hold(proxy, 1, "other")
    chance = random.Random(2)
    for _ in range(150):
        held = Client.resume(proxy.socket, held)
        assert held.limits.resumed
        asked = {}
        for request_id in range(10, 40):
            number = chance.randint(1, 7)
            if chance.random() < 0.3:
                held.send(request_id, claim=pb.Claim(queues=["none"], max_jobs=1, wait_ms=chance.randint(0, 30)))
                asked[request_id] = None
            else:
                held.send(request_id, queue_counts=pb.QueueCounts(queue=f"q{number}"))
                asked[request_id] = number
        for request_id in chance.sample(sorted(asked), chance.randint(0, 30)):
            answer = held.answer(request_id)
            if asked[request_id] is None:
                assert answer.HasField("claim_ok")
            else:
                assert answer.queue_counts_ok.available == asked[request_id]
        if chance.random() < 0.5:
            held.close()        # otherwise the next one takes over
    stop(proxy, held, producer)


def test_trap_19_a_job_that_kills_its_worker(start, own_database):
    """Bounded attempts, with back-off, then quarantine."""
    proxy = start(*DRAIN_OPTION, *SHORT_GRACE)
    client, (job,) = hold(proxy, 1)
    started = time.monotonic()
    client.close()
    for attempt in (2, 3):
        client = Client(proxy.socket)
        again, = client.claim("q", wait_ms=30000)
        assert (again.job_id, again.attempt) == (job.job_id, attempt)
        client.close()
    assert time.monotonic() - started > 2 + 4
    wait_for(lambda: job_row(own_database, job.job_id)[0] == "failed")
    _, _, errors = job_row(own_database, job.job_id)
    assert errors == [(1, "worker lost"), (2, "worker lost"), (3, "worker lost"), (3, "crashed")]
    stop(proxy)


class Worker:
    """A worker of the C client in a process that can be killed; starts: (job id, attempt)."""

    def __init__(self, build, proxy):
        self.process = subprocess.Popen(
            [build / "clients/c/awa-conformance", "work", f"unix:{proxy.socket}", "q", "8", "8"],
            stdout=subprocess.PIPE, text=True)
        self.starts = []
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            if line.startswith("start "):
                self.starts.append(tuple(map(int, line.split()[1:])))

    def let_end(self):
        """Jobs of kind "wait" end from now on. Only once it has started one job: before, the signal would end the worker."""
        self.process.send_signal(signal.SIGUSR1)

    def end(self, number):
        self.process.send_signal(number)
        self.process.wait(40)
        self.reader.join(40)
        self.process.stdout.close()
        return self.starts


def test_workers_killed_under_load(start, own_database, build):
    """Every acknowledged job reaches exactly one accepted outcome; whatever ran twice, or was running when its worker was killed, is
    explained by its rescue record."""
    proxy = start(*DRAIN_OPTION, *SHORT_GRACE)
    producer = Client(proxy.socket)
    stored, endless, starts, killed = [], set(), [], []
    steady = [Worker(build, proxy) for _ in range(2)]

    def enqueue(kind):
        results = producer.call(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind=kind)] * 10)).enqueue_ok.results
        stored.extend(result.job_id for result in results)
        return [result.job_id for result in results]

    for worker in steady:
        wait_for(lambda w=worker: enqueue("test") and w.starts)
        worker.let_end()
    for _ in range(4):
        victim = Worker(build, proxy)

        def is_at_work(worker=victim):
            enqueue("test")
            endless.update(enqueue("wait"))     # ends in a steady worker only
            return sum(job_id in endless for job_id, _ in worker.starts) > 2
        wait_for(is_at_work)
        victim_starts = victim.end(signal.SIGKILL)
        starts += victim_starts
        killed += [start for start in victim_starts if start[0] in endless]

    def is_over():
        counts = producer.counts("q")
        return counts.completed + counts.failed == len(stored)
    wait_for(is_over)
    for worker in steady:
        starts += worker.end(signal.SIGTERM)
        assert worker.process.returncode == 0
    rows = job_rows(own_database, stored)
    assert len(set(starts)) == len(starts), "an attempt was executed twice"
    assert {job_id for job_id, _ in starts} == set(stored)
    for job_id, attempt in starts:
        _, last, errors = rows[job_id]
        assert attempt == last or (attempt, "worker lost") in errors
    for job_id, attempt in killed:
        assert (attempt, "worker lost") in rows[job_id][2]
    for state, last, errors in rows.values():
        lost = [(number, "worker lost") for number in range(1, last)]
        assert (state, errors) in [("completed", lost), ("failed", [*lost, (last, "worker lost"), (last, "crashed")])]
        assert state == "completed" or last == 3, "only of what killed three workers"
    stop(proxy, producer)
