"""One way to drive either client, so that every test is written once.

CDriver talks to the program awa-conformance (tests/clients/conformance.c, on libawa); PythonDriver
calls the package awa. Both take and return plain values: receipts as bytes, codes by name, and
raise CallError.
"""
import dataclasses
import datetime
import os
import select
import signal
import subprocess
import threading

import awa
from awa import types

REQUEST_TIMEOUT_MS = 10_000
DEADLINE_S = 30
JOB_FIELDS = ("queue", "kind", "args", "priority", "max_attempts", "run_at_us", "ordering_key",
              "metadata", "traceparent")
COUNTS = [field.name for field in dataclasses.fields(awa.QueueCounts)]


class CallError(Exception):
    def __init__(self, code, retryable, sqlstate, message):
        super().__init__(f"{code}: {message}")
        self.code, self.retryable, self.sqlstate, self.message = code, retryable, sqlstate, message


@dataclasses.dataclass
class Claimed:
    id: int
    receipt: bytes
    queue: str
    kind: str
    args: str
    priority: int
    attempt: int
    max_attempts: int
    created_at_us: int
    metadata: str
    traceparent: str


class CDriver:
    name = "c"

    def __init__(self, build, env=None):
        self.program = build / "clients/c/awa-conformance"
        self.process = subprocess.Popen([self.program, "call"], env=env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, bufsize=1)

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(DEADLINE_S) == 0
        self.process.stdout.close()

    def call(self, *fields):
        self.process.stdin.write("\t".join(str(field) for field in fields) + "\n")
        ready = select.select([self.process.stdout], [], [], DEADLINE_S)[0]
        assert ready, f"no answer to {fields[0]}"
        verdict, *answer = self.process.stdout.readline().rstrip("\n").split("\t")
        if verdict == "error":
            code, retryable, sqlstate, message = answer
            raise CallError(code, retryable == "1", sqlstate, message)
        assert verdict == "ok", f"awa-conformance ended in {fields[0]}"
        return answer

    def connect(self, address, worker_name="", request_timeout_ms=REQUEST_TIMEOUT_MS, resume=b"",
                safe=False):
        """(session id, whether it was resumed)"""
        session_id, resumed = self.call("connect", address, worker_name, request_timeout_ms,
                                        resume.hex(), int(safe))
        return bytes.fromhex(session_id), resumed == "1"

    def heartbeat(self, *receipts):
        """For each: whether it is still held."""
        return [lost == "0" for lost in
                self.call("heartbeat", *(receipt.hex() for receipt in receipts))]

    def enqueue(self, *jobs, key=""):
        fields = [job.get(name, "") for job in jobs for name in JOB_FIELDS]
        answer = self.call("enqueue", key, *fields)
        return [(int(job_id), code, message)
                for job_id, code, message in zip(*[iter(answer)] * 3)]

    def claim(self, *queues, max_jobs=10, wait_ms=0):
        answer = self.call("claim", max_jobs, wait_ms, *queues)
        width = len(dataclasses.fields(Claimed))
        return [self.job(answer[i:i + width]) for i in range(0, len(answer), width)]

    @staticmethod
    def job(fields):
        numbers = {"id", "priority", "attempt", "max_attempts", "created_at_us"}
        named = dict(zip((field.name for field in dataclasses.fields(Claimed)), fields))
        named = {name: int(value) if name in numbers else value for name, value in named.items()}
        return Claimed(**named | {"receipt": bytes.fromhex(named["receipt"])})

    def finish(self, *items):
        """items: (receipt, outcome, delay_ms, error)"""
        fields = [part for receipt, *rest in items for part in (receipt.hex(), *rest)]
        return self.results(self.call("finish", *fields))

    def release(self, *receipts):
        return self.results(self.call("release", *(receipt.hex() for receipt in receipts)))

    @staticmethod
    def results(answer):
        return [(awa.FinishStatus(int(status)).name, code, message)
                for status, code, message in zip(*[iter(answer)] * 3)]

    def counts(self, queue):
        return dict(zip(COUNTS, map(int, self.call("counts", queue))))

    def ping(self):
        self.call("ping")

    def ping_in_child(self):
        """In a forked child, over the connection that is open here."""
        self.call("ping_in_child")

    def goodbye(self):
        return int(self.call("goodbye")[0])

    def start_worker(self, address, queue, concurrency=1, prefetch=0):
        return CWorker(self.program, address, queue, concurrency, prefetch)


