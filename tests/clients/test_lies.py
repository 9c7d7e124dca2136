"""A proxy that does not keep to the protocol: a call ends with a clear error, a worker with one too."""
import socket
import threading
import time

import pytest

import awa
import awa_pb2 as pb
import drivers
import fake_proxy
from awa import connection
from test_connection import code_of, play

JOB = {"queue": "q", "kind": "k"}
DONE = pb.FinishResult(status=pb.DONE)


@pytest.mark.parametrize("limit", ["max_frame_bytes", "max_jobs_per_enqueue", "max_claim_jobs",
                                   "max_items_per_finish", "idle_timeout_ms"])
def test_a_limit_of_nothing(driver, fake, limit):
    play(fake, lambda session: session.greet(**{limit: 0}))
    assert code_of(driver.connect, fake.address) == "INTERNAL"


@pytest.mark.parametrize("answer", [
    {"enqueue_ok": pb.EnqueueOk()},
    {"enqueue_ok": pb.EnqueueOk(results=[pb.EnqueueResult(job_id=1)] * 2)},
], ids=["fewer", "more"])
def test_another_number_of_jobs_than_was_sent(driver, fake, answer):
    def script(session):
        session.greet()
        session.answer(session.expect("enqueue"), **answer)
    play(fake, script)
    driver.connect(fake.address)
    assert code_of(driver.enqueue, JOB) == "INTERNAL"


@pytest.mark.parametrize("result", [pb.EnqueueResult(), pb.EnqueueResult(job_id=-1)], ids=["nothing", "negative"])
def test_a_job_without_an_id_is_not_stored(driver, fake, result):
    def script(session):
        session.greet()
        session.answer(session.expect("enqueue"), enqueue_ok=pb.EnqueueOk(results=[result]))
    play(fake, script)
    driver.connect(fake.address)
    [(job_id, code, _)] = driver.enqueue(JOB)
    assert job_id == 0 and code != "OK"


@pytest.mark.parametrize("ask,answer", [
    ("finish", {"finish_ok": pb.FinishOk()}), ("finish", {"finish_ok": pb.FinishOk(results=[DONE] * 2)}),
    ("release", {"release_ok": pb.FinishOk()}), ("heartbeat", {"heartbeat_ok": pb.HeartbeatOk()})])
def test_another_number_of_items_than_was_sent(driver, fake, ask, answer):
    def script(session):
        session.greet()
        session.answer(session.expect(ask), **answer)
    play(fake, script)
    driver.connect(fake.address)
    item = (b"r", "complete", 0, "") if ask == "finish" else b"r"
    assert code_of(getattr(driver, ask), item) == "INTERNAL"


def test_notices_without_end(driver, fake):
    """They keep no call from its deadline."""
    over = threading.Event()

    def script(session):
        session.greet()
        session.expect("ping")
        notice = fake_proxy.encode(pb.ClientFrame(), notice=pb.Notice(kind=pb.DRAINING))
        flood = notice * 100_000    # the next is there before these are read
        while not over.is_set():
            try:
                session.send(flood)
            except OSError:     # the client has closed
                break
        session.close()
    played = play(fake, script)
    driver.connect(fake.address, request_timeout_ms=300)
    try:
        assert code_of(driver.ping) == "DEADLINE_EXCEEDED"
    finally:
        over.set()
        played.join(drivers.DEADLINE_S)


def give_more_than_asked_for(session):
    claim = session.expect("claim")
    session.give_jobs(claim, *range(1, claim.claim.max_jobs + 2))


def give_without_a_claim(session):
    claim = session.expect("claim")
    claim.request_id += 1000
    session.give_jobs(claim, 1)


def give_twice(session):
    claim = session.expect("claim")
    session.give_jobs(claim)
    session.give_jobs(claim, 1)


def give_unasked(session):
    session.expect("claim")
    session.give_jobs(pb.ClientFrame(), 1)


def settle_too_little(session):
    session.give_jobs(session.expect("claim"), 1)
    session.settle(expect_finish(session))


def settle_too_much(session):
    session.give_jobs(session.expect("claim"), 1)
    session.settle(expect_finish(session), pb.DONE, pb.DONE)


def settle_twice(session):
    session.give_jobs(session.expect("claim"), 1)
    finish = expect_finish(session)
    session.settle(finish, pb.DONE)
    session.settle(finish, pb.DONE)


def expect_finish(session):
    while (frame := session.receive()).WhichOneof("request") == "claim":
        pass
    return frame


@pytest.mark.parametrize("lie", [give_more_than_asked_for, give_without_a_claim, give_twice, give_unasked,
                                 settle_too_little, settle_too_much, settle_twice])
def test_a_worker_is_not_lied_to(fake, start_worker, lie):
    worker = start_worker(fake.address, "q")
    session = fake.accept()
    session.greet()
    lie(session)
    with pytest.raises(drivers.CallError) as ended:
        worker.join()
    assert ended.value.code == "INTERNAL"


@pytest.mark.parametrize("length", [0, 65])
def test_a_receipt_that_is_none(fake, build, length):
    """libawa's receipts have room for 64 bytes."""
    driver = drivers.CDriver(build)
    try:
        def script(session):
            session.greet()
            job = pb.Job(job_id=1, receipt=b"r" * length, queue="q", kind="k")
            session.answer(session.expect("claim"), claim_ok=pb.ClaimOk(jobs=[job]))
        play(fake, script)
        driver.connect(fake.address)
        assert code_of(driver.claim, "q") == "INTERNAL"
    finally:
        driver.end()


def test_python_an_unknown_status_is_an_error(fake):
    def script(session):
        session.greet()
        session.answer(session.expect("finish"), finish_ok=pb.FinishOk(results=[pb.FinishResult(status=99)]))
    play(fake, script)
    with pytest.raises(awa.Error) as raised, awa.Client(fake.address) as client:
        client.finish([(drivers.fake_job(b"r"), awa.Complete())])
    assert raised.value.code == awa.Code.INTERNAL


def test_python_addresses_that_say_nothing_share_the_time(monkeypatch):
    """A name with many addresses costs no more than the deadline."""
    with socket.socket() as silent, socket.socket() as first:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        address = silent.getsockname()
        first.connect(address)      # now its backlog is full, and what comes is dropped
        with socket.socket() as second:
            second.setblocking(False)
            second.connect_ex(address)
            monkeypatch.setattr(connection.socket, "getaddrinfo",
                                lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)] * 60)
            started = time.monotonic()
            with pytest.raises(awa.Error) as raised:
                connection.open_socket("tcp:many.example:1", 0.5)
            assert raised.value.code == awa.Code.UNAVAILABLE
            assert time.monotonic() - started < 15    # one after another they would take 30 s
