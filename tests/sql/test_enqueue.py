"""Enqueue: part of the caller's transaction, one bad job fails alone, and nobody waits."""
import datetime
import itertools
import random

import psycopg2
import pytest

from engine import DONE, Item, ids_of


def in_an_hour():
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)


def test_jobs_exist_only_if_their_transaction_commits(queue_db):
    app = queue_db.session()
    app.begin()
    [kept] = app.enqueue_sql()
    app.rows("SAVEPOINT s")
    app.enqueue_sql(5)
    app.rows("ROLLBACK TO s")
    assert queue_db.claim().ids == []
    app.commit()
    app.begin()
    app.enqueue_sql(3)
    app.rollback()
    assert queue_db.claim().ids == [kept]
    assert queue_db.counts() == {"running": 1}


def test_scheduled_jobs_exist_only_if_their_transaction_commits(queue_db):
    app = queue_db.session()
    app.begin()
    app.enqueue(run_at=in_an_hour())
    assert queue_db.counts() == {}
    app.rollback()
    assert queue_db.counts() == {}
    app.enqueue(run_at=in_an_hour())
    assert queue_db.counts() == {"scheduled": 1}


def test_enqueue_many_keeps_order_and_returns_ids(db):
    ids = [row[0] for row in db.rows(
        "SELECT awa.enqueue_many('q', 'k', ARRAY(SELECT to_json(n) FROM generate_series(1, 50) n))")]
    claimed = db.claim()
    assert claimed.ids == ids
    assert [job.args for job in claimed] == [str(n) for n in range(1, 51)]
    assert db.rows("SELECT awa.enqueue_many('q', 'k', '{}')") == []


def test_enqueue_many_is_all_or_nothing(queue_db):
    with pytest.raises(psycopg2.Error) as refusal:
        queue_db.rows("SELECT awa.enqueue_many(%s, 'k', ARRAY['1', to_json(repeat('x', 1048576)), '3']::json[])", (queue_db.queue,))
    assert refusal.value.diag.message_primary == "job 2: args must be at most 1048576 bytes"
    assert queue_db.counts() == {}


def test_application_gets_every_field_through(db):
    db.rows("SELECT awa.enqueue('q', 'mail', '[1]', priority => 3, max_attempts => 7, ordering_key => 'o',"
            " metadata => '{\"m\": 1}', traceparent => 't')")
    [job] = db.claim()
    assert (job.kind, job.args, job.priority, job.max_attempts, job.metadata, job.traceparent, job.attempt,
            job.run_lease) == ("mail", "[1]", 3, 7, '{"m": 1}', "t", 1, 1)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_any_isolation_level_and_snapshot_age(db, level):
    app = db.session()
    app.begin(level)
    app.value("SELECT count(*) FROM awa.queue_lanes")
    for _ in range(3):
        db.lap()
    ids = app.enqueue_sql(2)
    app.commit()
    assert db.claim().ids == ids


def test_bad_items_fail_alone(queue_db):
    bad = {2: Item(kind="no good"), 3: Item(args="{"), 5: Item(queue="no good"), 8: Item(args='{"a": 1e}'),
           9: Item(priority=9, run_at=in_an_hour())}
    items = [bad.get(place) or Item(args=str(place), run_at=in_an_hour() if place == 6 else None)
             for place in range(1, 11)]
    ids, refused = queue_db.enqueue_items(items)
    assert {place: code for place, (code, _) in refused.items()} == {
        2: "22023", 3: "22P02", 5: "22023", 8: "22P02", 9: "22023"}
    assert {job.job_id: job.args for job in queue_db.claim()} == {ids[place - 1]: str(place) for place in (1, 4, 7, 10)}
    assert queue_db.counts() == {"scheduled": 1, "running": 4}


