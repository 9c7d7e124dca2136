"""What calls cost, counted and not timed: buffers for plans, bytes for WAL, dead rows under a pinned snapshot.

The figures in ms are printed only. Traps 7 and 46 with a slot of 1 M fresh rows.
"""
import concurrent.futures

import pytest

from engine import DONE, FAIL, RELEASE, Item

MILLION = 1_000_000
PRODUCERS = 8
CLAIM_100 = "SELECT * FROM awa.claim(1, 2, '{big}', 100, 100000000)"
CLAIM_SMALL = "SELECT * FROM awa.claim(1, 2, '{small}', 10, 100000000)"
LAST_IN_LANE = ("SELECT job_id FROM awa.ready_entries_00 WHERE run_lease = 0 AND job_id NOT IN (SELECT job_id FROM awa.ready_tombstones)"
                " AND lane_id = (SELECT lane_id FROM awa.queue_lanes WHERE queue = 'big' LIMIT 1) ORDER BY lane_id DESC, xid DESC, job_id DESC")


@pytest.fixture(scope="module")
def million(new_engine):
    """1 M fresh rows of eight interleaved producers, some returned ids, a small lane, and a session whose plans were
    cached when everything was empty."""
    with new_engine() as db:
        db.old = db.session()
        for _ in range(7):      # until every plan that can be generic is
            db.old.enqueue(3, queue="big")
            db.old.complete(db.old.claim(2, ["big"]))
            db.old.finish(db.old.claim(1, ["big"]), RELEASE)
            db.old.rows("SELECT * FROM awa.get_job(1)")
            db.old.cancel([-1])
        with concurrent.futures.ThreadPoolExecutor(PRODUCERS) as pool:
            list(pool.map(lambda session: session.enqueue_bulk(MILLION // PRODUCERS, "big"), [db.session() for _ in range(PRODUCERS)]))
        db.enqueue(500, queue="small")
        for _ in range(4):
            claim = db.claim(512, ["big"])
            db.complete(claim[64:])
            db.returned = claim[:64]
            assert db.finish(db.returned, RELEASE) == [DONE] * 64
        yield db


def sessions(db):
    """With plans from before the fill; fresh ones without statistics; fresh ones with."""
    yield "plans of an empty slot", db.old
    yield "no statistics", db.session()
    db.rows("ANALYZE")
    yield "after ANALYZE", db.session()
    yield "plans of an empty slot, invalidated", db.old


def test_trap_07_claim_and_completion_use_indexes_only(million):
    for name, session in sessions(million):
        warm = session.claim(3, ["big"])
        assert session.complete(warm[:2]) == [DONE] * 2
        assert session.finish(warm[2:], FAIL) == [DONE]
        claim = session.cost(CLAIM_100)
        small = session.cost(CLAIM_SMALL)
        jobs = session.claim(100, ["big"])
        complete = session.cost(session.COMPLETE, session.complete_arguments(jobs))
        finish = session.cost(session.FINISH, session.finish_arguments(session.claim(1, ["big"]), FAIL))
        print(f"{name}: claim 100 {claim}, claim 10 of a small lane {small}, complete 100 {complete}, finish {finish}")
        assert claim.buffers <= 150 and small.buffers <= 120
        assert complete.buffers <= 60 and finish.buffers <= 60


def test_trap_46_job_by_id(million):
    fresh = million.value(f"{LAST_IN_LANE} LIMIT 1")
    for name, session in sessions(million):
        for what, job_id in {"fresh": fresh, "returned": million.returned[0].job_id, "unknown": 10 ** 15}.items():
            query = "SELECT * FROM awa.get_job(%s)"
            session.rows(query, (job_id,))
            cost = session.cost(query, (job_id,))
            print(f"{name}: get_job {what} {cost}")
            assert cost.buffers <= 300
    assert million.rows("SELECT state::text, kind, args::text FROM awa.get_job(%s)", (fresh,)) == [("available", "k", "{}")]


def test_trap_46_cancel_by_id(million):
    for name, session in sessions(million):
        session.cancel([session.enqueue(queue="warm")[0]])
        job_ids = [row[0] for row in million.rows(f"{LAST_IN_LANE} LIMIT 2")]
        session.cancel(job_ids[:1])
        cost = session.cost("SELECT * FROM awa.cancel_jobs(%s)", (job_ids[1:],))
        print(f"{name}: cancel {cost}")
        assert cost.buffers <= 600
        assert million.rows("SELECT state::text FROM awa.get_job(%s)", (job_ids[1],)) == [("cancelled",)]


def test_trap_07_nothing_is_compiled(cluster, db):
    """enable_seqscan = off makes harmless plans look expensive enough for JIT, in every call."""
    cluster.execute("CREATE EXTENSION pg_stat_statements", database=db.name)
    db.rows("SET jit = on")
    db.enqueue(20)
    db.finish(db.claim(1), 2)
    db.complete(db.claim())
    db.cancel(db.enqueue(1))
    db.rows("SELECT * FROM awa.get_job(1)")
    for _ in range(4):
        db.maintain()
    db.claim()
    compiled = db.rows("SELECT jit_functions, query FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid"
                       " WHERE d.datname = current_database() AND jit_functions > 0 AND query NOT LIKE '%%queue_counts%%'")
    assert compiled == []


# --- WAL

# Bytes of WAL a job, commit records included, in the units of the design's table of sizes and speeds.
WAL_BUDGET = {"enqueue": 370, "claim and complete, 512": 30, "claim and complete, 64": 80, "whole life": 400}
ARGS = '{"to": "someone@example.com", "template": "welcome", "user_id": 1234567890}'
JOBS = 10_240


def wal_per_job(cluster, db, work):
    cluster.execute("CHECKPOINT")
    before = db.wal_position()
    work()
    return (db.wal_position() - before) / JOBS


def enqueue_in_hundreds(db):
    ids = db.reserve(JOBS)
    for start in range(0, JOBS, 100):
        _, refused = db.enqueue_items([Item(args=ARGS, job_id=job_id) for job_id in ids[start:start + 100]])
        assert refused == {}


@pytest.mark.parametrize("batch", [512, 64])
def test_wal_per_job_stays_in_its_budget(cluster, db, batch):
    enqueue = wal_per_job(cluster, db, lambda: enqueue_in_hundreds(db))
    finish = wal_per_job(cluster, db, lambda: db.work(limit=batch))
    assert db.counts() == {"completed": JOBS}
    print(f"WAL per job: enqueue {enqueue:.1f}, claim and complete by {batch} {finish:.1f}, together {enqueue + finish:.1f}")
    assert enqueue <= WAL_BUDGET["enqueue"]
    assert finish <= WAL_BUDGET[f"claim and complete, {batch}"]
    assert enqueue + finish <= WAL_BUDGET["whole life"]


# --- a pinned snapshot

def test_pinned_snapshot_leaves_no_dead_rows_of_jobs(db):
    """Dead rows may come from laps, a few each, but not from jobs; and what was pruned is really gone."""
    laps, jobs = 8, 1024

    def lap():
        db.enqueue_bulk(jobs)
        assert len(db.work(limit=64)) == jobs
        for _ in range(2):
            db.maintain()

    def size():
        return db.value("SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r'")
    with db.pinned():
        for _ in range(3):
            lap()
        before = size()
        for _ in range(laps):
            lap()
        after = size()
        db.rows("SELECT pg_stat_force_next_flush()")
        db.rows("SELECT pg_stat_clear_snapshot()")
        dead = {table: n for table, n in db.rows("SELECT relname, n_dead_tup FROM pg_stat_user_tables WHERE schemaname = 'awa' AND n_dead_tup > 0")}
    print(f"dead rows after {(laps + 3) * jobs} jobs under a pin: {dead}; bytes {before} -> {after}")
    assert db.counts() == {"completed": (laps + 3) * jobs}
    assert sum(dead.values()) <= 12 * (laps + 3)
    assert after <= before * 1.1
