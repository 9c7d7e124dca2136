"""Producers whose connection or proxy goes away: what is sent again, and what is said otherwise."""
import contextlib
import itertools
import signal
import socket
import threading

import pytest

import awa_pb2 as pb
import drivers
import fake_proxy
from relaying import READ_BYTES, accept_pairs
from test_connection import code_of
from test_resume import store, wait_for_counts

numbers = itertools.count(1)
JOB = {"queue": "q", "kind": "k"}


@pytest.fixture
def queue(driver):
    return f"producer-{driver.name}-{next(numbers)}"


@pytest.fixture
def play(fake):
    """Plays one connection after another, in a thread; join() raises what went wrong in it."""
    class Played(threading.Thread):
        failure = None

        def __init__(self, scripts):
            super().__init__(daemon=True)
            self.scripts = scripts
            self.start()

        def run(self):
            try:
                for script in self.scripts:
                    session = fake.accept()
                    session.greet()
                    script(session)
                    session.close()
            except Exception as failure:
                self.failure = failure

        def join(self):
            super().join(drivers.DEADLINE_S)
            assert not self.is_alive()
            if self.failure is not None:
                raise self.failure

    return lambda *scripts: Played(scripts)


def store_as(session, *ids):
    frame = session.expect("enqueue")
    session.answer(frame, enqueue_ok=pb.EnqueueOk(
        results=[pb.EnqueueResult(job_id=job_id) for job_id in ids]))
    return frame.enqueue


def fail_as(session, code):
    """Each job with this error, as the proxy answers what it cannot store."""
    frame = session.expect("enqueue")
    error = pb.Error(code=code, retryable=True, message="for a test")
    session.answer(frame, enqueue_ok=pb.EnqueueOk(
        results=[pb.EnqueueResult(error=error) for _ in frame.enqueue.jobs]))
    return frame.enqueue


def refuse(session):
    """Whatever comes, until the client goes."""
    with contextlib.suppress(EOFError):
        while True:
            fail_as(session, pb.UNAVAILABLE)


@pytest.mark.parametrize("key", ["order-7", ""], ids=["key", "safe"])
def test_a_lost_answer_is_asked_for_again(driver, fake, play, key):
    seen = []
    played = play(lambda session: seen.append(session.expect("enqueue").enqueue),
                  lambda session: seen.append(session.expect("enqueue").enqueue),
                  lambda session: seen.append(store_as(session, 7, 8)))
    driver.connect(fake.address, safe=not key)
    assert driver.enqueue(JOB, JOB, key=key) == [(7, "OK", ""), (8, "OK", "")]
    played.join()
    first, *others = seen
    assert [first, first] == others
    assert first.idempotency_key == key if key else len(first.idempotency_key) >= 16


def test_each_safe_request_has_a_key_of_its_own(driver, fake, play):
    seen = []

    def script(session):
        seen.extend(store_as(session, job_id).idempotency_key for job_id in (1, 2))
    played = play(script)
    driver.connect(fake.address, safe=True)
    assert [driver.enqueue(JOB)[0][0] for _ in range(2)] == [1, 2]
    played.join()
    assert len(set(seen)) == 2


def test_without_a_key_nothing_is_sent_twice(driver, fake, play):
    seen = []
    played = play(lambda session: seen.append(session.expect("enqueue").enqueue),
                  lambda session: seen.append(store_as(session, 9)))
    driver.connect(fake.address)
    with pytest.raises(drivers.CallError) as lost:
        driver.enqueue(JOB)
    assert lost.value.code == "DEADLINE_EXCEEDED"
    assert "unknown whether the jobs are stored" in lost.value.message
    assert driver.enqueue({"queue": "q", "kind": "another"}) == [(9, "OK", "")]
    played.join()
    assert [enqueue.jobs[0].kind for enqueue in seen] == ["k", "another"]
    assert [enqueue.idempotency_key for enqueue in seen] == ["", ""]


@pytest.mark.parametrize("code", [pb.ABORTED, pb.UNAVAILABLE, pb.DEADLINE_EXCEEDED],
                         ids=["aborted", "unavailable", "unknown"])
def test_a_refusal_for_now_is_sent_again_under_its_key(driver, fake, play, code):
    def script(session):
        assert fail_as(session, code) == store_as(session, 3)
    played = play(script)
    driver.connect(fake.address)
    assert driver.enqueue(JOB, key="once") == [(3, "OK", "")]
    played.join()


def test_a_refusal_for_now_without_a_key_is_told(driver, fake, play):
    played = play(lambda session: fail_as(session, pb.UNAVAILABLE))
    driver.connect(fake.address)
    assert driver.enqueue(JOB) == [(0, "UNAVAILABLE", "for a test")]
    played.join()


def test_what_was_unknown_once_stays_so(driver, fake, play):
    """UNAVAILABLE says that the second attempt was not carried out, not that the first was not."""
    play(lambda session: session.expect("enqueue"), refuse)
    driver.connect(fake.address, request_timeout_ms=1000)
    assert code_of(driver.enqueue, JOB, key="once") == "DEADLINE_EXCEEDED"


