"""`./dev bench restart`: what clients notice when each of two proxies is restarted under load.

Two proxies on one database, each on a socket of its own; one producer and half of the workers belong to each. Jobs are
offered in ticks of 10 ms; a tick's jobs go, as one request with an idempotency key, over a producer whose proxy is there.
At a quarter and at five eighths of the time one proxy gets SIGTERM and is started again when it has ended. What had no
answer then is sent again over whoever is there: an Enqueue under its key, a Finish with its receipts.

This driver is Python, one thread, on the Python client's connections; definitions are bench/run's, the ledger's checks are those of
bench/load: each job's args, id, one execution, one DONE (or ALREADY_DONE, when its first answer was lost).
"""
import collections
import dataclasses
import json
import os
import random
import select
import sys
import threading
import time

import stack

TICK_S = 0.01
STRAGGLE_S = 0.005          # how long a job is kept back at most
KEPT_BACK = 8               # one in so many is answered a turn later
RECONNECT_S = 0.02
CONNECT_TIMEOUT_S = 5
CLAIM_WAIT_MS = 60_000
QUEUE = "bench"
RESTARTS_AT = (1 / 4, 5 / 8)    # of the time
AFTERMATH_S = 1             # jobs offered so long after a proxy is ready count to its restart
PRINTED_MAX = 10
ARGS = b'{"seq":"%010d","to":"somebody@example.org","template":"welcome","try":true}'

awa = pb = None             # the Python client; import_client() finds it in the build


def import_client(build):
    global awa, pb
    sys.path[:0] = [str(stack.ROOT / "clients/python/src"), str(build / "python")]
    awa = __import__("awa.connection")
    pb = __import__("awa_pb2")


class Ledger:
    """What has become of every job, by its number."""

    def __init__(self, jobs):
        self.ids = [0] * jobs
        self.intended = [0.0] * jobs
        self.latency = [0.0] * jobs
        self.claimed_ids = [0] * jobs
        self.executed = bytearray(jobs)
        self.done = bytearray(jobs)
        self.acknowledged_count = self.executed_count = self.done_count = 0
        self.violations = 0

    def violation(self, text):
        self.violations += 1
        if self.violations <= PRINTED_MAX:
            print(f"bench: violation: {text}", file=sys.stderr)

    def acknowledge(self, first, results):
        for seq, result in enumerate(results, first):
            if result.job_id == 0:
                self.violation(f"job {seq} was refused: {result.error.message}")
            elif self.ids[seq] not in (0, result.job_id):
                self.violation(f"job {seq} was enqueued twice, as {self.ids[seq]} and {result.job_id}")
            self.acknowledged_count += self.ids[seq] == 0
            self.ids[seq] = result.job_id

    def execute(self, job, now):
        seq = int(job.args[8:18])
        if job.args != ARGS % seq:
            self.violation(f"job {job.job_id} has other args than were enqueued")
        if self.executed[seq]:
            self.violation(f"job {seq} (id {job.job_id}) executed again, attempt {job.attempt}")
        else:
            self.executed[seq] = 1
            self.executed_count += 1
            self.claimed_ids[seq] = job.job_id
            self.latency[seq] = now - self.intended[seq]
        return seq

    def finish(self, seq, status, resent):
        if status == pb.DONE or resent and status == pb.ALREADY_DONE:
            if self.done[seq]:
                self.violation(f"job {seq} was done twice")
            self.done[seq] = 1
            self.done_count += 1
        else:
            self.violation(f"the finish of job {seq} was answered {pb.FinishStatus.Name(status)}")

    def audit(self):
        """Once everything is over: the ids of the enqueue are those of the claim, and nobody else's."""
        for seq, job_id in enumerate(self.ids):
            if job_id == 0 or self.claimed_ids[seq] != job_id or not self.done[seq]:
                self.violation(f"job {seq}: id {job_id}, claimed as {self.claimed_ids[seq]}, "
                               f"{'done' if self.done[seq] else 'not done'}")
        if len(set(self.ids)) != len(self.ids):
            self.violation("an id was given twice")
        return self.violations


