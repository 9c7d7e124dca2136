"""The clock goes back, by a correction or by a failover to a machine whose clock is behind: what was written before looks as if it came from the future.

The clock of the server cannot be set here, so everything stored is moved on by an hour instead.
"""
import datetime

import pytest

from engine import DAY_MS, RETRY


def hours_from_now(hours):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=hours)


def clock_goes_back(db, **columns):
    for table, column in columns.items():
        db.rows(f"UPDATE awa.{table} SET {column} = {column} + interval '1 hour'")


@pytest.fixture
def promoted(db):
    """A promotion has been made, by the clock of before."""
    db.enqueue(run_at=hours_from_now(48))
    assert db.promote() == 0
    clock_goes_back(db, promotion_states="due_at")
    return db


def test_nothing_is_promoted_before_its_time(promoted):
    db = promoted
    db.enqueue(2)
    db.finish(db.claim(), RETRY, delay_ms=DAY_MS // 48)     # due before the position of the walk
    scheduled = db.enqueue(2, run_at=hours_from_now(0.5))
    assert [db.promote() for _ in range(3)] == [0, 0, 0]
    assert db.counts() == {"retryable": 2, "scheduled": 3}
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp() WHERE job_id = ANY (%s)", (scheduled,))
    assert db.promote() == 2
    assert sorted(db.claim().ids) == scheduled


def test_what_commits_late_is_promoted_in_its_time(promoted):
    db = promoted
    late = db.session()
    late.begin()
    ids = late.enqueue(2, run_at=hours_from_now(0.5))
    db.enqueue(run_at=hours_from_now(48))
    assert db.promote() == 0, "a pass that sees that transaction running"
    late.commit()
    clock_goes_back(db, promotion_states="due_at")
    assert db.promote() == 0
    db.rows("UPDATE awa.deferred_jobs SET due_at = due_at - interval '0.5 hour' WHERE job_id = ANY (%s)", (ids,))
    assert db.promote() == 2


def test_what_was_locked_is_still_promoted(db):
    ids = db.enqueue(2, run_at=hours_from_now(48))
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp(), xid = pg_current_xact_id()")
    operator = db.session()
    operator.begin()
    operator.rows("SELECT FROM awa.deferred_jobs WHERE job_id = %s FOR UPDATE", (ids[0],))
    assert db.promote() == 1
    clock_goes_back(db, promotion_states="due_at")
    assert db.promote() == 0
    operator.rollback()
    assert db.promote() == 1


def test_rings_go_on_turning(db):
    db.enqueue(queue="traffic")
    db.work(queues=("traffic",))
    clock_goes_back(db, queue_ring_slots="opened_at", claim_ring_slots="opened_at")
    assert db.rotate(DAY_MS, DAY_MS)
    assert (db.generation(), db.generation("claim")) == (2, 2)
    db.enqueue(queue="traffic")
    db.work(queues=("traffic",))
    assert not db.rotate(DAY_MS, DAY_MS), "the new laps are as long as any"


def test_old_jobs_do_not_wait_behind_new_ones_of_a_lower_priority(db):
    first = db.enqueue(priority=1)
    clock_goes_back(db, ready_entries_00="created_at")
    db.enqueue(priority=4)
    assert db.claim(1).ids == first


def test_lost_proxy_is_rescued_in_its_time(db):
    db.enqueue(2)
    db.claim(2, instance=5)
    assert db.rescue(missing_ms=30_000) == 0
    clock_goes_back(db, runtime_instances="missing_since")
    assert db.rescue(missing_ms=30_000) == 0
    db.rows("UPDATE awa.runtime_instances SET missing_since = missing_since - interval '30 s'")
    assert db.rescue(missing_ms=30_000) == 2


def test_pass_that_began_in_the_future_proves_nothing(db):
    """An instance whose time was up in the middle of a pass is not settled by it."""
    db.enqueue_bulk(3001)
    db.rows("SELECT count(*) FROM generate_series(1, 1500) n CROSS JOIN LATERAL awa.claim(4, n, '{q}', 1, 1000)")
    db.claim(1, instance=5)
    db.rows("SELECT count(*) FROM generate_series(1, 1500) n CROSS JOIN LATERAL awa.claim(4, n, '{q}', 1, 1000)")
    living = db.session()
    assert living.value("SELECT awa.register_instance(4, 'living')")
    db.rows("INSERT INTO awa.runtime_instances (instance, missing_since, looked_at) VALUES (5, clock_timestamp(), NULL), (6, clock_timestamp() - interval '1 hour', clock_timestamp())")
    for _ in range(2):      # behind what instance 5 holds, whose time is not up
        assert db.rescue(missing_ms=30_000) == 0
    assert db.value("SELECT walks_all AND generation IS NOT NULL FROM awa.rescue_states")
    clock_goes_back(db, rescue_states="started_at")
    db.rows("UPDATE awa.runtime_instances SET missing_since = missing_since - interval '30 s' WHERE instance = 5")
    assert sum(db.rescue(missing_ms=30_000) for _ in range(10)) == 1
