"""Frames over a Unix or TCP socket: protobuf messages, each behind its length as a varint.

Any failure to read or write closes the connection: half a frame cannot be taken back.
"""
from __future__ import annotations

import os
import re
import select
import socket
import time
import weakref
from typing import Any, Sequence

import awa_pb2 as pb

from .errors import Code, Error

VERSION = "0.1.0"
PREFIX_MAX_BYTES = 5
READ_BYTES = 256 * 1024
HELLO_MAX_FRAME_BYTES = 1 << 20     # until the proxy has told its limit
HELD_MAX = 8192
PORT_MAX = 65535
CONNECT_PAUSE_S = 0.001
LIMITS = ("max_frame_bytes", "max_jobs_per_enqueue", "max_claim_jobs", "max_items_per_finish",
          "idle_timeout_ms")

KEEPALIVE = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
             (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
             (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1))


def open_one(family: int, address: Any, timeout_s: float) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    deadline = time.monotonic() + timeout_s
    try:
        opened.settimeout(timeout_s)
        while not try_connect(opened, address, deadline):
            time.sleep(CONNECT_PAUSE_S)
    except OSError:
        opened.close()
        raise
    return opened


def try_connect(opened: socket.socket, address: Any, deadline: float) -> bool:
    """False: the proxy's backlog is full, for which a Unix socket offers nothing to poll."""
    try:
        opened.connect(address)
    except BlockingIOError:
        if time.monotonic() >= deadline:
            raise
        return False
    return True


def open_tcp(host: str, port: int, timeout_s: float) -> socket.socket:
    """The addresses of the host in turn, in timeout_s together. A peer that is gone is noticed
    within 30 seconds, here as in the proxy."""
    deadline = time.monotonic() + timeout_s
    failure = OSError("the host has no address")
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            opened = open_one(family, address, max(0.001, deadline - time.monotonic()))
        except OSError as why:
            failure = why
            continue
        for level, option, value in KEEPALIVE:
            opened.setsockopt(level, option, value)
        return opened
    raise failure


def open_socket(address: str, timeout_s: float) -> socket.socket:
    tcp = re.fullmatch(r"tcp:(?:\[([^\]]+)\]|([^\[\]:]+)):([0-9]{1,20})", address)
    if tcp is not None and not 1 <= int(tcp[3]) <= PORT_MAX:
        raise Error(Code.INVALID_ARGUMENT, f"the port of {address} is not 1 to {PORT_MAX}")
    try:
        if tcp is not None:
            return open_tcp(tcp[1] or tcp[2], int(tcp[3]), timeout_s)
        if address.startswith("unix:"):
            return open_one(socket.AF_UNIX, address.removeprefix("unix:"), timeout_s)
    except (OSError, OverflowError) as failure:
        raise Error(Code.UNAVAILABLE, f"cannot connect to {address}: {failure}") from failure
    except ValueError as failure:   # a NUL in the path, a name that none can be
        raise Error(Code.INVALID_ARGUMENT, f"cannot connect to {address}: {failure}") from failure
    raise Error(Code.INVALID_ARGUMENT, "the address must look like unix:/path or tcp:host:port")


