"""The processes of the torture: each does one kind of thing to the engine, over and over, and writes down what it was told.

What operation number i of a worker does is drawn from (seed, worker, i) alone, so a seed
repeats the plan; when things happen is up to the machine. A worker runs until its deadline
and returns its records; model.py judges them. Backends are killed under the workers: a
transaction whose COMMIT was not answered is looked up once its backend is gone.
"""
import contextlib
import json
import queue as queues
import random
import time

import psycopg2
import psycopg2.errors

QUEUES = ("q0", "q1", "sharded")
SHARDS = 4
OUTCOMES = {"complete": 1, "retry": 2, "snooze": 3, "fail": 4, "cancel": 5, "release": 6, "worker lost": 7}
PROXY_LOST = 8  # only a rescue ends an attempt so
DONE, ALREADY_DONE, STALE, NOT_FOUND, INVALID, BUSY = 1, 2, 3, 4, 5, 7
RETRYABLE = (psycopg2.errors.SerializationFailure, psycopg2.errors.DeadlockDetected)
LOST = (psycopg2.OperationalError, psycopg2.InterfaceError)


class Session:
    """One connection, in manual transactions, that comes back after it was killed."""

    def __init__(self, url, name):
        self.url, self.name = url, name
        self.connect()

    def connect(self):
        self.connection = psycopg2.connect(self.url, application_name=self.name)
        self.pid = self.connection.info.backend_pid

    def query(self, sql, *values):
        with self.connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []

    def commit(self):
        self.connection.commit()

    def rollback(self):
        self.connection.rollback()

    def isolation(self, level):
        self.connection.set_session(isolation_level=level)

    def reconnect(self):
        """Returns once the old backend is gone, so that what it did is decided."""
        gone = self.pid
        self.connection.close()
        self.connect()
        while self.ask("SELECT FROM pg_stat_activity WHERE pid = %s", gone):
            time.sleep(0.002)

    def ask(self, sql, *arguments):
        """A read that is repeated when its own connection is killed: what was lost must be found out."""
        for _ in range(100):
            try:
                rows = self.query(sql, *arguments)
                self.rollback()
                return rows
            except LOST:
                self.connection.close()
                self.connect()
        raise SystemExit("killed a hundred times in a row")


class Worker:
    kind = None
    victim = False  # whether the killer may take its backends
    sizes = (1, 1, 2, 5, 30)  # of what one statement enqueues

    def __init__(self, url, seed, number, shared):
        self.name = f"{self.kind}{number}.{seed}"
        self.url, self.seed, self.number, self.shared = url, seed, number, shared
        self.records = []

    def run(self, deadline):
        self.deadline = deadline
        mark = "victim" if self.victim else "safe"
        self.session = Session(self.url, f"{mark} {self.name}")
        operation = 0
        while time.monotonic() < deadline:
            self.rng = random.Random(f"{self.name}/{operation}")
            self.operation = operation
            try:
                self.step()
            except RETRYABLE:
                self.session.rollback()
            except LOST:
                self.session.reconnect()
            operation += 1
        self.finish()
        self.session.connection.close()
        return self.records

    def draw_group(self):
        """Arguments of one enqueue_many()."""
        queue = self.rng.choice(QUEUES)
        return {"queue": queue, "priority": self.rng.choice((1, 2, 2, 4)), "count": self.rng.choice(self.sizes),
                "key": f"k{self.rng.randrange(9)}" if queue == "sharded" else None,
                "delay_ms": self.rng.choice((1, 50, 400)) if self.rng.random() < 0.1 else None,
                "max_attempts": self.rng.choice((25, 25, 2))}

    def enqueue(self, group):
        """One enqueue_many(); its jobs, as in the record."""
        labels = [f"{self.name}-{self.operation}-{self.rng.randrange(10**9)}" for _ in range(group["count"])]
        rows = self.session.query(
            "SELECT enqueue_many(%s, 'k', %s::json[], %s, %s, clock_timestamp() + %s * interval '1 ms', %s)",
            group["queue"], [json.dumps({"l": label}) for label in labels], group["priority"],
            group["max_attempts"], group["delay_ms"], group["key"])
        return [(row[0], label, group["queue"], group["priority"], group["key"],
                 group["delay_ms"] is not None, group["max_attempts"]) for row, label in zip(rows, labels)]

    def finish(self):
        pass

    def log_transaction(self):
        """Part of a transaction that enqueues: tells afterwards whether it committed."""
        self.session.query("INSERT INTO producer_log VALUES (%s, %s)", self.name, self.operation)

    def has_committed(self):
        return bool(self.session.ask("SELECT FROM producer_log WHERE producer = %s AND no = %s", self.name, self.operation))

    def sleep(self, longest_s):
        """A pause of a random length that does not reach past the deadline."""
        time.sleep(max(0, min(self.rng.random() * longest_s, self.deadline - time.monotonic())))