class Peer:
    """A client of one proxy, which comes back to it when it is there again."""

    def __init__(self, address, name):
        self.address, self.name = address, name
        self.connection = None
        self.draining = False
        self.connect_at = 0.0
        self.reconnects = -1

    @property
    def ready(self):
        return self.connection is not None and not self.draining

    def connect(self, now):
        self.connect_at = now + RECONNECT_S
        try:
            self.connection = awa.connection.Connection(self.address, self.name, CONNECT_TIMEOUT_S)
        except awa.Error:
            return
        self.draining = False
        self.reconnects += 1

    def lose(self):
        """The connection is over: what it did not answer is to be sent again."""
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def send(self, **request):
        """The id of the request, or None: it did not go out, or perhaps."""
        try:
            return self.connection.send(pb.ClientFrame(**request))
        except awa.Error:
            self.lose()
            return None

    def receive(self):
        """Takes the frames that are there; those that came before an end of the connection count."""
        frames, lost = [], False
        try:
            while (frame := self.connection.receive(0)) is not None:
                frames.append(frame)
        except awa.Error:
            lost = True
        for frame in frames:
            if frame.HasField("notice"):
                self.draining = self.draining or frame.notice.kind == pb.DRAINING
            elif frame.request_id == 0:     # why the connection is about to be closed
                self.draining = True
            else:
                self.on_answer(frame)
        if lost:
            self.lose()


class Producer(Peer):
    def __init__(self, load, address):
        super().__init__(address, "bench-producer")
        self.load = load
        self.unanswered = {}    # request id -> (first seq, count)

    def offer(self, first, count):
        jobs = [pb.NewJob(queue=QUEUE, kind="bench.noop", args=ARGS % seq) for seq in range(first, first + count)]
        request_id = self.send(enqueue=pb.Enqueue(jobs=jobs, idempotency_key=f"{self.load.run_id}-{first}"))
        if request_id is None:
            self.load.to_offer.append((first, count))
        else:
            self.unanswered[request_id] = (first, count)

    def lose(self):
        super().lose()
        self.load.to_offer.extend(self.unanswered.values())
        self.load.resent_enqueues += len(self.unanswered)
        self.unanswered.clear()

    def on_answer(self, frame):
        first, count = self.unanswered.pop(frame.request_id)
        if frame.HasField("enqueue_ok"):
            self.load.ledger.acknowledge(first, frame.enqueue_ok.results)
        elif frame.error.retryable or frame.error.code == pb.DEADLINE_EXCEEDED:
            self.load.resent_enqueues += 1
            self.load.to_offer.append((first, count))
        else:
            raise SystemExit(f"an Enqueue was refused: {frame.error.message}")

    def take_turn(self, _now):
        if self.draining and not self.unanswered:
            self.lose()


@dataclasses.dataclass
class Held:
    seq: int
    receipt: bytes
    resent: bool = False