class CWorker:
    """`awa-conformance work` in a process of its own."""

    def __init__(self, program, address, queue, concurrency, prefetch):
        self.process = subprocess.Popen(
            [program, "work", address, queue, str(concurrency), str(prefetch)],
            stdout=subprocess.PIPE, bufsize=0)
        self.starts = []    # that started() did not take

    def line(self):
        received = b""
        while not received.endswith(b"\n"):
            assert select.select([self.process.stdout], [], [], DEADLINE_S)[0], "no line"
            byte = os.read(self.process.stdout.fileno(), 1)
            assert byte, f"the worker ended after {received}"
            received += byte
        return received.decode().rstrip("\n")

    def started(self):
        """(id, attempt) of the next job whose handler has started."""
        word, job_id, attempt = self.line().split()
        assert word == "start"
        return int(job_id), int(attempt)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)

    def let_end(self):
        self.process.send_signal(signal.SIGUSR1)

    def join(self):
        """Its statistics, or raises the error run() ended with."""
        while (line := self.line()).startswith("start "):
            self.starts.append(line)
        self.process.wait(DEADLINE_S)
        self.process.stdout.close()
        if line.startswith("error\t"):
            code, retryable, sqlstate, message = line.split("\t")[1:]
            raise CallError(code, retryable == "1", sqlstate, message)
        return awa.WorkerStats(*map(int, line.split()[1:]))

    def end(self):
        self.process.kill()
        self.process.wait()


def translate(call):
    """Raises CallError for awa.Error."""
    def translated(*args, **kwargs):
        try:
            return call(*args, **kwargs)
        except awa.Error as error:
            raise CallError(error.code.name, error.retryable, error.sqlstate,
                            error.message) from error
    return translated


def milliseconds(number):
    return datetime.timedelta(milliseconds=int(number or 0))


def make_outcome(kind, delay_ms, error):
    match kind:
        case "retry":
            return awa.Retry(error, delay=milliseconds(delay_ms) if delay_ms else None)
        case "snooze":
            return awa.Snooze(milliseconds(delay_ms))
        case "fail":
            return awa.Fail(error)
        case "cancel":
            return awa.Cancel(error)
    return awa.Complete()