class Producer(Worker):
    """Transactions that enqueue. Subclasses differ in what else the transaction is like.

    Record: ("enqueue", producer, transaction number, jobs), where a job is (id, label, queue,
    priority, ordering_key, deferred, max_attempts), in order; only what committed."""
    victim = True
    level = "READ COMMITTED"
    aborts = 0.1
    pauses_s = 0.0

    def body(self):
        """What happens before the end of the transaction; the jobs that exist if it commits."""
        jobs = []
        for _ in range(self.rng.choice((1, 1, 2))):
            jobs += self.enqueue(self.draw_group())
            self.sleep(self.pauses_s)
        return jobs

    def end(self, commit):
        if commit:
            self.session.commit()
        else:
            self.session.rollback()

    def step(self):
        commit = self.rng.random() >= self.aborts
        self.session.isolation(self.level)
        try:
            jobs = self.body()
            self.log_transaction()
            self.end(commit)
        except LOST:
            self.session.reconnect()
            commit = self.has_committed()
        if commit:
            self.records.append(("enqueue", self.name, self.operation, jobs))
        self.sleep(0.1)


class Fast(Producer):
    kind = "fast"


class Slow(Producer):
    kind = "slow"
    pauses_s = 0.3


class Aborting(Producer):
    kind = "aborting"
    aborts = 0.6
    pauses_s = 0.02


class Savepoints(Producer):
    """Parts of the transaction are rolled back to savepoints, others released."""
    kind = "savepoints"

    def body(self):
        jobs = []
        for _ in range(3):
            self.session.query("SAVEPOINT s")
            group = self.enqueue(self.draw_group())
            if self.rng.random() < 0.5:
                self.session.query("ROLLBACK TO s")
            else:
                self.session.query("RELEASE s")
                jobs += group
            self.sleep(0.02)
        return jobs


class OldSnapshot(Producer):
    """Takes its snapshot long before it enqueues."""
    kind = "oldsnapshot"
    level = "REPEATABLE READ"

    def body(self):
        self.session.query("SELECT count(*) FROM queue_lanes")
        self.sleep(0.4)
        return super().body()


class Serializable(OldSnapshot):
    kind = "serializable"
    level = "SERIALIZABLE"


