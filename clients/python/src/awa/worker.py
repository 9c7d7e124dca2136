"""Worker: claims jobs, runs a handler on them in a thread pool, sends the outcomes.

One loop, in the thread that calls run(), owns the connection; a turn sends what is due (one Finish
with all outcomes there are, one Claim for the free room), waits, and takes what has come. An
outcome is kept until it is answered, so a lost connection loses none.

A lost connection: what has not started waits, what runs goes on, and the session is resumed with
the list of what is still held. If the proxy does not know the session any more, what has not
started is released (it may still be ours, after a restart of the proxy), and what runs tells its
outcome all the same: DONE if nobody else got the job, STALE otherwise. Leaving (asked to stop, or
the proxy drains): nothing is claimed or started.
"""
from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import logging
import os
import random
import time
import weakref
from typing import Callable, Sequence

import awa_pb2 as pb

from .connection import Connection, need_all, not_asked_for, wait_readable
from .errors import Code, Error
from .types import Complete, Job, Outcome, Retry

Handler = Callable[[Job], Outcome | None]

logger = logging.getLogger("awa")

CONNECT_TIMEOUT_S = 5.0
CLAIM_WAIT_MS = 20_000
PAUSE_S = 0.1               # before a request that failed is repeated
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 5.0


@dataclasses.dataclass
class WorkerStats:
    executed: int = 0       # handlers that returned
    done: int = 0           # outcomes that are durable
    not_accepted: int = 0   # outcomes answered STALE, NOT_FOUND or INVALID
    reconnects: int = 0
    resumed: int = 0        # reconnects that found the session still there


@dataclasses.dataclass(frozen=True)
class Finished:
    job: Job
    outcome: Outcome
    is_substitute: bool = False     # for an outcome that was refused


def run_handler(handler: Handler, job: Job) -> Outcome:
    """Whatever the handler does: sys.exit() too is the end of this attempt, not of the worker."""
    try:
        outcome = handler(job) or Complete()
        if isinstance(outcome, Outcome):
            return outcome
        raise TypeError(f"the handler returned {type(outcome).__name__}, not None or an Outcome")
    except Outcome as outcome:
        return outcome
    except BaseException as failure:
        logger.exception("job %d (%s) raised in attempt %d", job.id, job.kind, job.attempt)
        return Retry(describe(failure))


def describe(failure: BaseException) -> str:
    try:
        return f"{type(failure).__name__}: {failure}"
    except Exception:   # its __str__ is broken
        return type(failure).__name__


def is_refused(result: pb.FinishResult) -> bool:
    """This outcome will never be accepted, however often it is sent."""
    return result.status == pb.INVALID or (
        result.status == pb.STATUS_ABORTED and result.error.code == pb.INTERNAL)


