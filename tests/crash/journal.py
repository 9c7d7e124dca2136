"""The durable journal of one process: what it was told and what it said, a line each.

A line goes out in one write() to a file that is open for appending, so what happened before a kill -9 of
the process is in it. Fields are separated by blanks and hold none: a letter, the time (of
time.monotonic(), which all processes of a machine share), then

  Q label…                          a producer sends these jobs
  A label job                       it was told that this one is stored
  U label…                          it will never know whether these are
  B receipt attempt label           a worker begins to execute an attempt
  E receipt outcome                 it has decided how the attempt ends
  F receipt outcome status          it was told so: the answer to its Finish
"""
import dataclasses
import os
import struct
import time

OUTCOMES = {"complete": 1, "retry": 2, "snooze": 3, "fail": 4, "cancel": 5}
RELEASED, WORKER_LOST, PROXY_LOST = 6, 7, 8


class Journal:
    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, letter, *fields):
        line = " ".join((letter, f"{time.monotonic():.6f}", *map(str, fields))) + "\n"
        assert os.write(self.file, line.encode()) == len(line)


@dataclasses.dataclass(frozen=True)
class Line:
    letter: str
    at: float
    fields: list


def read(path):
    """The lines of a journal. One that a kill cut short, if that can be, was not written."""
    text = path.read_text() if path.exists() else ""
    lines = [line.split(" ") for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [Line(letter, float(at), [*fields[:-1], fields[-1].rstrip("\n")]) for letter, at, *fields in lines]


def attempt_of(receipt):
    """(job id, run_lease) of a receipt in hexadecimal. Opaque to clients; here it is evidence (src/core/receipt.h)."""
    _, _, _, _, _, job, lease = struct.unpack(">BBHQQQI", bytes.fromhex(receipt))
    return job, lease