def test_an_id_used_twice_fails_alone(queue_db):
    [taken] = queue_db.enqueue(run_at=in_an_hour())
    ids, refused = queue_db.enqueue_items([Item(job_id=taken, run_at=in_an_hour()), Item(run_at=in_an_hour()), Item()])
    assert {place: code for place, (code, _) in refused.items()} == {1: "23505"}
    assert queue_db.counts() == {"scheduled": 2, "available": 1}
    assert queue_db.claim().ids == [ids[2]]


def test_run_at_decides_between_now_and_later(queue_db):
    past = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)
    ids, refused = queue_db.enqueue_items([Item(run_at=past), Item(run_at=in_an_hour()), Item()])
    assert refused == {}
    assert queue_db.claim().ids == [ids[0], ids[2]]
    assert queue_db.counts() == {"scheduled": 1, "running": 2}


def test_reserved_ids_are_nobody_elses(queue_db):
    other = queue_db.session()
    blocks = [session.reserve(count) for session, count in itertools.product((queue_db, other, queue_db), (1, 7, 100))]
    assert [len(block) for block in blocks] == [1, 7, 100] * 3
    assert len(set(itertools.chain(*blocks))) == sum(map(len, blocks))


def test_trap_40_first_users_of_a_queue_do_not_meet(db):
    first, second = db.session(), db.session()
    first.begin()
    second.begin()
    ids = first.enqueue_sql(queue="new") + second.enqueue_sql(queue="new")  # a wait would end as lock_timeout
    second.commit()
    assert db.claim(queues=["new"]).ids == ids[1:]
    first.commit()
    assert db.claim(queues=["new"]).ids == ids[:1]


def test_trap_40_queues_leave_nothing_in_the_catalogue(db):
    def catalogue():
        return db.rows("SELECT (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_attribute),"
                       " (SELECT count(*) FROM pg_sequence), (SELECT count(*) FROM pg_proc)")
    before = catalogue()
    queues = [f"once-{n}" for n in range(4000)]
    for start in range(0, 4000, 500):
        ids, refused = db.enqueue_items([Item(queue=queue) for queue in queues[start:start + 500]])
        assert refused == {}
    assert len(db.work(queues=queues[::400])) == 10
    assert catalogue() == before
    assert db.count("queue_lanes") == 4000


def test_lane_names_are_written_once(db):
    for _ in range(5):
        db.enqueue(2)
    assert db.rows("SELECT queue FROM awa.queue_lanes") == [("q",)]


def test_trap_41_open_producers_hold_up_nobody(db):
    """Waiting would end as lock_timeout; cost and result are those without them."""
    def life():
        db.enqueue(100)
        query = db.cursor.mogrify("SELECT * FROM awa.claim(1, 2, '{q}', 100, 1000000)").decode()
        return db.cost(query)
    db.work()
    life()
    before = life()
    open_sessions = [db.session() for _ in range(8)]
    for session in open_sessions:
        session.begin()
        session.enqueue_sql(50)
    for session in (db.session() for _ in range(5)):
        session.begin()
        session.enqueue_sql(50)
        session.rollback()
    life()
    with_them = life()
    assert with_them.buffers <= before.buffers + 8 * 10
    assert with_them.wal_bytes <= before.wal_bytes + 8 * 100
    assert db.rotate()
    assert len(db.enqueue(10)) == len(db.work()) == 10
    for session in open_sessions:
        session.commit()
    assert len(db.work()) == 8 * 50


