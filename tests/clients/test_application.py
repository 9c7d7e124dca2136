"""What an application may do around its client: fork, take signals, hold many files, fail in a handler."""
import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

import awa
import awa_pb2 as pb
import drivers
from awa.worker import run_handler
from test_connection import code_of, play


@pytest.fixture
def greeted():
    """The sessions that hello has greeted."""
    return []


@pytest.fixture
def hello(greeted):
    """Answers one connection's Hello and Pings until its end."""
    def script(session):
        session.greet()
        greeted.append(session)
        try:
            while (frame := session.receive()).HasField("ping"):
                session.answer(frame, pong=pb.Pong())
            session.answer(frame, goodbye_ok=pb.GoodbyeOk())
        except EOFError:
            pass
        session.close()
    return script


def test_a_child_has_a_connection_of_its_own(driver, fake, hello, greeted):
    """One in common: each could take the other's answers for its own."""
    def script(session):
        play(fake, hello)
        hello(session)
    play(fake, script)
    driver.connect(fake.address)
    driver.ping()
    driver.ping_in_child()
    driver.ping()
    assert len(greeted) == 2


def test_a_child_does_not_say_goodbye_for_its_parent(fake, hello):
    play(fake, hello)
    with awa.Client(fake.address) as client:
        client.ping()
        assert drivers.in_child(client.goodbye) == 0
        client.ping()
        client.close()


def test_a_fork_during_a_call_of_another_thread(fake, hello):
    """The child has no thread that would ever give back the turn."""
    asked, over = threading.Event(), threading.Event()

    def script(session):
        session.greet()
        ping = session.expect("ping")
        play(fake, hello)
        asked.set()
        over.wait(drivers.DEADLINE_S)
        session.answer(ping, pong=pb.Pong())
    play(fake, script)
    client = awa.Client(fake.address)
    thread = threading.Thread(target=client.ping)
    thread.start()
    assert asked.wait(drivers.DEADLINE_S)

    def ping():
        signal.alarm(drivers.DEADLINE_S)
        client.ping()
    assert drivers.in_child(ping) == 0
    over.set()
    thread.join(drivers.DEADLINE_S)
    client.close()


def test_a_child_does_not_hide_the_end_of_its_parent(fake):
    """Not from the proxy: the child has no copy of the connection."""
    ends = []

    def script(session):
        session.greet()
        with pytest.raises(EOFError):
            session.receive()
        ends.append(session)
    played = play(fake, script)
    client = awa.Client(fake.address)
    ready, stay = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"r")
        os.read(stay[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    client.close()
    played.join(drivers.DEADLINE_S)
    is_seen = bool(ends)
    os.write(stay[1], b"s")
    os.waitpid(child, 0)
    for fd in (*ready, *stay):
        os.close(fd)
    assert is_seen


class Interruption(Exception):
    pass


def test_an_interrupted_call_closes_the_connection(fake, hello):
    """Half a request may have been sent, half an answer read: what follows could be taken for them."""
    raised, over = threading.Event(), threading.Event()

    def script(session):
        session.greet()
        session.expect("ping")
        play(fake, hello)
        while not raised.wait(0.01):    # one that comes just before the wait does not end it
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)
        over.wait(drivers.DEADLINE_S)
        session.close()

    def interrupt(*_):
        if not raised.is_set():
            raised.set()
            raise Interruption
    before = signal.signal(signal.SIGUSR2, interrupt)
    try:
        play(fake, script)
        client = awa.Client(fake.address)
        with pytest.raises(Interruption):
            client.ping()
        client.ping()       # over another one
        client.close()
    finally:
        signal.signal(signal.SIGUSR2, before)
        over.set()


def test_a_lost_connection_raises_no_sigpipe(fake, python_env):
    program = """
import signal, sys, awa
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
client = awa.Client(sys.argv[1])
client._may_hold = True     # it does not look first whether the connection has ended
sys.stdin.readline()
for _ in range(2):
    try:
        client.ping()
    except awa.Error as error:
        print(error.code.name)
"""
    run = subprocess.Popen([sys.executable, "-c", program, fake.address], env=python_env, text=True,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    session = fake.accept()
    session.greet()
    session.close()
    out, _ = run.communicate("go\n", drivers.DEADLINE_S)
    assert run.returncode == 0
    assert out.split() == ["DEADLINE_EXCEEDED", "UNAVAILABLE"]


@pytest.fixture
def many_files():
    """All descriptors up to 1023 are taken."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    held = [os.open("/dev/null", os.O_RDONLY)]
    while held[-1] < 1024:
        held.append(os.dup(held[0]))
    yield
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_client_with_more_than_1024_files(fake, hello, many_files):
    play(fake, hello)
    client = awa.Client(fake.address)
    client.ping()
    client.close()


def test_a_worker_with_more_than_1024_files(fake, many_files):
    worker = drivers.PythonWorker(fake.address, "q", 1, 0)
    session = fake.accept()
    session.greet()
    session.give_jobs(session.expect("claim"), 1)
    assert worker.started() == (1, 1)
    worker.stop()
    session.close()     # what it has to tell it cannot
    with pytest.raises(drivers.CallError):
        fake.close()
        worker.join()


def count_files():
    return len(os.listdir("/proc/self/fd"))


def test_workers_that_cannot_connect_leave_no_files_open(tmp_path):
    def fail():
        with pytest.raises(awa.Error):
            awa.Worker(f"unix:{tmp_path}/nobody", ["q"], print).run()
    fail()
    before = count_files()
    for _ in range(10):
        fail()
    assert count_files() <= before


class Silent(Exception):
    def __str__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("end,error", [
    (lambda _: True, "TypeError: the handler returned bool, not None or an Outcome"),
    (lambda _: awa.Complete, "TypeError: the handler returned type, not None or an Outcome"),
    (lambda _: sys.exit(3), "SystemExit: 3"),
    (lambda _: (_ for _ in ()).throw(Silent()), "Silent"),
    (lambda _: (_ for _ in ()).throw(ValueError("a\0b\udcff")), "ValueError: a\\0b\\udcff"),
], ids=["returns-true", "returns-a-class", "exits", "no-text", "odd-text"])
def test_python_whatever_a_handler_does_is_an_outcome(end, error):
    outcome = run_handler(end, drivers.fake_job(b"r"))
    assert isinstance(outcome, awa.Retry) and outcome.error == error


@pytest.mark.parametrize("address", ["tcp:a..b:1", "tcp:" + "a" * 70 + ":1"])
def test_python_addresses_that_are_none(address):
    assert code_of(drivers.PythonDriver(None).connect, address) == "INVALID_ARGUMENT"
