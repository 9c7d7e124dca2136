"""Client: one call for each request of the protocol."""
from __future__ import annotations

import datetime
import os
import random
import secrets
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Iterable, Iterator, Mapping, Sequence

import awa_pb2 as pb

from .connection import Connection, need_all
from .errors import Code, Error
from .types import (MILLISECOND, EnqueueResult, FinishResult, Job, NewJob, Outcome, QueueCounts)

JOB_OVERHEAD_BYTES = 32     # tags and lengths of one job in an Enqueue
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 5.0
# The proxy itself says after 30 s that nothing was done, or up to 20 s later: who gives up earlier
# does not learn it.
REQUEST_TIMEOUT = datetime.timedelta(seconds=60)


class Backoff:
    """Growing pauses with jitter, up to a deadline (of time.monotonic())."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._longest_s = BACKOFF_MIN_S

    def pause(self) -> bool:
        """False, at once: the next attempt would not have as long as the pause; cut short it could
        end in a doubt that was not there before."""
        pause_s = self._longest_s * random.uniform(0.5, 1)
        if time.monotonic() + 2 * pause_s >= self._deadline:
            return False
        time.sleep(pause_s)
        self._longest_s = min(2 * self._longest_s, BACKOFF_MAX_S)
        return True


class Client:
    """A session with the proxy at "unix:/path" or "tcp:host:port". Calls from several threads take turns.
    In a child of fork() its connection is lost, to the child alone.

    Leaving the with block says goodbye: attempts still held go back to the queue.

    timeout (60 s) is what a call may take, beyond what it asks to wait itself. A call that finds the
    connection lost connects again, to a new session, as long as the timeout permits; the pauses
    grow from 0.1 to 5 s. UNAVAILABLE: surely not done. What was sent and not answered is
    DEADLINE_EXCEEDED, not known. Only an enqueue with an idempotency key is sent again by itself;
    safe=True gives each a random one: never stored twice, but slower.

    A client that has claimed, or was to resume a session, does not connect again by itself: its
    calls fail with UNAVAILABLE. Its session keeps its attempts for a while: another client with
    resume=session_id gets them back, and resumed tells whether they were still there.
    """

    def __init__(self, address: str, *, worker_name: str = "", resume: bytes = b"",
                 timeout: datetime.timedelta = REQUEST_TIMEOUT,
                 safe: bool = False) -> None:
        self._address, self._worker_name, self._safe = address, worker_name, safe
        self._timeout_s = timeout.total_seconds()
        self._may_hold = bool(resume)   # attempts: it has claimed, or was to resume a session
        self._gone = False              # closed by its user
        self._connection = Connection(address, worker_name, self._timeout_s, resume=resume)
        self._turn = threading.Lock()
        clients.add(self)

    @property
    def session_id(self) -> bytes:
        """As good as a password for the session. It changes with a new connection."""
        return self._connection.limits.session_id

    @property
    def resumed(self) -> bool:
        return self._connection.limits.resumed

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if not self._connection.is_closed and kind is None:
            self.goodbye()
        self.close()

    def close(self) -> None:
        """Closes without a word; goodbye() is the polite way."""
        self._gone = True
        self._connection.close()

    def goodbye(self) -> int:
        """Ends the session; returns how many attempts were handed back. A lost connection that
        cannot hold any is no failure."""
        with self._turn:
            released = 0
            deadline = time.monotonic() + self._timeout_s
            if not self._may_hold:
                self._connection.close_if_ended(deadline)
            if self._may_hold or not self._connection.is_closed:
                request = pb.ClientFrame(goodbye=pb.Goodbye())
                answer = self._connection.call(request, "goodbye_ok", deadline)
                released = answer.goodbye_ok.released
            self.close()
            return released

    def ping(self) -> None:
        self._call(pb.ClientFrame(ping=pb.Ping()), "pong")

    def enqueue(self, queue: str, kind: str, args: Any = None, *, priority: int = 0,
                max_attempts: int = 0, run_at: datetime.datetime | None = None,
                ordering_key: str = "", metadata: Mapping[str, Any] | None = None,
                traceparent: str = "", idempotency_key: str = "") -> int:
        """Stores one job and returns its id; it is durable then. idempotency_key as with
        enqueue_many()."""
        job = NewJob(queue, kind, args, priority, max_attempts, run_at, ordering_key, metadata,
                     traceparent)
        result = self.enqueue_many([job], idempotency_key=idempotency_key)[0]
        if result.error is not None:
            raise result.error
        assert result.job_id is not None
        return result.job_id

    def enqueue_many(self, jobs: Iterable[NewJob], *,
                     idempotency_key: str = "") -> list[EnqueueResult]:
        """Stores many, in as few requests as the limits allow; one result a job.

        Raises Error when a request fails as a whole; jobs of the requests before it are stored,
        and those of this one may be when the code is DEADLINE_EXCEEDED.

        idempotency_key (1 to 200 bytes, unique in the database: a UUID) is for jobs that fit one
        request. For 10 minutes the same key gives the same ids, over any connection and after any
        failure. The jobs are stored together, or none but for those that are refused for
        themselves. The request is sent again until its outcome is known or the timeout is over;
        after DEADLINE_EXCEEDED call again with the same key and jobs. It is a transaction of its
        own, slower than without a key.
        """
        parts = list(self._split([job.to_wire() for job in jobs]))
        if idempotency_key and len(parts) > 1:
            limits = self._connection.limits
            raise Error(Code.INVALID_ARGUMENT, f"{sum(map(len, parts))} jobs under one key: one "
                        f"request holds 1 to {limits.max_jobs_per_enqueue}, of "
                        f"{limits.max_frame_bytes} bytes in all")
        results: list[EnqueueResult] = []
        for part in parts:
            key = idempotency_key or (secrets.token_hex(16) if self._safe else "")
            results += self._enqueue_part(pb.Enqueue(jobs=part, idempotency_key=key))
        return results

    def _enqueue_part(self, enqueue: pb.Enqueue) -> list[EnqueueResult]:
        try:
            with self._turn:
                deadline = time.monotonic() + self._timeout_s
                if enqueue.idempotency_key:
                    return self._send_until_known(enqueue, deadline)
                return self._send_once(enqueue, deadline)
        except Error as error:
            if error.code != Code.DEADLINE_EXCEEDED:
                raise
            raise Error(error.code, f"it is unknown whether the jobs are stored: {error.message}",
                        retryable=error.retryable, sqlstate=error.sqlstate) from error

    def _send_once(self, enqueue: pb.Enqueue, deadline: float) -> list[EnqueueResult]:
        answer = self._call_until(pb.ClientFrame(enqueue=enqueue), "enqueue_ok", deadline)
        need_all(len(answer.enqueue_ok.results), len(enqueue.jobs), "jobs")
        return [EnqueueResult.from_wire(result) for result in answer.enqueue_ok.results]

    def _send_until_known(self, enqueue: pb.Enqueue, deadline: float) -> list[EnqueueResult]:
        """With a key. An attempt that came to nothing does not say that an earlier one did: once
        unknown, the outcome stays so until it is told."""
        backoff = Backoff(deadline)
        unknown = False
        while True:
            try:
                results = self._send_once(enqueue, deadline)
                # The jobs are stored together: the first error that another attempt might mend
                # stands for all.
                failure = next((result.error for result in results
                                if result.error is not None and result.error.retryable), None)
                if failure is None:
                    return results
            except Error as error:
                failure = error
            unknown = unknown or failure.code == Code.DEADLINE_EXCEEDED
            if failure.retryable and backoff.pause():
                continue
            raise Error(Code.DEADLINE_EXCEEDED if unknown else failure.code, failure.message,
                        retryable=failure.retryable, sqlstate=failure.sqlstate) from failure

    def _split(self, jobs: Sequence[pb.NewJob]) -> Iterator[list[pb.NewJob]]:
        limits = self._connection.limits
        part: list[pb.NewJob] = []
        part_bytes = 0
        for job in jobs:
            job_bytes = job.ByteSize() + JOB_OVERHEAD_BYTES
            if part and (len(part) == limits.max_jobs_per_enqueue
                         or part_bytes + job_bytes > limits.max_frame_bytes):
                yield part
                part, part_bytes = [], 0
            part.append(job)
            part_bytes += job_bytes
        if part:
            yield part

    def claim(self, queues: Sequence[str], max_jobs: int = 1,
              wait: datetime.timedelta = datetime.timedelta()) -> list[Job]:
        """Waits for at least one job of the queues (in strict order of preference); empty at the
        end of the wait.

        Nothing is sent between calls: while jobs are held call heartbeat() or ping() every 20 s.
        After 60 s of silence the proxy ends the connection, and soon the attempts, as lost."""
        claim = pb.Claim(queues=queues, max_jobs=max_jobs, wait_ms=wait // MILLISECOND)
        answer = self._call(pb.ClientFrame(claim=claim), "claim_ok", wait.total_seconds())
        return [Job.from_wire(job) for job in answer.claim_ok.jobs]

    def finish(self, items: Iterable[tuple[Job, Outcome]]) -> list[FinishResult]:
        """Ends 1 to 1,000 attempts; one result an item. Safe to resend."""
        finish = pb.Finish(items=[outcome.to_wire(job.receipt) for job, outcome in items])
        answer = self._call(pb.ClientFrame(finish=finish), "finish_ok")
        need_all(len(answer.finish_ok.results), len(finish.items), "items")
        return [FinishResult.from_wire(result) for result in answer.finish_ok.results]

    def release(self, jobs: Iterable[Job]) -> list[FinishResult]:
        """Hands 1 to 1,000 attempts back untouched; one result a job."""
        release = pb.Release(receipts=[job.receipt for job in jobs])
        answer = self._call(pb.ClientFrame(release=release), "release_ok")
        need_all(len(answer.release_ok.results), len(release.receipts), "items")
        return [FinishResult.from_wire(result) for result in answer.release_ok.results]

    def heartbeat(self, jobs: Iterable[Job]) -> list[bool]:
        """Whether this session still holds these 1 to 1,000 attempts, in order."""
        items = [pb.HeartbeatItem(receipt=job.receipt) for job in jobs]
        answer = self._call(pb.ClientFrame(heartbeat=pb.Heartbeat(items=items)), "heartbeat_ok")
        need_all(len(answer.heartbeat_ok.statuses), len(items), "receipts")
        return [status == pb.HEARTBEAT_OK for status in answer.heartbeat_ok.statuses]

    def queue_counts(self, queue: str) -> QueueCounts:
        request = pb.ClientFrame(queue_counts=pb.QueueCounts(queue=queue))
        return QueueCounts.from_wire(self._call(request, "queue_counts_ok").queue_counts_ok)

    def _call(self, request: pb.ClientFrame, expected: str, wait_s: float = 0) -> pb.ServerFrame:
        with self._turn:
            deadline = time.monotonic() + wait_s + self._timeout_s
            return self._call_until(request, expected, deadline)

    def _call_until(self, request: pb.ClientFrame, expected: str,
                    deadline: float) -> pb.ServerFrame:
        self._be_connected(deadline)
        if request.HasField("claim"):
            self._may_hold = True   # whatever becomes of its answer
        return self._connection.call(request, expected, deadline)

    def _be_connected(self, deadline: float) -> None:
        """Whatever goes wrong here, the request that needs the connection is surely not done."""
        if self._may_hold or self._gone:
            return
        self._connection.close_if_ended(deadline)
        backoff = Backoff(deadline)
        while self._connection.is_closed:
            left_s = max(0.001, deadline - time.monotonic())
            try:
                self._connection = Connection(self._address, self._worker_name, left_s)
            except Error as error:
                if error.retryable and backoff.pause():
                    continue
                if error.code == Code.DEADLINE_EXCEEDED:
                    raise Error(Code.UNAVAILABLE, error.message) from error
                raise


clients: weakref.WeakSet[Client] = weakref.WeakSet()


def renew_turns() -> None:
    """In a child of fork(): the thread that had the turn is not in it."""
    for client in list(clients):
        client._turn = threading.Lock()


os.register_at_fork(after_in_child=renew_turns)
