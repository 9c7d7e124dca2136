"""The storage engine as its callers see it: thin calls of the SQL functions, one session each.

Every session gives up waiting for a lock after two seconds, so a call that waits where it
must not ends as an error and not as a slow test; one that has to wait goes through blocked(). The search_path is left alone on purpose:
a function that forgot to pin its own is found by every test.
"""
import collections
import concurrent.futures
import contextlib
import dataclasses
import secrets
import time

import psycopg2

from postgres import connected

DONE, ALREADY_DONE, STALE, NOT_FOUND, INVALID, BUSY = 1, 2, 3, 4, 5, 7
BATCH, EMPTY = 1, 2
COMPLETE, RETRY, SNOOZE, FAIL, CANCEL, RELEASE, WORKER_LOST, PROXY_LOST = 1, 2, 3, 4, 5, 6, 7, 8
QUEUE_SLOTS, CLAIM_SLOTS = 16, 8
DAY_MS = 86_400_000
WAIT_S = 20
STATES = ("scheduled", "available", "running", "waiting_external", "retryable",
          "completed", "failed", "cancelled")
OPTIONS = "-c lock_timeout=2s -c statement_timeout=60s"


@dataclasses.dataclass(frozen=True)
class Item:
    """What a producer asks for."""

    args: str = "{}"
    queue: str = None               # the session's
    priority: int = 2
    kind: str = "k"
    max_attempts: int = 25
    run_at: object = None
    ordering_key: str = None
    metadata: str = None
    traceparent: str = None
    job_id: int = None


@dataclasses.dataclass(frozen=True)
class Job:
    """One claimed attempt, with what its receipt holds."""

    place: int
    job_id: int
    run_lease: int
    claim_slot: int
    batch_id: int
    index: int
    nonce: int
    queue: str
    priority: int
    attempt: int
    max_attempts: int
    created_at: object
    kind: str
    args: str
    metadata: str
    traceparent: str


class Claim(list):
    """The jobs of one claim in handing-out order. `end` is the last row's status or None."""

    def __init__(self, jobs, end, batches):
        super().__init__(sorted(jobs, key=lambda job: job.place))
        self.end = end
        self.batches = batches

    @property
    def ids(self):
        return [job.job_id for job in self]


@dataclasses.dataclass(frozen=True)
class Cost:
    buffers: int
    wal_bytes: int
    ms: float


def ids_of(jobs):
    return [job.job_id for job in jobs]