class Producers:
    """Sessions that enqueue in every way, some of them never finishing in time."""

    def __init__(self, db, chance):
        self.db = db
        self.chance = chance
        self.committed = []             # the jobs of one transaction a list, in order
        self.open = []                  # (session, ids) of transactions that go on
        self.prepared = []              # (gid, ids)
        self.idle = []                  # sessions to be used again
        self.numbers = itertools.count(1)

    def fast(self):
        self.committed.append(self.db.enqueue(self.chance.randint(1, 5)))

    def slow(self, level="READ COMMITTED"):
        session = self.idle.pop() if self.idle else self.db.session()
        session.begin(level)
        session.value("SELECT count(*) FROM awa.queue_lanes")
        self.open.append((session, []))

    def repeatable(self):
        self.slow("REPEATABLE READ")

    def serializable(self):
        self.slow("SERIALIZABLE")

    def go_on(self):
        if self.open:
            session, ids = self.chance.choice(self.open)
            ids += session.enqueue_sql(self.chance.randint(1, 3))

    def savepoint(self):
        if self.open:
            session, _ = self.chance.choice(self.open)
            session.rows("SAVEPOINT s")
            session.enqueue_sql(2)
            session.rows("ROLLBACK TO s")

    def end(self):
        if self.open:
            session, ids = self.open.pop(self.chance.randrange(len(self.open)))
            how = self.chance.choice(["commit", "commit", "rollback", "prepare"])
            if how == "prepare" and len(self.prepared) < 4:
                gid = f"{self.db.name}-{next(self.numbers)}"
                session.rows("PREPARE TRANSACTION %s", (gid,))
                self.prepared.append((gid, ids))
            elif how == "rollback":
                session.rollback()
            else:
                session.commit()
                self.committed.append(ids)
            self.idle.append(session)

    def end_prepared(self):
        if self.prepared:
            gid, ids = self.prepared.pop(0)
            kept = self.chance.random() < 0.7
            self.db.rows(f"{'COMMIT' if kept else 'ROLLBACK'} PREPARED %s", (gid,))
            if kept:
                self.committed.append(ids)

    def end_all(self):
        while self.open:
            self.end()
        while self.prepared:
            self.end_prepared()


class Claimers:
    """Claims that sometimes roll back or die before their commit; what is committed is completed."""

    def __init__(self, db, chance):
        self.db = db
        self.chance = chance
        self.claimed = []               # the ids of one claim a list, in order
        self.open = None                # the jobs of a claim that is not committed
        self.session = db.session()

    def claim(self):
        jobs = self.db.claim(self.chance.choice([1, 3, 512]))
        self.claimed.append(ids_of(jobs))
        if jobs:
            assert set(self.db.complete(jobs)) == {DONE}

    def begin(self):
        if self.open is None:
            self.session.begin()
            self.open = self.session.claim(self.chance.choice([1, 3, 512]))

    def end(self):
        if self.open is not None:
            jobs, self.open = self.open, None
            how = self.chance.choice(["commit", "rollback", "die"])
            if how == "commit":
                self.session.commit()
                self.claimed.append(ids_of(jobs))
                assert not jobs or set(self.db.complete(jobs)) == {DONE}
            elif how == "rollback":
                self.session.rollback()
            else:
                self.db.value("SELECT pg_terminate_backend(%s, 5000)", (self.session.pid,))
                self.session = self.db.session()


@pytest.mark.parametrize("seed", [1, 2])
def test_trap_05_every_kind_of_producer_each_job_once(db, seed):
    chance = random.Random(seed)
    producers, claimers = Producers(db, chance), Claimers(db, chance)
    steps = [producers.fast, producers.slow, producers.repeatable, producers.serializable, producers.go_on,
             producers.go_on, producers.go_on, producers.savepoint, producers.end, producers.end_prepared,
             claimers.claim, claimers.claim, claimers.begin, claimers.end]
    spanning = db.session()
    spanning.begin()
    span_ids = spanning.enqueue_sql(20)
    for step in range(250):
        chance.choice(steps)()
        if step % 12 == 0:
            db.lap()
    assert db.generation() > 17, "the spanning transaction was to see a whole lap"
    spanning.commit()
    producers.committed.append(span_ids)
    producers.end_all()
    claimers.end()
    claimers.claimed.append(db.work())
    claimed = [job_id for ids in claimers.claimed for job_id in ids]
    committed = [job_id for ids in producers.committed for job_id in ids]
    assert sorted(claimed) == sorted(committed)
    place = {job_id: n for n, job_id in enumerate(claimed)}
    for ids in producers.committed:
        assert [place[job_id] for job_id in ids] == sorted(place[job_id] for job_id in ids)
