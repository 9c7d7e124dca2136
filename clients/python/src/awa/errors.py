"""What can go wrong, as one exception with a code."""
from __future__ import annotations

import enum

import awa_pb2 as pb


class Code(enum.IntEnum):
    """The gRPC codes, with their numbers."""
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Error(Exception):
    """UNAVAILABLE: surely not done, try again. DEADLINE_EXCEEDED: not known."""

    def __init__(self, code: Code, message: str, *, retryable: bool | None = None,
                 sqlstate: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retryable = (code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)
                          if retryable is None else retryable)
        self.sqlstate = sqlstate

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"

    @classmethod
    def from_wire(cls, wire: pb.Error) -> Error:
        # A code this client does not know, or OK on an error, still is an error.
        code = Code(wire.code) if 0 < wire.code <= max(Code) else Code.UNKNOWN
        return cls(code, wire.message, retryable=wire.retryable, sqlstate=wire.sqlstate)