class Worker:
    """Works on queues (in strict order of preference) until stop().

    handler(job) runs in up to `concurrency` threads at once. It returns None or an Outcome or
    raises one; any other exception means Retry with its text, and is logged (logger "awa"). So does
    an outcome that the proxy refuses, like a delay of more than 30 days or the 1,001st Snooze.
    `prefetch` more jobs are held ready (default: as many again). job.lost is set when the attempt
    has ended without its handler.
    """

    def __init__(self, address: str, queues: Sequence[str], handler: Handler, *,
                 concurrency: int = 10, prefetch: int | None = None, name: str = "") -> None:
        if concurrency < 1 or not queues or (prefetch or 0) < 0:
            raise Error(Code.INVALID_ARGUMENT, "a worker needs a queue and a thread")
        self.stats = WorkerStats()
        self._address, self._name = address, name
        self._queues, self._handler = list(queues), handler
        self._concurrency = concurrency
        self._capacity = concurrency + (concurrency if prefetch is None else prefetch)
        self._futures: dict[concurrent.futures.Future[Outcome], Job] = {}   # held: ready, running
        self._finished: collections.deque[Finished] = collections.deque()   # to be sent
        self._sent: dict[int, list[Finished]] = {}                          # by request id
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self._wake_fd).atexit = False  # stop() may come after run()
        self._stopping = False
        self._draining = False                  # says the proxy
        self._session_id = b""                  # to resume
        self._waiting: list[Job] = []           # for a connection: what has not started
        self._foreign: set[bytes] = set()       # receipts of what runs for a session that is gone
        self._beats: dict[int, list[bytes]] = {}    # the receipts of Heartbeats, by request id

    def stop(self) -> None:
        """May be called from any thread and from a signal handler. run() then claims nothing more,
        releases what has not started, and returns when the last outcome is answered."""
        self._stopping = True
        self._wake()

    def run(self) -> None:
        """Reconnects by itself; raises when the first connection fails, the proxy refuses the
        worker's requests, or a stopping worker has outcomes and no proxy. Call it once."""
        self._connect()
        self._pool = concurrent.futures.ThreadPoolExecutor(self._concurrency, "awa-handler")
        try:
            while not self._run_session() and self._reconnect():
                pass
        finally:
            self._connection.close()
            self._pool.shutdown(cancel_futures=True)

    # The loop

    @property
    def _leaving(self) -> bool:
        return self._stopping or self._draining

    def _connect(self) -> None:
        finished = [done.job for done in self._finished]
        held = [job.receipt for job in [*self._futures.values(), *finished, *self._waiting]]
        self._connection = Connection(self._address, self._name, CONNECT_TIMEOUT_S,
                                      resume=self._session_id, held=held)
        self._session_id = self._connection.limits.session_id

    def _run_session(self) -> bool:
        """True when all is done, False when there is to be another connection."""
        self._claim_id = self._goodbye_id = self._cancelled_id = 0
        self._parted = False
        self._paused_until = 0.0
        self._last_heard = self._last_pinged = time.monotonic()
        try:
            if not self._connection.limits.resumed:
                self._foreign = {job.receipt for job in self._futures.values()}
            self._receive_what_is_there()       # notices that came with HelloOk
            self._place_waiting()
            while not self._parted:
                self._send_what_is_due()
                self._wait_for_events()
                self._receive_what_is_there()
        except Error as error:
            if self._goodbye_id == 0 and not error.retryable:
                raise
        # Everything was answered before Goodbye, so what goes wrong after it is no loss.
        if self._goodbye_id != 0:
            self._session_id = b""
        return self._goodbye_id != 0 and self._stopping

    def _receive_what_is_there(self) -> None:
        while not self._parted and (frame := self._connection.receive(0)) is not None:
            self._on_frame(frame)

    def _send_what_is_due(self) -> None:
        leaving = self._leaving     # it may change in between
        self._keep_alive()
        self._collect()
        if leaving:
            self._cancel_claim()
            self._release_ready()
        if time.monotonic() >= self._paused_until:
            self._send_finishes()
            if not leaving:
                self._send_claim()
        drained = not (self._futures or self._finished or self._sent)
        if leaving and drained and self._goodbye_id == 0:
            self._goodbye_id = self._connection.send(pb.ClientFrame(goodbye=pb.Goodbye()))

    def _keep_alive(self) -> None:
        now, timeout_s = time.monotonic(), self._connection.limits.idle_timeout_ms / 1000
        # Before the proxy, to which we are as silent, gives us up and our session with us.
        if now - self._last_heard >= timeout_s * 2 / 3:
            raise Error(Code.DEADLINE_EXCEEDED, "the proxy has gone silent")
        if min(now - self._last_heard, now - self._last_pinged) >= timeout_s / 3:
            self._last_pinged = now
            self._send_sign_of_life()

    def _send_sign_of_life(self) -> None:
        """A Heartbeat for what this session holds; when that is nothing, a Ping. An attempt of a
        session that is gone would be called lost here, though its Finish may still be DONE."""
        held = [job.receipt for job in self._futures.values()
                if not job.lost.is_set() and job.receipt not in self._foreign]
        limit = self._connection.limits.max_items_per_finish
        self._beats.clear()
        for start in range(0, len(held), limit):
            part = held[start:start + limit]
            beat = pb.Heartbeat(items=[pb.HeartbeatItem(receipt=receipt) for receipt in part])
            self._beats[self._connection.send(pb.ClientFrame(heartbeat=beat))] = part
        if not held:
            self._connection.send(pb.ClientFrame(ping=pb.Ping()))

    def _wait_for_events(self) -> None:
        timeout_s = self._connection.limits.idle_timeout_ms / 1000 / 6
        pause_s = self._paused_until - time.monotonic()
        if 0 < pause_s < timeout_s:
            timeout_s = pause_s
        wait_readable(timeout_s, self._connection.socket.fileno(), self._wake_fd)
        self._drain_wakes()

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _drain_wakes(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            pass

    def _reconnect(self) -> bool:
        """What had not started waits; outcomes without an answer are sent again. A worker that is
        stopping tries once; False when it has nothing left to tell."""
        self._connection.close()
        self._draining = False
        self._waiting += self._take_ready()
        for sent in self._sent.values():
            self._finished += sent
        self._sent.clear()
        backoff_s = BACKOFF_MIN_S
        while True:
            if not self._stopping:
                wait_readable(backoff_s * random.uniform(0.5, 1), self._wake_fd)
                self._drain_wakes()
            try:
                self._collect()
                self._connect()
                self.stats.reconnects += 1
                self.stats.resumed += self._connection.limits.resumed
                return True
            except Error as error:
                if self._stopping and not (self._futures or self._finished):
                    return False        # the proxy ends what waits by itself
                if self._stopping or not error.retryable:
                    raise
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    # Requests: sent without waiting; the answers come to _on_frame()

    def _collect(self) -> None:
        """Moves what the handlers have finished."""
        for future in [future for future in self._futures if future.done()]:
            self._finished.append(Finished(self._futures.pop(future), future.result()))
            self.stats.executed += 1

    def _send_claim(self) -> None:
        unanswered = len(self._finished) + sum(map(len, self._sent.values()))
        room = min(self._capacity, 2 * self._capacity - unanswered) - len(self._futures)
        wanted = min(room, self._connection.limits.max_claim_jobs)
        if self._claim_id == 0 and wanted > 0:
            wait_ms = min(CLAIM_WAIT_MS, self._connection.limits.max_wait_ms)
            claim = pb.Claim(queues=self._queues, max_jobs=wanted, wait_ms=wait_ms)
            self._claim_id = self._connection.send(pb.ClientFrame(claim=claim))
            self._claim_jobs = wanted

    def _send_finishes(self) -> None:
        while self._finished:
            count = min(len(self._finished), self._connection.limits.max_items_per_finish)
            part = [self._finished.popleft() for _ in range(count)]
            finish = pb.Finish(items=[done.outcome.to_wire(done.job.receipt) for done in part])
            try:
                request_id = self._connection.send(pb.ClientFrame(finish=finish))
            except Error:
                self._finished += part
                raise
            self._sent[request_id] = part

    def _take_ready(self) -> list[Job]:
        """What no handler has begun."""
        ready = [future for future in self._futures if future.cancel()]
        return [self._futures.pop(future) for future in ready]

    def _release_ready(self) -> None:
        self._release([job.receipt for job in self._take_ready()])

    def _place_waiting(self) -> None:
        """On a new connection: what waits for it starts, or goes back if its session is gone."""
        waiting, self._waiting = self._waiting, []
        if not self._connection.limits.resumed or self._leaving:
            self._release([job.receipt for job in waiting])
            return
        for job in waiting:
            self._start(job)

    def _cancel_claim(self) -> None:
        """So that nothing is claimed any more that would only be released."""
        if self._claim_id not in (0, self._cancelled_id):
            self._cancelled_id = self._claim_id
            cancel = pb.CancelRequest(request_id=self._claim_id)
            self._connection.send(pb.ClientFrame(cancel_request=cancel))

    def _release(self, receipts: list[bytes]) -> None:
        limit = self._connection.limits.max_items_per_finish
        for start in range(0, len(receipts), limit):
            release = pb.Release(receipts=receipts[start:start + limit])
            self._connection.send(pb.ClientFrame(release=release))

    # Answers

    def _on_frame(self, frame: pb.ServerFrame) -> None:
        self._last_heard = time.monotonic()
        match frame.WhichOneof("answer"):
            case "claim_ok":
                self._on_jobs(frame.request_id, frame.claim_ok)
            case "finish_ok":
                self._on_finish_ok(frame.request_id, frame.finish_ok)
            case "error":
                self._on_error(frame.request_id, frame.error)
            case "goodbye_ok":
                self._parted = True
            case "notice":
                self._on_notice(frame.notice)
            case "heartbeat_ok":
                self._on_heartbeat_ok(frame.request_id, frame.heartbeat_ok)
            case "pong" | "release_ok" | "cancel_request_ok":
                pass
            case _:
                raise not_asked_for()

    def _on_jobs(self, request_id: int, claim_ok: pb.ClaimOk) -> None:
        if (self._claim_id == 0 or request_id != self._claim_id
                or len(claim_ok.jobs) > self._claim_jobs):
            raise not_asked_for()
        self._claim_id = 0
        if self._leaving:
            if self._goodbye_id == 0:   # else Goodbye hands them back
                self._release([wire.receipt for wire in claim_ok.jobs])
            return
        for wire in claim_ok.jobs:
            self._start(Job.from_wire(wire))

    def _start(self, job: Job) -> None:
        future = self._pool.submit(run_handler, self._handler, job)
        self._futures[future] = job
        future.add_done_callback(lambda _: self._wake())

    def _on_notice(self, notice: pb.Notice) -> None:
        if notice.kind == pb.DRAINING:
            self._draining = True
        elif notice.kind == pb.ATTEMPT_LOST:
            self._lose(notice.receipt)

    def _on_heartbeat_ok(self, request_id: int, heartbeat_ok: pb.HeartbeatOk) -> None:
        for receipt, status in zip(self._beats.pop(request_id, []), heartbeat_ok.statuses):
            if status in (pb.HEARTBEAT_LOST, pb.HEARTBEAT_CANCELLED):
                self._lose(receipt)

    def _lose(self, receipt: bytes) -> None:
        """Its handler is told; what has not started never will."""
        self._waiting = [job for job in self._waiting if job.receipt != receipt]
        lost = [future for future, job in self._futures.items() if job.receipt == receipt]
        for future in lost:
            if future.cancel():
                del self._futures[future]
            else:
                self._futures[future].lost.set()

    def _on_finish_ok(self, request_id: int, finish_ok: pb.FinishOk) -> None:
        sent = self._sent.pop(request_id, [])
        need_all(len(finish_ok.results), len(sent), "items")
        for done, result in zip(sent, finish_ok.results):
            refused = is_refused(result)
            if refused and not done.is_substitute:
                # The attempt is still ours, and would be for as long as this session lasts.
                instead = Retry(f"the outcome was refused: {result.error.message}")
                self._finished.append(Finished(done.job, instead, is_substitute=True))
            elif result.status == pb.STATUS_ABORTED and not refused:
                self._finished.append(done)
                self._pause()
            elif result.status in (pb.DONE, pb.ALREADY_DONE):
                self.stats.done += 1
            else:
                self.stats.not_accepted += 1

    def _on_error(self, request_id: int, wire: pb.Error) -> None:
        if request_id == 0 or not wire.retryable:
            raise Error.from_wire(wire)
        if request_id == self._claim_id:
            self._claim_id = 0
        self._finished += self._sent.pop(request_id, [])
        self._pause()

    def _pause(self) -> None:
        self._paused_until = time.monotonic() + PAUSE_S
