"""Connections that go wrong: the code tells what is known about the request."""
import concurrent.futures
import contextlib
import inspect
import pathlib
import re
import socket
import threading
import time

import pytest

import awa
import awa_pb2 as pb
import drivers
import fake_proxy
from awa import types

ROOT = pathlib.Path(__file__).resolve().parents[2]


def play(fake, script):
    """Runs script(session), the proxy's part, in a thread."""
    thread = threading.Thread(target=lambda: script(fake.accept()), daemon=True)
    thread.start()
    return thread


def code_of(call, *arguments, **options):
    with pytest.raises(drivers.CallError) as raised:
        call(*arguments, **options)
    return raised.value.code


def test_nobody_listens(driver, tmp_path):
    assert code_of(driver.connect, f"unix:{tmp_path}/nobody") == "UNAVAILABLE"


def fill_backlog(fake):
    """Connections that wait to be accepted, until there is no room for another one."""
    fake.listener.listen(0)
    waiting = []
    with contextlib.suppress(BlockingIOError):
        while True:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            waiting[-1].connect(fake.address.removeprefix("unix:"))
    waiting.pop().close()
    return waiting


def test_a_full_backlog_is_waited_for(driver, fake):
    waiting = fill_backlog(fake)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        connecting = pool.submit(driver.connect, fake.address)
        with pytest.raises(concurrent.futures.TimeoutError):
            connecting.result(0.3)
        for one in waiting:
            fake.accept().close()
            one.close()
        fake.accept().greet()
        assert connecting.result(drivers.DEADLINE_S)[0] == fake_proxy.LIMITS["session_id"]


@pytest.mark.parametrize("address", ["/run/awa.sock", "tcp:", "tcp:localhost", "tcp:::1:5", "tcp:[::1]", "tcp:[::1:5",
                                     "tcp:127.0.0.1:x", "udp:127.0.0.1:5", "", "tcp:127.0.0.1:0",
                                     "tcp:127.0.0.1:99999", "tcp:127.0.0.1:" + "9" * 30])
def test_addresses_that_are_none(driver, address):
    assert code_of(driver.connect, address) == "INVALID_ARGUMENT"


@pytest.mark.parametrize("address", ["tcp:localhost:1", "tcp:[::1]:1", "unix:" + "x" * 200])
def test_addresses_that_nobody_has(driver, address):
    assert code_of(driver.connect, address) in ("INVALID_ARGUMENT", "UNAVAILABLE")


def test_tcp_by_name(driver, addresses):
    port = next(a for a in addresses if a.startswith("tcp:")).rpartition(":")[2]
    driver.connect(f"tcp:localhost:{port}")
    driver.ping()


def test_hello_refused(driver, fake):
    def script(session):
        hello = session.expect("hello")
        session.answer(hello, error=pb.Error(code=pb.UNIMPLEMENTED, message="major 1 only"))
        session.close()
    play(fake, script)
    assert code_of(driver.connect, fake.address) == "UNIMPLEMENTED"


def test_connection_lost_after_the_request(driver, fake):
    def script(session):
        session.greet()
        session.expect("ping")
        fake.close()
        session.close()
    play(fake, script)
    driver.connect(fake.address, request_timeout_ms=500)
    assert code_of(driver.ping) == "DEADLINE_EXCEEDED"    # not known
    assert code_of(driver.ping) == "UNAVAILABLE"          # surely not done


def test_a_request_may_be_as_long_as_the_limit(driver, fake):
    limit = 300
    sizes = []

    def script(session):
        session.greet(max_frame_bytes=limit)
        with contextlib.suppress(EOFError):
            while True:
                frame = session.expect("enqueue")
                sizes.append(frame.ByteSize())
                session.answer(frame, enqueue_ok=pb.EnqueueOk(results=[pb.EnqueueResult(job_id=1)]))
    play(fake, script)
    driver.connect(fake.address)
    with pytest.raises(drivers.CallError) as raised:
        for length in range(limit):
            driver.enqueue({"queue": "q", "kind": "k", "args": "x" * length})
    assert (raised.value.code, max(sizes)) == ("INVALID_ARGUMENT", limit)


def test_no_answer_in_time(driver, fake):
    over = threading.Event()

    def script(session):
        session.greet()
        session.expect("ping")
        fake.close()
        over.wait(drivers.DEADLINE_S)
        session.close()
    play(fake, script)
    driver.connect(fake.address, request_timeout_ms=200)
    assert code_of(driver.ping) == "DEADLINE_EXCEEDED"
    assert code_of(driver.ping) == "UNAVAILABLE"
    over.set()