def wait_readable(timeout_s: float, *fds: int) -> bool:
    """By poll(): select() takes no descriptor beyond 1023."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def need_all(answered: int, asked: int, what: str) -> None:
    if answered != asked:
        raise Error(Code.INTERNAL, f"the proxy answered {answered} of {asked} {what}")


def not_asked_for() -> Error:
    return Error(Code.INTERNAL, "the proxy sent an answer that was not asked for")


def encode_frame(frame: pb.ClientFrame) -> bytes:
    body = frame.SerializeToString()
    prefix = bytearray()
    rest = len(body)
    while rest > 0x7F:
        prefix.append(rest & 0x7F | 0x80)
        rest >>= 7
    prefix.append(rest)
    return bytes(prefix) + body


class Connection:
    """One connection of a session. Not for several threads at once. In a child of fork() it is
    closed: answers to two processes could not be told apart, and the proxy would miss the parent's end.

    resume is the id of a session that is to be resumed, held the receipts that the client still
    holds of it (None: it does not say).
    """

    limits: pb.HelloOk

    def __init__(self, address: str, worker_name: str, timeout_s: float, *, resume: bytes = b"",
                 held: Sequence[bytes] | None = None) -> None:
        self._received = bytearray()
        self._last_request_id = 0
        self._timeout_s = timeout_s
        self._max_frame_bytes = HELLO_MAX_FRAME_BYTES
        deadline = time.monotonic() + timeout_s
        self.socket = open_socket(address, timeout_s)
        connections.add(self)
        self._greet(worker_name, resume, held, deadline)

    def _greet(self, worker_name: str, resume: bytes, held: Sequence[bytes] | None,
               deadline: float) -> None:
        hello = pb.Hello(major=1, minor=0, client_name="awa-python", client_version=VERSION,
                         language="python", worker_name=worker_name, session_id=resume)
        if resume and held is not None and len(held) <= HELD_MAX:
            hello.held.SetInParent()
            hello.held.receipts.extend(held)
        try:
            self.limits = self.call(pb.ClientFrame(hello=hello), "hello_ok", deadline).hello_ok
            for name in LIMITS:
                if getattr(self.limits, name) == 0:
                    raise Error(Code.INTERNAL, f"the proxy says that {name} is 0")
        except Error:
            self.close()
            raise
        self._max_frame_bytes = self.limits.max_frame_bytes

    def close(self) -> None:
        self.socket.close()

    @property
    def is_closed(self) -> bool:
        return self.socket.fileno() < 0

    def _lost(self, how: object) -> Error:
        self.close()
        return Error(Code.DEADLINE_EXCEEDED, f"the connection was lost: {how}")

    def close_if_ended(self, deadline: float) -> None:
        """Between two requests: closes what the proxy has ended meanwhile, so that nothing is
        sent into it whose outcome would be unknown."""
        try:
            while (frame := self.receive(0)) is not None and time.monotonic() < deadline:
                if not frame.HasField("notice"):
                    self.close()    # an Error of the connection
        except Error:
            pass    # closed now

    def send(self, frame: pb.ClientFrame, timeout_s: float | None = None) -> int:
        """Sends frame under a new request id and returns that."""
        if self.is_closed:
            raise Error(Code.UNAVAILABLE, "the connection is closed")
        self._last_request_id += 1
        frame.request_id = self._last_request_id
        if frame.ByteSize() > self._max_frame_bytes:
            raise Error(Code.INVALID_ARGUMENT, f"the request is {frame.ByteSize()} bytes, "
                                               f"the limit is {self._max_frame_bytes}")
        encoded = encode_frame(frame)
        try:
            self.socket.settimeout(self._timeout_s if timeout_s is None else timeout_s)
            self.socket.sendall(encoded, socket.MSG_NOSIGNAL)
        except OSError as failure:
            raise self._lost(failure) from failure
        return frame.request_id

    def receive(self, timeout_s: float) -> pb.ServerFrame | None:
        """The next frame; None when there was none in time."""
        deadline = time.monotonic() + timeout_s
        while (frame := self._take_frame()) is None:
            if self.is_closed:
                raise Error(Code.UNAVAILABLE, "the connection is closed")
            try:
                if not wait_readable(deadline - time.monotonic(), self.socket.fileno()):
                    return None
                received = self.socket.recv(READ_BYTES)
            except OSError as failure:
                raise self._lost(failure) from failure
            if not received:
                raise self._lost("closed by the proxy")
            self._received += received
        return frame

    def _take_frame(self) -> pb.ServerFrame | None:
        length = 0
        for used, byte in enumerate(self._received[:PREFIX_MAX_BYTES], 1):
            length |= (byte & 0x7F) << 7 * (used - 1)
            if byte < 0x80:
                break
        else:
            if len(self._received) >= PREFIX_MAX_BYTES:
                raise self._lost("the proxy sent a malformed frame")
            return None
        if length > self._max_frame_bytes:
            raise self._lost("the proxy sent a frame beyond the limit")
        if len(self._received) < used + length:
            return None
        body = bytes(self._received[used:used + length])
        del self._received[:used + length]
        try:
            return pb.ServerFrame.FromString(body)
        except Exception as failure:
            raise self._lost(f"the proxy sent a malformed frame: {failure}") from failure

    def call(self, request: pb.ClientFrame, expected: str, deadline: float) -> pb.ServerFrame:
        """Sends request and returns its answer, which must be of the kind `expected`. An answer
        that does not come before the deadline (of time.monotonic()) closes the connection: it
        could be taken for another's. So does whatever interrupts this, like a signal's handler."""
        try:
            return self._exchange(request, expected, deadline)
        except Error:
            raise
        except BaseException:
            self.close()
            raise

    def _exchange(self, request: pb.ClientFrame, expected: str,
                  deadline: float) -> pb.ServerFrame:
        request_id = self.send(request, max(0.001, deadline - time.monotonic()))
        answer = self._receive_answer(deadline)
        if answer is None:
            raise self._lost("the proxy did not answer in time")
        kind = answer.WhichOneof("answer")
        own = answer.request_id == request_id
        if own and kind == expected:
            return answer
        if not own or kind != "error":
            self.close()
        if kind == "error":
            raise Error.from_wire(answer.error)
        raise not_asked_for()

    def _receive_answer(self, deadline: float) -> pb.ServerFrame | None:
        """Past the notices: they are for those who wait for nothing in particular."""
        answer = self.receive(max(0.0, deadline - time.monotonic()))
        while answer is not None and answer.HasField("notice"):
            if time.monotonic() >= deadline:
                return None
            answer = self.receive(max(0.0, deadline - time.monotonic()))
        return answer


connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def close_in_child() -> None:
    for connection in list(connections):
        connection.close()


os.register_at_fork(after_in_child=close_in_child)
