"""libawa when memory runs out: each allocation of a call fails once. The code is true, and what comes next is not
misled by it."""
import contextlib
import os
import threading

import pytest

import awa_pb2 as pb
import drivers
from nth_failure import ALLOCATION, NthFailure

LONG = 200_000          # an answer that no first read takes: it needs room
ALLOCATIONS_MAX = 20    # more than a call makes


@pytest.fixture
def nth(build, tmp_path):
    return NthFailure(build, tmp_path)


@pytest.fixture
def driver(build, nth):
    made = drivers.CDriver(build, os.environ | nth.env)
    yield made
    made.end()


@pytest.fixture
def requests(fake):
    """Those that came, each answered at length, over any number of connections."""
    received = []

    def answer(session):
        frame = session.receive()
        received.append(frame.WhichOneof("request"))
        if received[-1] == "enqueue":
            error = pb.Error(code=pb.INVALID_ARGUMENT, message="x" * LONG)
            session.answer(frame, enqueue_ok=pb.EnqueueOk(results=[pb.EnqueueResult(error=error)]))
        elif received[-1] == "claim":
            session.answer(frame, claim_ok=pb.ClaimOk(jobs=[pb.Job(job_id=1, receipt=b"1", args=b"x" * LONG)]))
        else:
            session.answer(frame, pong=pb.Pong())

    def serve():
        with contextlib.suppress(OSError):
            while True:
                session = fake.accept()
                session.greet()
                with contextlib.suppress(EOFError, ConnectionError):
                    while True:
                        answer(session)

    threading.Thread(target=serve, daemon=True).start()
    return received


def code_of(call):
    try:
        call()
    except drivers.CallError as error:
        return error.code
    return "OK"


def failures(driver, nth, requests, address, call):
    """For each allocation of the call: its code when that one fails, whether it was sent, and the code of a Ping
    after it. The call is the first of its connection."""
    for number in range(1, ALLOCATIONS_MAX):
        driver.connect(address)
        requests.clear()
        struck = nth.disarm()
        nth.arm(ALLOCATION, number)
        code = code_of(call)
        if nth.disarm() == struck:
            assert code == "OK"
            return
        sent = requests != []
        yield code, sent, code_of(driver.ping)
    pytest.fail(f"it makes more than {ALLOCATIONS_MAX} allocations")


def test_what_was_sent_is_not_known(driver, nth, requests, fake):
    """Its answer did not fit. RESOURCE_EXHAUSTED would say that it was surely not done."""
    found = failures(driver, nth, requests, fake.address, lambda: driver.enqueue({"queue": "q", "kind": "k"}))
    assert set(found) == {("RESOURCE_EXHAUSTED", False, "OK"), ("DEADLINE_EXCEEDED", True, "OK")}


def test_jobs_that_can_not_be_kept_are_given_up(driver, nth, requests, fake):
    """With their connection: its user does not know of them, and while it lived they would be nobody else's."""
    for code, sent, after in failures(driver, nth, requests, fake.address, lambda: driver.claim("q")):
        assert sent == (after == "UNAVAILABLE"), (code, sent, after)
        assert code in ("RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")
