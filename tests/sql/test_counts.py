"""Exact counts: exact for every reader, in every state, and while slots are pruned."""
import pytest

from engine import CANCEL, DAY_MS, FAIL, RELEASE, RETRY, SNOOZE


def brute_force(db, queue="q"):
    """What the tables say, read one by one; nothing may be going on meanwhile."""
    return {state: n for state, n in db.rows("""
        SELECT state, sum(n) FROM (
            SELECT state::text, count(*) AS n FROM awa.deferred_jobs WHERE awa.lane_queue(lane_id) = %(queue)s GROUP BY 1
            UNION ALL SELECT state::text, count(*) FROM awa.terminal_jobs WHERE queue = %(queue)s GROUP BY 1
            UNION ALL SELECT state::text, n FROM awa.queue_terminal_rollups WHERE awa.lane_queue(lane_id) = %(queue)s
            UNION ALL SELECT 'running', count(*) FROM awa.lease_claim_batches b, unnest(b.job_ids) WITH ORDINALITY j(job_id, idx)
                       WHERE awa.lane_queue(b.lane_id) = %(queue)s
                         AND NOT EXISTS (SELECT FROM awa.lease_claim_closures c WHERE c.batch_id = b.batch_id AND c.idx = j.idx)
                         AND NOT EXISTS (SELECT FROM awa.lease_claim_closure_batches c
                                          WHERE c.batch_id = b.batch_id AND get_bit(c.members, j.idx::int - 1) = 1)
            UNION ALL SELECT 'available', count(*) FROM awa.ready_entries r
                       WHERE awa.lane_queue(r.lane_id) = %(queue)s
                         AND NOT EXISTS (SELECT FROM awa.ready_tombstones t WHERE t.job_id = r.job_id AND t.xid = r.xid)
                         AND NOT EXISTS (SELECT FROM awa.lease_claim_batches b, unnest(b.job_ids) WITH ORDINALITY j(job_id, idx)
                                          WHERE j.job_id = r.job_id AND coalesce(b.run_leases[j.idx], 1) = r.run_lease + 1)
                         AND NOT EXISTS (SELECT FROM awa.terminal_jobs t WHERE t.job_id = r.job_id AND t.run_lease > r.run_lease)
                         AND NOT EXISTS (SELECT FROM awa.deferred_jobs d WHERE d.job_id = r.job_id AND d.run_lease > r.run_lease)
                         AND NOT EXISTS (SELECT FROM awa.ready_entries n WHERE n.job_id = r.job_id AND n.run_lease > r.run_lease)
        ) parts GROUP BY state HAVING sum(n) > 0""", {"queue": queue})}


@pytest.fixture
def every_state(db):
    """Jobs of one queue in every state, and neighbours that must not be counted."""
    db.enqueue(4, run_at="2099-01-01 00:00+00")
    db.enqueue(60, priority=3)
    claim = db.claim(50)
    db.complete(claim[:20])
    db.finish(claim[20:27], RETRY, delay_ms=DAY_MS)
    db.finish(claim[27:32], FAIL)
    db.finish(claim[32:38], CANCEL)
    db.finish(claim[38:41], SNOOZE, DAY_MS)
    db.finish(claim[41:43], RELEASE)
    db.enqueue(3, queue="q2")
    db.enqueue(3, queue="Q")
    return db


COUNTS = {"scheduled": 7, "available": 12, "running": 7, "retryable": 7, "completed": 20, "failed": 5, "cancelled": 6}


def test_every_state_is_counted(every_state):
    assert every_state.counts() == COUNTS == brute_force(every_state)
    assert every_state.counts("q2") == every_state.counts("Q") == {"available": 3}
    assert every_state.counts("nobody") == {}


def test_counts_see_uncommitted_work_of_nobody_else(every_state):
    other = every_state.session()
    other.begin()
    claim = other.claim()
    other.complete(claim[:3])
    other.enqueue(5)
    assert every_state.counts() == COUNTS
    other.rollback()
    assert every_state.counts() == COUNTS


def test_counts_go_on_across_prune(every_state):
    db = every_state
    claim = db.claim()
    db.complete(claim)
    counts = COUNTS | {"completed": 20 + len(claim)}
    del counts["available"]
    seen = []
    for _ in range(6):
        db.lap()
        seen.append(db.counts())
        assert seen[-1] == brute_force(db)
    assert all(step == counts for step in seen)


def test_counts_after_everything_was_pruned(db):
    for priority in (1, 4):
        db.enqueue(10, priority=priority)
    claim = db.claim()
    db.complete(claim[:9])
    db.finish(claim[9:15], FAIL)
    db.finish(claim[15:], CANCEL)
    for _ in range(6):
        db.maintain()
    assert db.count("terminal_jobs") == 0
    assert db.counts() == {"completed": 9, "failed": 6, "cancelled": 5} == brute_force(db)
    db.enqueue(3)
    db.complete(db.claim())
    for _ in range(6):
        db.maintain()
    assert db.counts() == {"completed": 12, "failed": 6, "cancelled": 5}


def test_trap_44_counting_function_is_volatile(db):
    assert db.value("SELECT provolatile FROM pg_proc WHERE oid = 'awa.queue_counts_exact'::regproc") == "v"


@pytest.mark.parametrize("outcome", ["COMMIT", "ROLLBACK"])
def test_trap_44_count_that_overlaps_a_prune(db, outcome):
    """It waits for the prune it meets, and then sees it whole or not at all."""
    db.enqueue(10)
    db.work()
    for _ in range(3):
        db.maintain(closed_ms=DAY_MS, retention_ms=DAY_MS)
    pruner, reader = db.session(), db.session()
    reader.counts()                     # its plans are cached: the locks come before the snapshot then, too
    pruner.begin()
    assert pruner.prune() >= 1
    with db.blocked(reader, reader.counts) as counting:
        pruner.rows(outcome)
        assert counting.result(20) == {"completed": 10}
    assert db.counts() == {"completed": 10}


def test_trap_44_count_inside_an_older_statement(db):
    """Called by a function whose own snapshot is older than a prune."""
    db.rows("CREATE FUNCTION public.counted_late(key bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$ BEGIN"
            " PERFORM pg_advisory_xact_lock(key); RETURN (SELECT completed FROM awa.queue_counts_exact('q')); END $$")
    db.enqueue(10)
    db.work()
    for _ in range(3):
        db.maintain(closed_ms=DAY_MS, retention_ms=DAY_MS)
    gate, reader = db.session(), db.session()
    gate.rows("SELECT pg_advisory_lock(42)")
    with db.blocked(reader, reader.value, "SELECT public.counted_late(42)") as counting:
        assert sum(db.prune() for _ in range(3)) >= 1
        assert db.count("terminal_jobs") == 0
        gate.rows("SELECT pg_advisory_unlock(42)")
        assert counting.result(20) == 10


def test_counts_during_random_life(db):
    for n in range(12):
        db.enqueue(7, priority=n % 4 + 1)
        claim = db.claim(9)
        db.complete(claim[::2])
        db.finish(claim[1::2], (RETRY, FAIL, CANCEL, SNOOZE, RELEASE)[n % 5], DAY_MS if n % 5 in (0, 3) else None)
        if n % 3 == 0:
            db.maintain()
        assert db.counts() == brute_force(db)
    assert sum(db.counts().values()) == 12 * 7
