"""Lines from a child process, waited for no longer than a deadline."""
import os
import select
import sys
import time

ERR = sys.stderr


def read(stream, timeout_s):
    """The next line of an unbuffered pipe, without its end; "" at the end of the stream."""
    deadline = time.monotonic() + timeout_s
    line = bytearray()
    while not line.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([stream], [], [], left_s)[0]:
            raise SystemExit(f"no line within {timeout_s} s")
        byte = os.read(stream.fileno(), 1)
        if not byte:
            break
        line += byte
    return line.decode(errors="replace").rstrip("\n")