class Session:
    """One connection; every call is a transaction of its own unless begin() was called."""

    def __init__(self, url, queue="q"):
        self.queue = queue
        self.connection = psycopg2.connect(url, options=OPTIONS)
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.pid = self.connection.get_backend_pid()

    def close(self):
        self.connection.close()

    def rows(self, query, args=None):
        self.cursor.execute(query, args)
        return self.cursor.fetchall() if self.cursor.description else []

    def value(self, query, args=None):
        return self.rows(query, args)[0][0]

    def begin(self, level="READ COMMITTED"):
        self.rows(f"BEGIN ISOLATION LEVEL {level}")

    def commit(self):
        self.rows("COMMIT")

    def rollback(self):
        self.rows("ROLLBACK")

    def cost(self, query, args=None):
        """Runs a statement and tells what it touched, catalogues and nested statements included."""
        plan = self.value("EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT JSON) " + query, args)[0]
        top = plan["Plan"]
        return Cost(top["Shared Hit Blocks"] + top["Shared Read Blocks"], top["WAL Bytes"],
                    plan["Execution Time"])

    # --- producing

    def reserve(self, count):
        runs = self.rows("SELECT first_id, last_id FROM awa.reserve_job_ids(%s)", (count,))
        return [job_id for first, last in runs for job_id in range(first, last + 1)]

    def enqueue_items(self, items):
        """The proxy's way: returns the ids, and {place from 1: (sqlstate, reason)} of those refused."""
        needed = sum(item.job_id is None for item in items)
        spare = iter(self.reserve(needed) if needed else ())
        ids = [next(spare) if item.job_id is None else item.job_id for item in items]
        queue_of = [self.queue if item.queue is None else item.queue for item in items]
        queues = list(dict.fromkeys(queue_of))

        def column(name):
            values = [getattr(item, name) for item in items]
            return None if all(value is None for value in values) else values
        refused = self.rows(
            "SELECT item, code, reason FROM awa.enqueue_batch(%s::text[], %s::smallint[], %s::bigint[],"
            " %s::smallint[], %s::text[], %s::text[], %s::smallint[], %s::timestamptz[], %s::text[],"
            " %s::text[], %s::text[])",
            (queues, [queues.index(queue) + 1 for queue in queue_of], ids,
             [item.priority for item in items], [item.kind for item in items],
             [item.args for item in items], [item.max_attempts for item in items],
             column("run_at"), column("ordering_key"), column("metadata"), column("traceparent")))
        return ids, {place: (code, reason) for place, code, reason in refused}

    def enqueue(self, count=1, **fields):
        """Stores good jobs and returns their ids; args number them unless given."""
        items = [Item(**{"args": f'{{"n": {n}}}', **fields}) for n in range(count)]
        ids, refused = self.enqueue_items(items)
        assert refused == {}
        return ids

    def enqueue_sql(self, count=1, queue=None):
        """The application's way, inside its own transaction."""
        return [row[0] for row in self.rows(
            "SELECT awa.enqueue_many(%s, 'k', array_fill('{}'::json, ARRAY[%s]))", (queue or self.queue, count))]

    def enqueue_bulk(self, count, queue=None, args="{}"):
        self.rows("SELECT count(*) FROM awa.enqueue_many(%s, 'k', array_fill(%s::json, ARRAY[%s]))",
                  (queue or self.queue, args, count))

    # --- working

    CLAIMED = ("SELECT status, queue, priority, claim_slot, batch_id, job_ids, run_leases, attempts,"
               " max_attempts, created_ats, kinds, args::text[], metadata::text[], traceparents, places,"
               " bytes FROM ")

    @staticmethod
    def decode_claim(rows, nonce):
        jobs, end, batches, earlier = [], None, [], 0
        for row in rows:
            assert end is None, "a row after the closing one"
            (status, queue, priority, claim_slot, batch_id, job_ids, run_leases, attempts, max_attempts,
             created_ats, kinds, args, metadata, traceparents, places, size) = row
            if status != BATCH:
                assert row[1:] == (None,) * 15
                end = status
                continue
            count = len(job_ids)
            batches.append((claim_slot, batch_id, count, size))
            places = places or range(earlier + 1, earlier + count + 1)
            nothing = [None] * count
            jobs += [Job(place, job_id, lease, claim_slot, batch_id, index, nonce, queue, priority, *rest)
                     for index, (place, job_id, lease, *rest) in enumerate(
                         zip(places, job_ids, run_leases, attempts, max_attempts, created_ats, kinds, args,
                             metadata or nothing, traceparents or nothing, strict=True), 1)]
            earlier += count
        claim = Claim(jobs, end, batches)
        assert [job.place for job in claim] == list(range(1, len(jobs) + 1))
        return claim

    def claim(self, limit=512, queues=None, max_bytes=1 << 30, instance=1, nonce=None):
        nonce = secrets.randbits(63) if nonce is None else nonce
        claim = self.decode_claim(self.rows(self.CLAIMED + "awa.claim(%s, %s, %s::text[], %s, %s)",
                                            (instance, nonce, list(queues or [self.queue]), limit, max_bytes)), nonce)
        assert (claim.end is None) == (len(claim) == limit)
        return claim

    def claim_result(self, nonce, instance=1, above=0):
        return self.decode_claim(self.rows(self.CLAIMED + "awa.claim_result(%s, %s, %s)", (instance, nonce, above)), nonce)

    @staticmethod
    def complete_arguments(jobs):
        groups = collections.Counter((job.claim_slot, job.batch_id, job.nonce) for job in jobs)
        keys = sorted(groups)
        return ([k[0] for k in keys], [k[1] for k in keys], [k[2] for k in keys], [groups[k] for k in keys],
                [job.index for job in jobs], ids_of(jobs), [job.run_lease for job in jobs])

    COMPLETE = ("SELECT awa.complete_batch(%s::smallint[], %s::bigint[], %s::bigint[], %s::int[],"
                " %s::smallint[], %s::bigint[], %s::int[])")

    def complete(self, jobs):
        """The statuses, in the order of `jobs`."""
        ordered = sorted(jobs, key=lambda job: (job.claim_slot, job.batch_id, job.nonce, job.index))
        statuses = self.value(self.COMPLETE, self.complete_arguments(ordered))
        assert len(statuses) == len(ordered)
        by_job = dict(zip(ordered, statuses))
        return [by_job[job] for job in jobs]

    FINISH = ("SELECT awa.finish_items(%s::smallint[], %s::bigint[], %s::bigint[], %s::smallint[],"
              " %s::bigint[], %s::int[], %s::smallint[], %s::bigint[], %s::text[])")

    @staticmethod
    def finish_arguments(jobs, outcome, delay_ms=None, error=None):
        n = len(jobs)
        return ([job.claim_slot for job in jobs], [job.batch_id for job in jobs], [job.nonce for job in jobs],
                [job.index for job in jobs], ids_of(jobs), [job.run_lease for job in jobs],
                [outcome] * n, [delay_ms] * n, [error] * n)

    def finish(self, jobs, outcome, delay_ms=None, error=None):
        return self.value(self.FINISH, self.finish_arguments(jobs, outcome, delay_ms, error))

    def work(self, queues=None, limit=512):
        """Claims and completes until nothing is left; returns the ids."""
        done = []
        while claimed := self.claim(limit, queues):
            assert set(self.complete(claimed)) == {DONE}
            done += claimed.ids
        assert claimed.end == EMPTY
        return done

    def rescue(self, limit=1000, missing_ms=0):
        return self.value("SELECT awa.rescue_instances(%s, %s)", (limit, missing_ms))

    def cancel(self, job_ids):
        return dict(self.rows("SELECT job_id, status FROM awa.cancel_jobs(%s::bigint[])", (list(job_ids),)))

    # --- maintaining

    def promote(self, limit=1000):
        return self.value("SELECT awa.promote_due(%s)", (limit,))

    def rotate(self, queue_lap_ms=0, claim_lap_ms=0):
        moved = self.value("SELECT awa.rotate_rings(%s, %s)", (queue_lap_ms, claim_lap_ms))
        self.rows("SELECT awa.sync_ring_pointers()")
        return moved

    def close_slots(self):
        self.rows("SELECT awa.carry_lanes(1000)")
        return self.value("SELECT closed FROM awa.close_slots()")

    def prune(self, retention_ms=0, closed_ms=0):
        return self.value("SELECT pruned FROM awa.prune_slots(%s, %s)", (retention_ms, closed_ms))

    def maintain(self, lap_ms=0, retention_ms=0, closed_ms=0):
        """One tick of the leader; by default nothing is kept longer than proofs demand."""
        self.promote()
        self.rotate(lap_ms, lap_ms)
        self.close_slots()
        return self.prune(retention_ms, closed_ms)

    def lap(self, retention_ms=0):
        """One job of another queue through the ring, so that it turns."""
        self.enqueue(queue="traffic")
        self.work(queues=("traffic",))
        return self.maintain(retention_ms=retention_ms)

    # --- looking

    def counts(self, queue=None):
        row = self.rows("SELECT * FROM awa.queue_counts_exact(%s)", (queue or self.queue,))[0]
        return {state: n for state, n in zip(STATES, row) if n}

    def generation(self, ring="queue"):
        return self.value(f"SELECT last_value >> 4 FROM awa.{ring}_ring_pointer")

    def slot(self, ring="queue"):
        return self.value(f"SELECT last_value & 15 FROM awa.{ring}_ring_pointer")

    def open_generations(self):
        return [g for g, in self.rows(
            "SELECT generation FROM awa.queue_ring_slots WHERE generation NOT IN"
            " (SELECT generation FROM awa.queue_ring_closed) ORDER BY 1")]

    def count(self, relation):
        return self.value(f"SELECT count(*) FROM awa.{relation}")

    def wal_position(self):
        return self.value("SELECT pg_current_wal_insert_lsn() - '0/0'")


