"""Client: one call for each request of the protocol."""
from __future__ import annotations

import datetime
import threading
from types import TracebackType
from typing import Any, Iterable, Iterator, Mapping, Sequence

import awa_pb2 as pb

from .connection import Connection
from .types import (MILLISECOND, EnqueueResult, FinishResult, Job, NewJob, Outcome, QueueCounts)

JOB_OVERHEAD_BYTES = 32     # tags and lengths of one job in an Enqueue


class Client:
    """A session with the proxy at "unix:/path" or "tcp:host:port". Calls from several threads take turns.

    Leaving the with block says goodbye: attempts still held go back to the queue. A session whose
    connection was lost keeps its attempts for a while: resume=session_id gets them back, and
    resumed tells whether they were still there.
    """

    def __init__(self, address: str, *, worker_name: str = "", resume: bytes = b"",
                 timeout: datetime.timedelta = datetime.timedelta(seconds=30)) -> None:
        self._connection = Connection(address, worker_name, timeout.total_seconds(), resume=resume)
        self._turn = threading.Lock()

    @property
    def session_id(self) -> bytes:
        """As good as a password for the session."""
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
        self._connection.close()

    def goodbye(self) -> int:
        """Ends the session; returns how many attempts were handed back."""
        answer = self._call(pb.ClientFrame(goodbye=pb.Goodbye()), "goodbye_ok")
        self.close()
        return answer.goodbye_ok.released

    def ping(self) -> None:
        self._call(pb.ClientFrame(ping=pb.Ping()), "pong")

    def enqueue(self, queue: str, kind: str, args: Any = None, *, priority: int = 0,
                max_attempts: int = 0, run_at: datetime.datetime | None = None,
                ordering_key: str = "", metadata: Mapping[str, Any] | None = None,
                traceparent: str = "") -> int:
        """Stores one job and returns its id; it is durable then."""
        job = NewJob(queue, kind, args, priority, max_attempts, run_at, ordering_key, metadata,
                     traceparent)
        result = self.enqueue_many([job])[0]
        if result.error is not None:
            raise result.error
        assert result.job_id is not None
        return result.job_id

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[EnqueueResult]:
        """Stores many, in as few requests as the limits allow; one result a job.

        Raises Error when a request fails as a whole; jobs of the requests before it are stored.
        """
        results: list[EnqueueResult] = []
        for part in self._split([job.to_wire() for job in jobs]):
            answer = self._call(pb.ClientFrame(enqueue=pb.Enqueue(jobs=part)), "enqueue_ok")
            results += map(EnqueueResult.from_wire, answer.enqueue_ok.results)
        return results

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
        end of the wait."""
        claim = pb.Claim(queues=queues, max_jobs=max_jobs, wait_ms=wait // MILLISECOND)
        answer = self._call(pb.ClientFrame(claim=claim), "claim_ok", wait.total_seconds())
        return [Job.from_wire(job) for job in answer.claim_ok.jobs]

    def finish(self, items: Iterable[tuple[Job, Outcome]]) -> list[FinishResult]:
        """Ends attempts; one result an item. Safe to resend."""
        finish = pb.Finish(items=[outcome.to_wire(job.receipt) for job, outcome in items])
        answer = self._call(pb.ClientFrame(finish=finish), "finish_ok")
        return [FinishResult.from_wire(result) for result in answer.finish_ok.results]

    def release(self, jobs: Iterable[Job]) -> list[FinishResult]:
        """Hands attempts back untouched; one result a job."""
        release = pb.Release(receipts=[job.receipt for job in jobs])
        answer = self._call(pb.ClientFrame(release=release), "release_ok")
        return [FinishResult.from_wire(result) for result in answer.release_ok.results]

    def heartbeat(self, jobs: Iterable[Job]) -> list[bool]:
        """Whether this session still holds the attempts, in order."""
        items = [pb.HeartbeatItem(receipt=job.receipt) for job in jobs]
        answer = self._call(pb.ClientFrame(heartbeat=pb.Heartbeat(items=items)), "heartbeat_ok")
        return [status == pb.HEARTBEAT_OK for status in answer.heartbeat_ok.statuses]

    def queue_counts(self, queue: str) -> QueueCounts:
        request = pb.ClientFrame(queue_counts=pb.QueueCounts(queue=queue))
        return QueueCounts.from_wire(self._call(request, "queue_counts_ok").queue_counts_ok)

    def _call(self, request: pb.ClientFrame, expected: str, wait_s: float = 0) -> pb.ServerFrame:
        with self._turn:
            return self._connection.call(request, expected, wait_s)