class Worker(Peer):
    def __init__(self, load, address, limit):
        super().__init__(address, "bench-worker")
        self.load, self.limit = load, limit
        self.held = []
        self.answering = {}     # request id -> [Held]
        self.claim_id = None
        self.claim_asked = 0
        self.brought_at = 0.0
        self.has_new = False

    def lose(self):
        super().lose()
        for jobs in self.answering.values():
            for job in jobs:
                job.resent = True
                self.load.resent_outcomes += 1
            self.held += jobs
        self.answering.clear()
        self.claim_id = None

    def on_answer(self, frame):
        if frame.request_id == self.claim_id:
            self.claim_id = None
            now = time.monotonic()
            for job in frame.claim_ok.jobs:
                self.held.append(Held(self.load.ledger.execute(job, now), job.receipt))
            if frame.claim_ok.jobs:
                self.has_new, self.brought_at = True, now
            return
        jobs = self.answering.pop(frame.request_id)
        if frame.HasField("error"):
            for job in jobs:
                job.resent = True
            self.held += jobs
            self.load.resent_outcomes += len(jobs)
            return
        for job, result in zip(jobs, frame.finish_ok.results, strict=True):
            if result.status == pb.STATUS_ABORTED:
                self.held.append(job)
            else:
                self.load.ledger.finish(job.seq, result.status, job.resent)

    def take_turn(self, now):
        if self.connection is None:
            return
        if self.held and (self.has_new or self.draining or now - self.brought_at >= STRAGGLE_S):
            self.answer()
        if self.draining and self.connection is not None:
            if not (self.held or self.answering or self.claim_id):
                self.lose()     # it holds nothing: as good as a Goodbye
        elif self.claim_id is None and self.connection is not None:
            self.claim()

    def answer(self):
        """Most of what is held, in random order; the rest goes with the next jobs, or when it has waited long enough."""
        self.load.random.shuffle(self.held)
        count = min(len(self.held) - len(self.held) // KEPT_BACK, self.connection.limits.max_items_per_finish)
        chosen, self.held = self.held[:count], self.held[count:]
        self.has_new = False
        items = [pb.FinishItem(receipt=job.receipt, complete=pb.Complete()) for job in chosen]
        request_id = self.send(finish=pb.Finish(items=items))
        if request_id is None:
            for job in chosen:
                job.resent = True
            self.held += chosen
        else:
            self.answering[request_id] = chosen

    def claim(self):
        unanswered = sum(map(len, self.answering.values()))
        room = min(self.limit - len(self.held), 2 * self.limit - len(self.held) - unanswered)
        if room > 0:
            self.claim_id = self.send(claim=pb.Claim(queues=[QUEUE], max_jobs=room, wait_ms=CLAIM_WAIT_MS))


class Load:
    """Everything of one run, in one loop."""

    def __init__(self, options, addresses):
        self.rate, self.jobs, self.deadline_s = options.rate, options.rate * options.seconds, options.deadline_s
        self.batch = max(1, min(1000, round(options.rate * TICK_S)))
        self.random = random.Random(options.seed)
        self.run_id = f"{os.getpid()}"
        self.ledger = Ledger(self.jobs)
        self.to_offer = collections.deque()     # (first seq, count) that nobody has acknowledged
        self.offered = 0
        self.resent_enqueues = self.resent_outcomes = self.backlog_max = self.unfinished_max = 0
        self.late_ticks_max_s = 0.0
        share = options.inflight // options.workers
        self.producers = [Producer(self, address) for address in addresses]
        self.workers = [Worker(self, addresses[i % len(addresses)], share + (i < options.inflight % options.workers))
                        for i in range(options.workers)]
        self.peers = [*self.producers, *self.workers]

    def tick(self, now):
        """Offers the jobs of every tick that is due, late or not, as of the tick's own time."""
        ticks = int((now - self.started) / TICK_S)
        for number in range(self.ticks + 1, ticks + 1):
            intended = self.started + number * TICK_S
            self.late_ticks_max_s = max(self.late_ticks_max_s, now - intended)
            due = min(self.jobs, int(number * TICK_S * self.rate))
            while self.offered < due:
                count = min(due - self.offered, self.batch)
                self.ledger.intended[self.offered:self.offered + count] = [intended] * count
                self.to_offer.append((self.offered, count))
                self.offered += count
        self.ticks = max(self.ticks, ticks)

    def offer(self):
        for _ in range(len(self.to_offer)):
            ready = [producer for producer in self.producers if producer.ready]
            if not ready:
                return
            first, count = self.to_offer.popleft()
            ready[first // self.batch % len(ready)].offer(first, count)

    def run(self):
        now = time.monotonic()
        for peer in self.peers:
            peer.connect(now)
            if not peer.ready:
                raise SystemExit(f"cannot connect to {peer.address}")
        self.started, self.ticks = time.monotonic(), 0
        while self.ledger.done_count < self.jobs or self.ledger.acknowledged_count < self.jobs:
            self.turn()
            if time.monotonic() > self.started + self.deadline_s:
                raise SystemExit(f"not over after {self.deadline_s} s: {self.ledger.acknowledged_count} of {self.jobs} "
                                 f"acknowledged, {self.ledger.executed_count} executed, {self.ledger.done_count} done")
        self.seconds = time.monotonic() - self.started
        for peer in self.peers:
            peer.lose()

    def turn(self):
        now = time.monotonic()
        holding = any(worker.held for worker in self.workers)
        left_s = max(0.0, self.started + (self.ticks + 1) * TICK_S - now) if self.offered < self.jobs else TICK_S
        by_socket = {peer.connection.socket: peer for peer in self.peers if peer.connection is not None}
        readable, _, _ = select.select(list(by_socket), [], [], min(left_s, 0.001) if holding else left_s)
        for socket in readable:
            by_socket[socket].receive()
        now = time.monotonic()
        self.tick(now)
        self.offer()
        for peer in self.peers:
            peer.take_turn(now)
            if peer.connection is None and now >= peer.connect_at:
                peer.connect(now)
        ledger = self.ledger
        self.backlog_max = max(self.backlog_max, ledger.acknowledged_count - ledger.executed_count)
        self.unfinished_max = max(self.unfinished_max, ledger.executed_count - ledger.done_count)

    def latency_ms(self, quantile, of=None):
        values = sorted(of if of is not None else self.ledger.latency)
        return round(values[int(quantile * (len(values) - 1))] * 1000, 2) if values else 0.0


class Restarter(threading.Thread):
    """Restarts each proxy in its turn."""

    def __init__(self, started, addresses, proxies, seconds):
        super().__init__(daemon=True)
        self.stack, self.addresses, self.proxies = started, addresses, proxies
        self.seconds = seconds
        self.done = []          # (SIGTERM at, ended at, ready at, exit code)
        self.failure = None
        self.cancelled = threading.Event()

    def cancel(self):
        self.cancelled.set()
        self.join()

    def run(self):
        began = time.monotonic()
        try:
            for part, address, proxy in zip(RESTARTS_AT, self.addresses, self.proxies):
                if self.cancelled.wait(max(0.0, began + part * self.seconds - time.monotonic())):
                    return
                term_at = time.monotonic()
                proxy.terminate()
                code = proxy.wait(stack.STOP_S)
                ended_at = time.monotonic()
                if self.cancelled.is_set():
                    return
                self.stack.serve(address)
                self.done.append((term_at, ended_at, time.monotonic(), code))
        except BaseException as error:  # pylint: disable=broad-except
            self.failure = error        # the main thread tells


def latencies_of(load, chosen):
    """p50, p99 and the highest of the jobs whose intended time is chosen."""
    hit = [latency for latency, at in zip(load.ledger.latency, load.ledger.intended) if chosen(at)]
    return {"p50_ms": load.latency_ms(0.5, hit), "p99_ms": load.latency_ms(0.99, hit), "max_ms": load.latency_ms(1, hit)}


def restart_figures(load, restarter):
    """What each restart did to the jobs offered meanwhile, and how those fared that no restart touched."""
    spans = [(term_at, ready_at + AFTERMATH_S) for term_at, _, ready_at, _ in restarter.done]
    return {"restarts": [{"exit_code": code, "drain_s": round(ended_at - term_at, 3), "start_s": round(ready_at - ended_at, 3),
                          **latencies_of(load, lambda at, since=term_at, to=ready_at + AFTERMATH_S: since <= at < to)}
                         for term_at, ended_at, ready_at, code in restarter.done],
            "undisturbed": latencies_of(load, lambda at: not any(since <= at < to for since, to in spans))}


def run_load(started, cursor, options):
    """The figures of one run on a stack whose database is there and whose proxies are not."""
    import_client(started.build)
    addresses = [f"unix:{started.folder / name}" for name in ("one.sock", "two.sock")]
    started.migrate()
    proxies = [started.serve(address) for address in addresses]
    load = Load(options, addresses)
    restarter = Restarter(started, addresses, proxies, options.seconds)
    restarter.start()
    try:
        load.run()
    finally:
        restarter.cancel()
    if restarter.failure is not None or len(restarter.done) < len(addresses):
        raise SystemExit(f"a proxy was not restarted: {restarter.failure}")
    load.ledger.audit()
    for number, (*_, code) in enumerate(restarter.done, 1):
        if code != 0:
            load.ledger.violation(f"proxy {number} ended with {code}")
    check_database(load, cursor)
    return {"jobs": load.jobs, "seconds": round(load.seconds, 3), "jobs_per_s": round(load.jobs / load.seconds),
            "p50_ms": load.latency_ms(0.5), "p95_ms": load.latency_ms(0.95), "p99_ms": load.latency_ms(0.99),
            "max_ms": load.latency_ms(1), "backlog_max": load.backlog_max, "unfinished_max": load.unfinished_max,
            "violations": load.ledger.violations, "late_tick_max_ms": round(load.late_ticks_max_s * 1000, 2),
            "reconnects": sum(peer.reconnects for peer in load.peers), "resent_enqueues": load.resent_enqueues,
            "resent_outcomes": load.resent_outcomes, **restart_figures(load, restarter)}


def check_database(load, cursor):
    """The database's own count: every job completed, nothing left and nothing more."""
    cursor.execute("SELECT to_jsonb(c) FROM awa.queue_counts_exact(%s) c", (QUEUE,))
    counts = {state: count for state, count in cursor.fetchone()[0].items() if count}
    if counts != {"completed": load.jobs}:
        load.ledger.violation(f"{load.jobs} jobs were enqueued, the database counts {json.dumps(counts)}")


def shown(found):
    return f"p50 {found['p50_ms']:.2f}  p99 {found['p99_ms']:.2f}  max {found['max_ms']:.2f} ms"


def table_rows(figures):
    rows = [("restarts", f"{figures['reconnects']} reconnects, {figures['resent_enqueues']} Enqueues and {figures['resent_outcomes']} outcomes "
                         f"sent again, latest tick {figures['late_tick_max_ms']:.1f} ms late"),
            ("undisturbed", f"jobs that no restart touched: {shown(figures['undisturbed'])}")]
    for number, found in enumerate(figures["restarts"], 1):
        rows.append((f"proxy {number}", f"ended {found['drain_s']:.2f} s after SIGTERM, ready {found['start_s']:.2f} s later; jobs offered "
                                        f"until {AFTERMATH_S} s after that: {shown(found)}"))
    return rows