def test_python_the_timeout_is_for_connecting_too(fake):
    """C has one of its own for that."""
    began = time.monotonic()
    with pytest.raises(awa.Error) as raised:        # nobody accepts, nobody answers Hello
        awa.Client(fake.address, timeout=200 * types.MILLISECOND)
    assert raised.value.code == awa.Code.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("nonsense", [
    b"\xff\xff\xff\xff\xff\xff",        # a prefix that never ends
    b"\x80\x80\x80\x02",                # 4 MiB and more
    b"\x02\x12\x7f",                    # a field that is longer than its frame
], ids=["prefix", "length", "message"])
def test_nonsense(driver, fake, nonsense):
    over = threading.Event()

    def script(session):
        session.greet(max_frame_bytes=(1 << 22) - 1)
        session.expect("ping")
        session.send(nonsense)
        over.wait(drivers.DEADLINE_S)
        session.close()
    play(fake, script)
    driver.connect(fake.address)
    with pytest.raises(drivers.CallError) as lost:
        driver.ping()
    over.set()
    assert lost.value.code == "DEADLINE_EXCEEDED"
    assert "the proxy sent a" in lost.value.message     # not: it sent too little in time


def test_notices_are_no_answers(driver, fake):
    def script(session):
        session.greet()
        ping = session.expect("ping")
        session.notify(pb.ATTEMPT_LOST, b"1")
        session.notify(pb.DRAINING)
        session.answer(ping, pong=pb.Pong())
    play(fake, script)
    driver.connect(fake.address)
    driver.ping()


def test_resume_by_hand(driver, fake):
    hellos = []

    def script(session):
        hellos.append(session.greet(resumed=True, session_id=b"r" * 16))
    played = play(fake, script)
    assert driver.connect(fake.address, resume=b"r" * 16) == (b"r" * 16, True)
    played.join(drivers.DEADLINE_S)
    assert hellos[0].session_id == b"r" * 16
    assert not hellos[0].HasField("held")       # it does not say what it holds


def test_answer_to_another_request(driver, fake):
    """It ends the connection: the next request goes over a new one."""
    def script(session):
        session.greet()
        ping = session.expect("ping")
        ping.request_id += 1
        session.answer(ping, pong=pb.Pong())
        session = fake.accept()
        session.greet()
        session.answer(session.expect("ping"), pong=pb.Pong())
    play(fake, script)
    driver.connect(fake.address)
    assert code_of(driver.ping) == "INTERNAL"
    driver.ping()


def test_answer_of_another_kind(driver, fake):
    def script(session):
        session.greet()
        session.answer(session.expect("ping"), claim_ok=pb.ClaimOk())
    play(fake, script)
    driver.connect(fake.address)
    assert code_of(driver.ping) == "INTERNAL"


def test_an_error_of_unknown_code_is_an_error(driver, fake):
    def script(session):
        session.greet()
        session.answer(session.expect("ping"), error=pb.Error(code=99, message="new"))
        session.answer(session.expect("ping"), error=pb.Error(code=0, message="odd"))
    play(fake, script)
    driver.connect(fake.address)
    assert code_of(driver.ping) == "UNKNOWN"
    assert code_of(driver.ping) == "UNKNOWN"


def test_enqueue_splits_by_the_limits(driver, fake):
    seen = []

    def script(session):
        session.greet(max_jobs_per_enqueue=3, max_frame_bytes=16384)
        for _ in range(3):
            frame = session.expect("enqueue")
            seen.append(len(frame.enqueue.jobs))
            session.answer(frame, enqueue_ok=pb.EnqueueOk(results=[
                pb.EnqueueResult(job_id=int(job.kind)) for job in frame.enqueue.jobs]))
    play(fake, script)
    driver.connect(fake.address)
    large = '"' + "x" * 9000 + '"'
    jobs = [{"queue": "q", "kind": str(number)} for number in range(1, 7)]
    jobs[4]["args"] = jobs[5]["args"] = large
    assert driver.enqueue(*jobs) == [(number, "OK", "") for number in range(1, 7)]
    assert seen == [3, 2, 1]        # by number, then by bytes


def milliseconds(path, name):
    """The constant of this name in a C source: a number, or a product of two."""
    factors = re.search(rf"\b{name} =\s+(\d+)(?: \* (\d+))?[,;]", (ROOT / path).read_text(encoding="utf-8"))
    return int(factors[1]) * int(factors[2] or 1)


def test_clients_wait_for_the_proxy_to_give_up():
    """While Postgres is away it says after REQUEST_MS that surely nothing was done, or after the call
    that is under way then. A client that gives up earlier would call that unknown."""
    latest_ms = sum(milliseconds(path, name) for path, name in (
        ("src/base/limits.h", "REQUEST_MS"), ("src/base/limits.h", "CALL_MS"), ("src/pg/pool.c", "WAIT_MS")))
    python_ms = inspect.signature(awa.Client).parameters["timeout"].default // types.MILLISECOND
    c_ms = milliseconds("clients/c/src/connection.c", "DEFAULT_REQUEST_TIMEOUT_MS")
    assert f"0: {c_ms:,}" in (ROOT / "clients/c/include/awa.h").read_text(encoding="utf-8")
    assert min(python_ms, c_ms) > latest_ms