def test_unavailable_to_the_end_is_surely_not_done(driver, fake, play):
    """In the end nobody listens: an attempt that is under way when the time is over would be in doubt."""
    unavailable = pb.Error(code=pb.UNAVAILABLE, retryable=True, message="for a test")

    def script(session):
        fail_as(session, pb.UNAVAILABLE)
        frame = session.expect("enqueue")
        fake.close()
        refusal = pb.EnqueueResult(error=unavailable)
        session.send(fake_proxy.encode(frame, enqueue_ok=pb.EnqueueOk(results=[refusal]))   # in one:
                     + fake_proxy.encode(pb.ClientFrame(), error=unavailable))     # no third one comes in between
    played = play(script)
    driver.connect(fake.address, request_timeout_ms=2000)
    assert code_of(driver.enqueue, JOB, key="once") == "UNAVAILABLE"
    played.join()


def test_a_refusal_for_good_is_told_at_once(driver, fake, play):
    def script(session):
        frame = session.expect("enqueue")
        session.answer(frame, error=pb.Error(code=pb.INVALID_ARGUMENT, message="a long key"))
    played = play(script)
    driver.connect(fake.address)
    assert code_of(driver.enqueue, JOB, key="once") == "INVALID_ARGUMENT"
    played.join()


def test_a_connection_that_ended_between_two_calls(driver, fake, play):
    """Nothing is sent into it, so a request without a key survives too."""
    def end(session):
        session.notify(pb.DRAINING)
        session.answer(pb.ClientFrame(), error=pb.Error(code=pb.UNAVAILABLE, message="over"))
    ended = threading.Event()

    def first(session):
        end(session)
        session.connection.shutdown(socket.SHUT_RDWR)
        ended.set()
    played = play(first, lambda session: store_as(session, 5), lambda session: None)
    driver.connect(fake.address)
    assert ended.wait(drivers.DEADLINE_S)
    assert driver.enqueue(JOB) == [(5, "OK", "")]
    driver.connect(fake.address)
    played.join()
    assert driver.goodbye() == 0        # lost, but there was nothing to hand back


def test_an_attempt_may_be_held(driver, fake, play):
    """Who has claimed resumes the session by hand: only he knows what he still works on."""
    lost = threading.Event()

    def first(session):
        session.give_jobs(session.expect("claim"), 1)
        session.connection.shutdown(socket.SHUT_RDWR)
        lost.set()
    play(first, lambda session: store_as(session, 2))
    driver.connect(fake.address)
    assert len(driver.claim("q")) == 1
    assert lost.wait(drivers.DEADLINE_S)
    assert code_of(driver.enqueue, JOB) in ("DEADLINE_EXCEEDED", "UNAVAILABLE")
    assert code_of(driver.enqueue, JOB) == "UNAVAILABLE"


def test_more_than_a_request_holds(driver, proxy, queue):
    driver.connect(proxy)
    large = {"queue": queue, "kind": "k", "args": '"' + "x" * 1_000_000 + '"'}
    with pytest.raises(drivers.CallError) as refused:
        driver.enqueue(*[large] * 5, key="large")
    assert refused.value.code == "INVALID_ARGUMENT"
    assert "5 jobs under one key" in refused.value.message
    assert driver.counts(queue)["available"] == 0


def test_a_key_over_connections(driver, proxy, queue):
    job = {"queue": queue, "kind": "k"}
    key = f"{queue}-key"
    driver.connect(proxy)
    first = driver.enqueue(job, job, key=key)
    driver.connect(proxy)
    assert driver.enqueue(job, job, key=key) == first
    assert driver.enqueue(job, job, key=f"{queue}-other") != first
    assert driver.counts(queue)["available"] == 4


def test_a_proxy_that_is_replaced(driver, proxy, serve, queue):
    """The first answer is dropped, the proxy killed; its successor tells what was stored."""
    served = serve()
    target = served.address.removeprefix("unix:")
    path = f"{target}.between"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    stored = threading.Event()

    def between():
        pairs = accept_pairs(listener, target)
        client, server = next(pairs)
        client.sendall((server.sendall(client.recv(READ_BYTES)), server.recv(READ_BYTES))[1])
        server.sendall(client.recv(READ_BYTES))     # the Enqueue
        server.recv(READ_BYTES)                     # its answer, which nobody gets
        served.end(signal.SIGKILL)
        serve()
        client.close()
        server.close()
        stored.set()
        client, server = next(pairs)
        for _ in range(2):                          # Hello and Enqueue
            server.sendall(client.recv(READ_BYTES))
            client.sendall(server.recv(READ_BYTES))
        client.close()
        server.close()

    thread = threading.Thread(target=between, daemon=True)
    thread.start()
    key = f"{queue}-key"
    driver.connect(f"unix:{path}")
    results = driver.enqueue(*[{"queue": queue, "kind": "k"}] * 3, key=key)
    assert stored.is_set() and all(job_id > 0 for job_id, _, _ in results)
    thread.join(drivers.DEADLINE_S)
    listener.close()
    driver.connect(proxy)       # another proxy
    assert driver.enqueue(*[{"queue": queue, "kind": "k"}] * 3, key=key) == results
    assert driver.counts(queue)["available"] == 3


def test_a_plain_producer_outlives_its_proxy(driver, proxy, serve, queue):
    served = serve()
    driver.connect(served.address)
    store(driver, queue, 1)
    assert served.end() == 0
    successor = threading.Thread(target=serve)
    successor.start()           # the call waits for it
    store(driver, queue, 1)
    successor.join()
    wait_for_counts(driver, queue, {"available": 2})