class Engine(Session):
    """A database with the schema, and the first session of it."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.name = name
        self.url = cluster.url(name)
        self.sessions = []
        super().__init__(self.url)

    def session(self):
        session = Session(self.url, self.queue)
        self.sessions.append(session)
        return session

    def close_sessions(self):
        while self.sessions:
            self.sessions.pop().close()

    def close(self):
        self.close_sessions()
        super().close()
        # A test that failed may have left some, and they outlive every connection.
        with connected(self.url) as cursor:
            cursor.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
            for gid, in cursor.fetchall():
                cursor.execute("ROLLBACK PREPARED %s", (gid,))

    def wait_until_blocked(self, pid):
        give_up = time.monotonic() + WAIT_S
        while not self.value("SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)", (pid,)):
            assert time.monotonic() < give_up, "the call did not wait"
            time.sleep(0.005)

    @contextlib.contextmanager
    def blocked(self, session, call, *arguments):
        """The future of a session's call that waits for a lock: as long as it takes, whatever delays the end of the wait."""
        session.rows("SET lock_timeout = 0")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            waiting = pool.submit(call, *arguments)
            self.wait_until_blocked(session.pid)
            yield waiting

    @contextlib.contextmanager
    def pinned(self):
        """A REPEATABLE READ snapshot stays open meanwhile."""
        reader = self.session()
        reader.begin("REPEATABLE READ")
        reader.value("SELECT count(*) FROM awa.queue_lanes")
        yield reader
        reader.rollback()
