"""Jobs, outcomes and answers as Python values, and how they look on the wire."""
from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import json
import threading
from typing import Any, ClassVar, Mapping

import awa_pb2 as pb

from .errors import Code, Error

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
MICROSECOND = datetime.timedelta(microseconds=1)
MILLISECOND = datetime.timedelta(milliseconds=1)
ERROR_MAX_BYTES = 4096


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclasses.dataclass(frozen=True)
class NewJob:
    """A job to be stored. None and 0 mean the default of the proxy."""
    queue: str
    kind: str
    args: Any = None                            # any JSON value; None: {}
    priority: int = 0                           # 1 (first) .. 4; default 2
    max_attempts: int = 0                       # default 25
    run_at: datetime.datetime | None = None     # aware; default: at once
    ordering_key: str = ""
    metadata: Mapping[str, Any] | None = None
    traceparent: str = ""

    def to_wire(self) -> pb.NewJob:
        return pb.NewJob(
            queue=self.queue, kind=self.kind, priority=self.priority,
            args=b"" if self.args is None else to_json(self.args),
            max_attempts=self.max_attempts, ordering_key=self.ordering_key,
            run_at_us=0 if self.run_at is None else (self.run_at - EPOCH) // MICROSECOND,
            metadata=b"" if self.metadata is None else to_json(self.metadata),
            traceparent=self.traceparent)


@dataclasses.dataclass(frozen=True)
class EnqueueResult:
    """job_id, or the error that kept this job (and only this one) from being stored."""
    job_id: int | None
    error: Error | None = None

    @classmethod
    def from_wire(cls, wire: pb.EnqueueResult) -> EnqueueResult:
        if wire.job_id > 0:
            return cls(wire.job_id)
        return cls(None, Error.from_wire(wire.error))


@dataclasses.dataclass(frozen=True)
class Job:
    """One attempt of a job; the receipt ends it."""
    id: int
    receipt: bytes = dataclasses.field(repr=False)
    queue: str
    kind: str
    raw_args: bytes                             # the bytes that were enqueued
    priority: int
    attempt: int                                # 1 for the first
    max_attempts: int
    created_at: datetime.datetime
    raw_metadata: bytes
    traceparent: str
    # Set when the proxy says that this attempt ended without its handler, who works in vain then.
    lost: threading.Event = dataclasses.field(default_factory=threading.Event, repr=False,
                                              compare=False)

    @functools.cached_property
    def args(self) -> Any:
        return json.loads(self.raw_args)

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        return json.loads(self.raw_metadata) if self.raw_metadata else {}

    @classmethod
    def from_wire(cls, wire: pb.Job) -> Job:
        return cls(id=wire.job_id, receipt=wire.receipt, queue=wire.queue, kind=wire.kind,
                   raw_args=wire.args, priority=wire.priority, attempt=wire.attempt,
                   max_attempts=wire.max_attempts,
                   created_at=EPOCH + wire.created_at_us * MICROSECOND,
                   raw_metadata=wire.metadata, traceparent=wire.traceparent)


class Outcome(Exception):
    """How an attempt ends. A handler returns one or raises it; None means Complete(). The error is
    kept with the job; what is beyond 4,096 bytes of it is cut off."""
    field: ClassVar[str]

    def __init__(self, error: str = "", delay: datetime.timedelta | None = None) -> None:
        super().__init__(error)
        text = error.replace("\0", "\\0").encode(errors="backslashreplace")   # as the proxy takes it
        self.error = text[:ERROR_MAX_BYTES].decode(errors="ignore")
        self.delay_ms = 0 if delay is None else max(1, delay // MILLISECOND)

    def to_wire(self, receipt: bytes) -> pb.FinishItem:
        item = pb.FinishItem(receipt=receipt)
        message = getattr(item, self.field)
        message.SetInParent()
        if self.error:
            message.error = self.error
        if self.delay_ms:
            message.delay_ms = self.delay_ms
        return item


class Complete(Outcome):
    field = "complete"

    def __init__(self) -> None:
        super().__init__()


class Retry(Outcome):
    """Again after a delay; without one, after the usual back-off (2 s, 4 s, 8 s …). Uses up an attempt."""
    field = "retry"

    def __init__(self, error: str = "", *, delay: datetime.timedelta | None = None) -> None:
        super().__init__(error, delay)


class Snooze(Outcome):
    """Again after a delay; uses up no attempt."""
    field = "snooze"

    def __init__(self, delay: datetime.timedelta) -> None:
        super().__init__(delay=delay)


class Fail(Outcome):
    field = "fail"

    def __init__(self, error: str = "") -> None:
        super().__init__(error)


class Cancel(Outcome):
    field = "cancel"

    def __init__(self, error: str = "") -> None:
        super().__init__(error)


class FinishStatus(enum.IntEnum):
    DONE = 1            # durable now
    ALREADY_DONE = 2    # this attempt had ended so before
    STALE = 3           # the attempt ended otherwise; nothing was changed
    NOT_FOUND = 4       # older than the resend window, or never existed
    INVALID = 5         # malformed receipt or outcome; see error
    ABORTED = 6         # not done; the attempt is still yours: resend


@dataclasses.dataclass(frozen=True)
class FinishResult:
    status: FinishStatus
    error: Error | None = None

    @classmethod
    def from_wire(cls, wire: pb.FinishResult) -> FinishResult:
        if wire.status not in list(FinishStatus):
            raise Error(Code.INTERNAL, f"the proxy answered with the unknown status {wire.status}")
        return cls(FinishStatus(wire.status),
                   Error.from_wire(wire.error) if wire.HasField("error") else None)


@dataclasses.dataclass(frozen=True)
class QueueCounts:
    """Exact at one moment."""
    scheduled: int
    available: int
    running: int
    waiting_external: int
    retryable: int
    completed: int
    failed: int
    cancelled: int

    @classmethod
    def from_wire(cls, wire: pb.QueueCountsOk) -> QueueCounts:
        return cls(**{field.name: getattr(wire, field.name) for field in dataclasses.fields(cls)})