class Prepared(Producer):
    """Prepares, waits, and ends the transaction. Never killed: nobody would end it."""
    kind = "prepared"
    victim = False

    def end(self, commit):
        name = f"{self.name}-{self.operation}"
        self.session.query(f"PREPARE TRANSACTION '{name}'")
        self.session.rollback()
        self.sleep(0.3)
        self.session.connection.autocommit = True
        self.session.query(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{name}'")
        self.session.connection.autocommit = False


class Lapping(Producer):
    """Stays open while the ring goes all the way round, and enqueues again at the end."""
    kind = "lapping"
    victim = False
    aborts = 0.3

    def body(self):
        jobs = self.enqueue(self.draw_group())
        while time.monotonic() < self.deadline - 0.5 and self.rng.random() < 0.9:
            time.sleep(0.5)
        return jobs + self.enqueue(self.draw_group())


class Proxy(Producer):
    """Many jobs for several queues in one enqueue_batch(), some of them bad."""
    kind = "proxy"

    def body(self):
        count = self.rng.choice((1, 20, 100))
        ids = [i for first, last in self.session.query("SELECT * FROM reserve_job_ids(%s)", count)
               for i in range(first, last + 1)]
        self.session.commit()
        queue_of = [self.rng.randrange(2) for _ in ids]
        priorities = [self.rng.choice((1, 2)) for _ in ids]
        labels = [f"{self.name}-{self.operation}-{i}" for i in range(count)]
        args = ["{" if self.rng.random() < 0.01 else json.dumps({"l": label}) for label in labels]
        refused = self.session.query(
            "SELECT item FROM enqueue_batch(%s, %s::smallint[], %s::bigint[], %s::smallint[], array_fill('k'::text, ARRAY[%s]), %s,"
            " array_fill(25::smallint, ARRAY[%s]), NULL, NULL, NULL, NULL)",
            list(QUEUES[:2]), [q + 1 for q in queue_of], ids, priorities, count, args, count)
        bad = [i for i, text in enumerate(args) if text == "{"]
        if sorted(item - 1 for item, in refused) != bad:
            self.records.append(("problem", f"enqueue_batch refused {refused}, not {bad}"))
        return [(ids[i], labels[i], QUEUES[queue_of[i]], priorities[i], None, False, 25)
                for i in range(count) if i not in bad]


class Consumer(Worker):
    """Claims, and ends what it holds, with every outcome. All but the mortal one claim for instance 1, whose lock the judge holds.

    Records: ("claim", rows in the order of handing out), a row being (job id, run_lease, attempt, queue,
    priority, label, batch id); ("end", job id, run_lease, outcome, status, answered), where answered is
    false if the answer to the flush was lost."""
    kind = "consumer"
    victim = True
    instance = 1

    def __init__(self, url, seed, number, shared):
        super().__init__(url, seed, number, shared)
        self.limit = (1, 3, 512, 512)[number % 4]
        self.held = list(shared["receipts"][number::4])
        self.old = []  # receipts of attempts that ended

    def step(self):
        if self.rng.random() < 0.5 and len(self.held) < 800:
            self.claim()
        else:
            self.end()

    def claim(self):
        queues = list(QUEUES)
        self.rng.shuffle(queues)
        nonce = self.rng.getrandbits(62)
        max_bytes = self.rng.choice((60, 1000, 1000000, 1000000))
        commit, spawned = self.rng.random() > 0.1, []
        sql = ("SELECT status, queue, priority, claim_slot, batch_id, job_ids, run_leases, attempts, args::text[], places"
               " FROM claim(%s, %s, %s, %s, %s)")
        try:
            rows = self.session.query(sql, self.instance, nonce, queues, self.limit, max_bytes)
            if self.rng.random() < 0.15:  # what a claim's own transaction writes afterwards is no part of its windows
                spawned = self.enqueue(self.draw_group())
                self.log_transaction()
            self.sleep(0.02 if self.rng.random() < 0.1 else 0)
            if not commit:
                self.session.rollback()
                return
            self.session.commit()
        except LOST:
            self.session.reconnect()
            self.adopt(nonce)
            if self.has_committed():
                self.records.append(("enqueue", self.name, self.operation, spawned))
            return
        if spawned:
            self.records.append(("enqueue", self.name, self.operation, spawned))
        placed = []
        for status, queue, priority, slot, batch, jobs, leases, attempts, args, places in rows:
            if status != 1:
                continue
            before = len(placed)
            for i, job in enumerate(jobs):
                receipt = (slot, batch, nonce, i + 1, job, leases[i])
                place = places[i] if places else before + i + 1
                placed.append((place, (job, leases[i], attempts[i], queue, priority, json.loads(args[i])["l"], batch), receipt))
        if placed:
            placed.sort()
            if [p for p, _, _ in placed] != list(range(1, len(placed) + 1)):
                self.records.append(("problem", f"places of claim {nonce} are {[p for p, _, _ in placed]}"))
            if len(placed) > self.limit:
                self.records.append(("problem", f"a claim of {self.limit} got {len(placed)}"))
            self.records.append(("claim", [row for _, row, _ in placed]))
            self.take(receipt for _, _, receipt in placed)

    def take(self, receipts):
        for receipt in receipts:
            self.held.append(receipt)
            if self.rng.random() < 0.1:
                with contextlib.suppress(queues.Full):
                    self.shared["race"].put_nowait(receipt)

    def adopt(self, nonce):
        """After a lost answer: what the claim took, if it committed. Its order is not known."""
        while True:
            rows = self.session.ask(
                "SELECT r.status, r.claim_slot, r.batch_id, u.idx, u.job_id, u.run_lease, u.attempt FROM claim_result(%s, %s, 0) r"
                " LEFT JOIN LATERAL unnest(r.job_ids, r.run_leases, r.attempts) WITH ORDINALITY u(job_id, run_lease, attempt, idx) ON true",
                self.instance, nonce)
            if not any(row[0] == BUSY for row in rows):
                break
            time.sleep(0.002)
        rows = [row[1:] for row in rows]
        self.records.append(("adopted", [(job, lease, attempt) for _, _, _, job, lease, attempt in rows]))
        self.take((slot, batch, nonce, index, job, lease) for slot, batch, index, job, lease, _ in rows)

    def end(self):
        if self.rng.random() < 0.5:  # else the oldest first, so that slots get old enough to be pruned
            self.rng.shuffle(self.held)
        count = self.rng.choice((1, 7, 64, 512))
        chosen, self.held = self.held[:count], self.held[count:]
        if self.old and self.rng.random() < 0.2:
            chosen += self.rng.sample(self.old, min(3, len(self.old)))
        chosen = list(dict.fromkeys(chosen))
        if not chosen:
            time.sleep(0.002)
            return
        if self.rng.random() < 0.6:
            left = self.flush(self.complete, [(r, "complete") for r in chosen])
        else:
            outcomes = [(r, self.rng.choice(("complete", "complete", "retry", "snooze", "fail", "cancel", "release", "worker lost"))) for r in chosen[:70]]
            self.held += chosen[70:]
            left = self.flush(self.finish_items, outcomes)
        self.held += left

    def flush(self, send, items):
        """Sends outcomes until they are answered; returns the receipts that were BUSY."""
        answered = True
        for _ in range(20):
            try:
                statuses = send(items)
                if self.rng.random() < 0.03:
                    self.session.rollback()
                    return [receipt for receipt, _ in items]
                self.sleep(0.01 if self.rng.random() < 0.05 else 0)
                self.session.commit()
                break
            except LOST:
                self.session.reconnect()
                answered = False
        else:
            return [receipt for receipt, _ in items]
        busy = []
        for (receipt, outcome), status in zip(items, statuses):
            if status == BUSY:
                busy.append(receipt)
            self.records.append(("end", receipt[4], receipt[5], outcome, status, answered))
        self.old = (self.old + [r for r, _ in items if r not in busy])[-500:]
        return busy

    def complete(self, items):
        """complete_batch(); statuses in the order of the items."""
        unique = sorted({receipt for receipt, _ in items})
        batches = sorted({receipt[:3] for receipt in unique})
        counts = [sum(receipt[:3] == batch for receipt in unique) for batch in batches]
        (statuses,), = self.session.query(
            "SELECT complete_batch(%s::smallint[], %s::bigint[], %s::bigint[], %s::int[], %s::smallint[], %s::bigint[], %s::int[])",
            [b[0] for b in batches], [b[1] for b in batches], [b[2] for b in batches], counts,
            [r[3] for r in unique], [r[4] for r in unique], [r[5] for r in unique])
        by_receipt = dict(zip(unique, statuses))
        return [by_receipt[receipt] for receipt, _ in items]

    def finish_items(self, items):
        (statuses,), = self.session.query(
            "SELECT finish_items(%s::smallint[], %s::bigint[], %s::bigint[], %s::smallint[], %s::bigint[], %s::int[], %s::smallint[], %s::bigint[], %s)",
            *[[receipt[column] for receipt, _ in items] for column in range(6)],
            [OUTCOMES[outcome] for _, outcome in items], [self.rng.choice((1, 30, 200)) for _ in items], ["e" for _ in items])
        return statuses

    def finish(self):
        self.records.append(("held", self.held))


class Racer(Consumer):
    """Ends attempts that a consumer ends as well, and sends nonsense."""
    kind = "racer"

    def __init__(self, url, seed, number, shared):
        super().__init__(url, seed, number, shared)
        self.held = []

    def step(self):
        while not self.shared["race"].empty() and len(self.held) < 200:
            try:
                self.held.append(self.shared["race"].get(timeout=0.01))
            except queues.Empty:
                break
        if self.held and self.rng.random() < 0.05:
            slot, batch, nonce, index, job, lease = self.held[0]
            for receipt, expected in (((slot, batch, nonce ^ 1, index, job, lease), NOT_FOUND),
                                      ((slot, batch, nonce, index, job, lease + 1), (INVALID, NOT_FOUND)),
                                      ((slot, batch, nonce, 4000, job, lease), (INVALID, NOT_FOUND))):
                status, = self.finish_items([(receipt, "complete")])
                self.session.commit()
                if status != BUSY and status not in (expected if isinstance(expected, tuple) else (expected,)):
                    self.records.append(("problem", f"a wrong receipt was answered {status}: {receipt}"))
        self.end()

    def finish(self):
        pass  # the consumers hold these receipts too


class Mortal(Consumer):
    """A consumer with an instance of its own, which dies: its lock goes, and what it held is left to the rescue. Of that it sends outcomes late.

    Record: ("doomed", (job id, run_lease)s), what it held when it died."""
    kind = "mortal"

    def __init__(self, url, seed, number, shared):
        super().__init__(url, seed, number, shared)
        self.limit, self.held, self.left, self.control = (3, 64)[number], [], [], None

    def step(self):
        if self.control is None:
            self.instance = self.rng.getrandbits(60) + 2
            self.control = Session(self.url, f"safe control {self.name}")
            self.control.query("SELECT register_instance(%s, 'mortal')", self.instance)
            self.control.commit()
        elif self.rng.random() < 0.04:
            self.die()
        elif self.left and self.rng.random() < 0.2:
            late, self.left = self.left[:20], self.left[20:]
            self.left += self.flush(self.complete, [(receipt, "complete") for receipt in late])
        else:
            super().step()

    def die(self):
        self.control.connection.close()
        self.control = None
        self.records.append(("doomed", [receipt[4:] for receipt in self.held]))
        self.left, self.held = (self.left + self.held)[-200:], []

    def finish(self):
        if self.control is not None:
            self.die()


class Canceller(Worker):
    """Cancels jobs by id, wherever they are. Record: ("cancel", job id, status, committed, answered)."""
    kind = "canceller"
    victim = True

    def step(self):
        (newest,), = self.session.query("SELECT last_value FROM job_id_seq")
        self.session.commit()
        ids = sorted({max(1, newest - self.rng.randrange(600)) for _ in range(self.rng.choice((1, 1, 4)))})
        commit = self.rng.random() < 0.7
        try:
            rows = self.session.query("SELECT job_id, status FROM cancel_jobs(%s::bigint[])", ids)
            self.sleep(0.1 if self.rng.random() < 0.3 else 0)
            if commit:
                self.session.commit()
            else:
                self.session.rollback()
            self.records += [("cancel", job, status, commit, True) for job, status in rows]
        except RETRYABLE:
            self.session.rollback()
            self.records += [("cancel", job, BUSY, False, True) for job in ids]
        except LOST:
            self.session.reconnect()
            self.records += [("cancel", job, None, True, False) for job in ids]
        self.sleep(0.05)


# Makes what waits for the policy's backoff due at once.
# With its own transaction's id, as every writer: a promotion that passes the new time before this commits finds the row by it.
TIME_FLIES = ("UPDATE deferred_jobs SET due_at = clock_timestamp(), xid = pg_current_xact_id() WHERE job_id IN (SELECT job_id FROM deferred_jobs"
              " WHERE due_at > clock_timestamp() + interval '1 s' LIMIT 500 FOR UPDATE SKIP LOCKED)")


class Leader(Worker):
    """The maintenance steps, with short laps. Two of them run, as when an old leader was only asleep."""
    kind = "leader"
    QUEUE_LAP_MS, CLAIM_LAP_MS, RETENTION_MS, CLOSED_MS, MISSING_MS = 300, 250, 400, 500, 300

    def call(self, sql):
        (value,), = self.session.query(sql)
        if self.rng.random() < 0.05:
            self.sleep(0.02)
        if self.rng.random() < 0.03:
            self.session.rollback()
            return 0
        self.session.commit()
        return value

    def step(self):
        if self.call(f"SELECT rotate_rings({self.QUEUE_LAP_MS}, {self.CLAIM_LAP_MS})") or self.rng.random() < 0.1:
            self.call("SELECT sync_ring_pointers()")
        if self.rng.random() < 0.2:
            self.session.query(TIME_FLIES)
            self.session.commit()
        counted = {"rescued": self.call(f"SELECT rescue_instances(64, {self.MISSING_MS})")}
        counted["promoted"] = self.call(f"SELECT promote_due({self.rng.choice((3, 500))})")
        self.call("SELECT carry_lanes(1000)")
        counted["closed"] = self.call("SELECT closed FROM close_slots()")
        counted["pruned"] = self.call(f"SELECT pruned FROM prune_slots({self.RETENTION_MS}, {self.CLOSED_MS})")
        counted["folded"] = self.call("SELECT (SELECT count(*) > 0 FROM queue_terminal_rollups)::int")
        self.records.append(("maintenance", counted))
        self.sleep(0.05)


class Counter(Worker):
    """Reads exact counts all the time: jobs never vanish and never go below zero."""
    kind = "counter"

    def __init__(self, url, seed, number, shared):
        super().__init__(url, seed, number, shared)
        self.least = dict.fromkeys(QUEUES, 0)

    def step(self):
        queue = self.rng.choice(QUEUES)
        counts, = self.session.query("SELECT * FROM queue_counts_exact(%s)", queue)
        self.session.commit()
        if min(counts) < 0 or sum(counts) < self.least[queue]:
            self.records.append(("problem", f"I5 counts of {queue} are {counts}, there were {self.least[queue]} jobs before"))
        self.least[queue] = max(self.least[queue], sum(counts))
        self.records.append(("counted",))
        self.sleep(0.1)


class Killer(Worker):
    """Ends backends of victims at any moment."""
    kind = "killer"

    def step(self):
        self.sleep(0.3)
        rows = self.session.query("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'victim%%' AND state <> 'idle' ORDER BY pid")
        if rows:
            self.session.query("SELECT pg_terminate_backend(%s)", self.rng.choice(rows)[0])
            self.records.append(("killed",))
        self.session.commit()


CREW = [(Fast, 0), (Fast, 1), (Slow, 0), (Aborting, 0), (Savepoints, 0), (OldSnapshot, 0), (Serializable, 0),
        (Prepared, 0), (Lapping, 0), (Proxy, 0), (Consumer, 0), (Consumer, 1), (Consumer, 2), (Consumer, 3), (Mortal, 0), (Mortal, 1), (Racer, 0), (Racer, 1),
        (Canceller, 0), (Leader, 0), (Leader, 1), (Counter, 0), (Killer, 0)]