class PythonDriver:
    name = "python"

    def __init__(self, _build):
        self.client = None

    def end(self):
        if self.client is not None:
            self.client.close()

    @translate
    def connect(self, address, worker_name="", request_timeout_ms=REQUEST_TIMEOUT_MS, resume=b"",
                safe=False):
        self.end()
        self.client = awa.Client(address, worker_name=worker_name, resume=resume, safe=safe,
                                 timeout=milliseconds(REQUEST_TIMEOUT_MS))
        # As in C: what the requests may take is not what it may take to connect.
        self.client._timeout_s = request_timeout_ms / 1000
        return self.client.session_id, self.client.resumed

    @translate
    def heartbeat(self, *receipts):
        return self.client.heartbeat(map(fake_job, receipts))

    @translate
    def enqueue(self, *jobs, key=""):
        results = self.client.enqueue_many(map(self.new_job, jobs), idempotency_key=key)
        return [(result.job_id or 0, result.error.code.name if result.error else "OK",
                 result.error.message if result.error else "") for result in results]

    @staticmethod
    def new_job(fields):
        fields = dict(fields)
        run_at_us = fields.pop("run_at_us", 0)
        if run_at_us:
            fields["run_at"] = types.EPOCH + run_at_us * types.MICROSECOND
        for name in ("args", "metadata"):
            if name in fields:
                fields[name] = Verbatim(fields[name])
        return VerbatimJob(**fields)

    @translate
    def claim(self, *queues, max_jobs=10, wait_ms=0):
        return [Claimed(job.id, job.receipt, job.queue, job.kind, job.raw_args.decode(),
                        job.priority, job.attempt, job.max_attempts,
                        (job.created_at - types.EPOCH) // types.MICROSECOND,
                        job.raw_metadata.decode(), job.traceparent)
                for job in self.client.claim(queues, max_jobs, milliseconds(wait_ms))]

    @translate
    def finish(self, *items):
        return self.results(self.client.finish(
            (fake_job(receipt), make_outcome(*rest)) for receipt, *rest in items))

    @translate
    def release(self, *receipts):
        return self.results(self.client.release(map(fake_job, receipts)))

    @staticmethod
    def results(results):
        return [(result.status.name, result.error.code.name if result.error else "OK",
                 result.error.message if result.error else "") for result in results]

    @translate
    def counts(self, queue):
        return dataclasses.asdict(self.client.queue_counts(queue))

    @translate
    def ping(self):
        self.client.ping()

    def ping_in_child(self):
        assert in_child(self.client.ping) == 0

    @translate
    def goodbye(self):
        return self.client.goodbye()

    def start_worker(self, address, queue, concurrency=1, prefetch=0):
        return PythonWorker(address, queue, concurrency, prefetch)


def in_child(call):
    """The exit code of a forked child that makes the call."""
    child = os.fork()
    if child == 0:
        try:
            call()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Verbatim(str):
    """JSON text to be sent as it is, valid or not."""


class VerbatimJob(awa.NewJob):
    def to_wire(self):
        wire = dataclasses.replace(self, args=None, metadata=None)
        message = awa.NewJob.to_wire(wire)
        message.args = (self.args or "").encode()
        message.metadata = (self.metadata or "").encode()
        return message


def fake_job(receipt):
    return awa.Job(0, receipt, "", "", b"", 0, 0, 0, types.EPOCH, b"", "")


class PythonWorker:
    """awa.Worker in a thread, behaving as `awa-conformance work` does."""

    def __init__(self, address, queue, concurrency, prefetch):
        self.starts, self.news = [], threading.Condition()
        self.may_end = threading.Event()
        self.snoozed = set()
        self.error = None
        self.worker = awa.Worker(address, [queue], self.handle, concurrency=concurrency,
                                 prefetch=prefetch, name="conformance")
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            self.worker.run()
        except awa.Error as error:
            self.error = error

    def handle(self, job):
        with self.news:
            self.starts.append((job.id, job.attempt))
            self.news.notify()
        if job.kind == "wait":
            assert self.may_end.wait(DEADLINE_S)
        if job.kind == "lost":
            assert job.lost.wait(DEADLINE_S)
        if job.kind == "odd":
            raise awa.Fail("\0\ud800" + "é" * 5000)
        if job.kind == "far" and job.attempt == 1:
            return awa.Retry("much later", delay=datetime.timedelta(days=31))
        if job.attempt > 1 or job.id in self.snoozed:
            return None
        if job.kind == "snooze":
            self.snoozed.add(job.id)    # its next run is the first attempt too
        outcome = make_outcome(job.kind, 500, "asked for by the test")
        if job.kind in ("retry", "fail"):
            raise outcome
        return outcome

    def started(self):
        with self.news:
            assert self.news.wait_for(lambda: self.starts, DEADLINE_S), "no start"
            return self.starts.pop(0)

    def stop(self):
        self.worker.stop()

    def let_end(self):
        self.may_end.set()

    def join(self):
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive(), "run() does not return"
        if self.error is not None:
            raise CallError(self.error.code.name, self.error.retryable, self.error.sqlstate,
                            self.error.message)
        return self.worker.stats

    def end(self):
        self.may_end.set()
        self.worker.stop()
