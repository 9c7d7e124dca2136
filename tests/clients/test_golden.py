"""Golden frames: what a client sends, byte for byte, and what it reads from given bytes.

The vectors were made by protoc, not by a client (golden/make).
"""
import json
import pathlib
import subprocess
import sys
import threading

import pytest

import drivers

GOLDEN = pathlib.Path(__file__).with_name("golden")
FRAMES = {frame["name"]: (bytes.fromhex(frame["request"]), bytes.fromhex(frame["answer"]))
          for frame in json.loads((GOLDEN / "frames.json").read_text(encoding="utf-8"))}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Conversation:
    """Plays the proxy's part in a thread: the expected bytes, then the answer's bytes."""

    def __init__(self, fake, driver):
        self.names = [f"hello_{driver.name}",
                      *(name for name in FRAMES if not name.startswith("hello_"))]
        self.received = {}
        self.fake = fake
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        session = self.fake.accept()
        for name in self.names:
            request, answer = FRAMES[name]
            self.received[name] = session.read(len(request))
            session.send(answer)


def ask_everything(driver, address):
    driver.connect(address, "golden")
    yield driver.enqueue(
        {"queue": "mail", "kind": "email.send"},
        {"queue": "mail/eu:1", "kind": "invoice.render",
         "args": '{"n":9007199254740991,"who":"Zoë"}', "priority": 4, "max_attempts": 1000,
         "run_at_us": 1893456000000001, "ordering_key": "customer 7",
         "metadata": '{"tenant":"a"}', "traceparent": TRACE})
    yield driver.claim("mail", "bulk", max_jobs=300, wait_ms=1500)
    yield driver.finish((b"\x01\x00\xff\x80", "complete", 0, ""),
                        (b"\x02\x03", "retry", 1500, "smtp said 421"), (b"\x04", "retry", 0, ""),
                        (b"\x05", "snooze", 86400000, ""), (b"\x06", "fail", 0, "Zoë is gone"),
                        (b"\x07", "cancel", 0, "not wanted"))
    yield driver.release(b"\x01\x00\xff\x80", b"\x02\x03")
    yield driver.counts("mail")
    yield driver.ping()
    yield driver.heartbeat(b"\x01\x00\xff\x80", b"\x02\x03")
    with pytest.raises(drivers.CallError) as refused:
        driver.counts("mail")
    error = refused.value
    yield error.code, error.retryable, error.sqlstate, error.message
    yield driver.goodbye()


EXPECTED = [
    [(9007199254740991, "OK", ""), (0, "INVALID_ARGUMENT", "args: not JSON")],
    [drivers.Claimed(1, b"\x01\x00\xff\x80", "mail", "email.send", "{}", 2, 1, 25,
                     1700000000000001, "", ""),
     drivers.Claimed(9007199254740991, b"\x02\x03", "bulk", "k", '{"who":"Zoë"}', 4, 300, 1000,
                     1893456000000001, '{"tenant":"a"}', TRACE)],
    [("DONE", "OK", ""), ("ALREADY_DONE", "OK", ""), ("STALE", "OK", ""), ("NOT_FOUND", "OK", ""),
     ("INVALID", "INVALID_ARGUMENT", "malformed receipt"), ("ABORTED", "ABORTED", "deadlock")],
    [("DONE", "OK", ""), ("STALE", "OK", "")],
    dict(zip(drivers.COUNTS, (1, 2, 3, 4, 5, 6000000000, 7, 8))),
    None,
    [True, False],
    ("UNAVAILABLE", True, "53300", "no connection to Postgres"),
    3,
]


def test_conversation(driver, fake):
    conversation = Conversation(fake, driver)
    understood = list(ask_everything(driver, fake.address))
    conversation.thread.join(drivers.DEADLINE_S)
    sent = {name: received.hex() for name, received in conversation.received.items()}
    assert sent == {name: FRAMES[name][0].hex() for name in conversation.names}
    assert understood == EXPECTED


def test_vectors_match_the_protocol():
    """frames.json is what protoc makes of frames.txt with today's awa.proto."""
    stored = json.loads((GOLDEN / "frames.json").read_text(encoding="utf-8"))
    code = "import runpy, json; print(json.dumps(list(runpy.run_path('make')['exchanges']())))"
    made = subprocess.run([sys.executable, "-c", code], cwd=GOLDEN, check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    assert json.loads(made) == stored
