"""Promotion: due jobs become available once, none is forgotten, and the cost does not grow with what was promoted."""
import datetime
import re

import pytest

from engine import DONE, RETRY

FUTURE = datetime.datetime(2099, 1, 1, tzinfo=datetime.timezone.utc)


def make_due(session, job_ids):
    session.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp(), xid = pg_current_xact_id() WHERE job_id = ANY (%s)", (job_ids,))


def enqueue_due(session, count=1, **fields):
    """Deferred jobs whose time has come, written by the session's own transaction."""
    ids = session.enqueue(count, run_at=FUTURE, **fields)
    make_due(session, ids)
    return ids


def deferred_ids(db):
    return sorted(row[0] for row in db.rows("SELECT job_id FROM awa.deferred_jobs"))


def test_due_jobs_are_moved_and_others_stay(db):
    later = db.enqueue(3, run_at=FUTURE)
    due = enqueue_due(db, 3)
    assert db.counts() == {"scheduled": 6}
    assert db.promote() == 3
    assert db.promote() == 0
    assert db.claim().ids == due
    assert deferred_ids(db) == later


def test_everything_about_a_job_is_kept(db):
    ids = db.enqueue(args="[1e400]", metadata='{"z": 1}', kind="x", priority=3, max_attempts=4, traceparent="t", ordering_key="o")
    [before] = db.claim()
    db.finish([before], RETRY, delay_ms=1, error="no")
    created, payload = db.rows("SELECT created_at, payload FROM awa.deferred_jobs")[0]
    make_due(db, ids)
    assert db.promote() == 1
    [after] = db.claim()
    assert (after.job_id, after.args, after.metadata, after.kind, after.priority, after.max_attempts, after.traceparent, after.attempt,
            after.run_lease, after.created_at) == (ids[0], "[1e400]", '{"z": 1}', "x", 3, 4, "t", 2, 2, created)
    assert db.rows("SELECT ordering_key, payload FROM awa.ready_entries WHERE run_lease = 1") == [("o", payload)]


@pytest.mark.parametrize("limit", [1, 3, 9, 10, 11])
def test_limit_leaves_the_rest_for_the_next_call(db, limit):
    """All due at the same microsecond, so the position has to tell them apart by job."""
    ids = enqueue_due(db, 10)
    moved = []
    while count := db.promote(limit):
        moved.append(count)
    assert moved == [limit] * (10 // limit) + [10 % limit] * bool(10 % limit)
    assert sorted(db.claim().ids) == ids


def test_late_commit_behind_the_position_is_found(db):
    late, too_late = db.session(), db.session()
    late.begin()
    late_ids = enqueue_due(late, 3)
    too_late.begin()
    too_late_ids = enqueue_due(too_late, 2)
    for _ in range(3):
        due = enqueue_due(db, 2)
        assert db.promote() == 2
        assert db.claim().ids == due
    late.commit()
    assert db.promote() == 3
    assert db.claim().ids == late_ids
    too_late.rollback()
    assert db.promote() == 0
    assert deferred_ids(db) == []


@pytest.mark.parametrize("limit", [2, 3, 1000])
def test_many_late_rows_with_a_small_limit(db, limit):
    sessions = [db.session() for _ in range(4)]
    ids = []
    for session in sessions:
        session.begin()
        ids += enqueue_due(session, 3)
    enqueue_due(db, 1, queue="other")
    db.promote()
    for session in sessions:
        session.commit()
    ids += enqueue_due(db, 3)
    for _ in range(20):
        db.promote(limit)
    assert sorted(db.work()) == sorted(ids)


def test_row_due_in_the_past_committed_after_a_pass(db):
    """A retry whose due time lies before the position, written by a transaction that began after it."""
    enqueue_due(db, 1)
    db.promote()
    ids = db.enqueue(2, run_at=FUTURE)
    db.rows("UPDATE awa.deferred_jobs SET due_at = '2001-01-01', xid = pg_current_xact_id()")
    assert db.promote() == 2
    assert sorted(db.claim().ids)[-2:] == ids


def test_locked_row_is_stepped_over_and_moved_later(db):
    ids = enqueue_due(db, 5)
    holder = db.session()
    holder.begin()
    holder.rows("SELECT FROM awa.deferred_jobs WHERE job_id = %s FOR UPDATE", (ids[2],))
    assert db.promote() == 4
    more = enqueue_due(db, 2)
    assert db.promote() == 2
    assert sorted(db.claim().ids) == ids[:2] + ids[3:] + more
    holder.commit()
    assert db.promote() == 1
    assert db.claim().ids == [ids[2]]


@pytest.mark.parametrize("locked", [63, 64, 65, 130, 1100])
def test_many_locked_rows_do_not_stop_the_others(db, locked):
    ids = enqueue_due(db, locked + 10)
    holder = db.session()
    holder.begin()
    holder.rows("SELECT FROM awa.deferred_jobs WHERE job_id = ANY (%s) FOR UPDATE", (ids[:locked],))
    for _ in range(4):
        db.promote()
    assert sorted(db.claim().ids) == ids[locked:]
    more = enqueue_due(db, 3)
    for _ in range(4):
        db.promote()
    assert db.claim().ids == more, "rows that come later are not held up either"
    holder.commit()
    for _ in range(4):
        db.promote()
    assert sorted(db.work()) == ids[:locked]


@pytest.mark.parametrize("limit", [1000, 7])
def test_trap_18_bad_rows_block_nobody_and_are_visible(db, limit):
    """Rows that no slot takes, more of them than a pass remembers, among others; within a limit or over many of them."""
    db.rows("DO $do$ BEGIN FOR s IN 0 .. 15 LOOP"
            " EXECUTE format('ALTER TABLE awa.%I ADD CONSTRAINT whole CHECK (kind <> ''bad'')', 'ready_entries_' || to_char(s, 'FM00'));"
            " END LOOP; END $do$")
    good, bad = [], []
    for _ in range(35):
        good += enqueue_due(db, 2)
        bad += enqueue_due(db, 2, kind="bad")
    moved = 0
    for _ in range(140 // limit + 1):
        moved += db.promote(limit)
    assert moved == len(good)
    assert sorted(db.claim().ids) == good
    assert deferred_ids(db) == bad
    assert set(re.findall(r"WARNING:  job (\d+) could not be promoted: new row .* violates check constraint", "".join(db.connection.notices))) <= {*map(str, bad)}
    assert f"job {bad[-1]} could not be promoted" in "".join(db.connection.notices)
    late = enqueue_due(db)
    assert db.promote(1) == 1, "for a while they are nobody's business"
    assert db.claim().ids == late
    db.rows("DO $do$ BEGIN FOR s IN 0 .. 15 LOOP"
            " EXECUTE format('ALTER TABLE awa.%I DROP CONSTRAINT whole', 'ready_entries_' || to_char(s, 'FM00')); END LOOP; END $do$")
    make_due(db, bad)
    assert db.promote() == len(bad)
    assert sorted(db.claim().ids) == bad


def test_locked_row_that_is_deleted_is_forgotten(db):
    ids = enqueue_due(db, 2)
    holder = db.session()
    holder.begin()
    holder.rows("DELETE FROM awa.deferred_jobs WHERE job_id = %s", (ids[0],))
    assert db.promote() == 1
    holder.commit()
    assert [db.promote(), db.promote()] == [0, 0]
    assert db.claim().ids == ids[1:]
    enqueue_due(db)
    assert db.promote() == 1
    assert db.value("SELECT skipped FROM awa.promotion_states ORDER BY pass_no DESC LIMIT 1") == []


def test_promotion_that_rolls_back_changes_nothing(db):
    ids = enqueue_due(db, 4)
    promoter = db.session()
    promoter.begin()
    assert promoter.promote() == 4
    assert db.promote() == 0, "another one is at it"
    promoter.rollback()
    assert db.promote() == 4
    assert sorted(db.claim().ids) == ids


def test_promoted_jobs_are_found_by_claims_in_any_slot(db):
    ids = []
    for _ in range(3):
        ids += enqueue_due(db, 2)
        db.promote()
        db.rotate()
    assert sorted(db.work()) == ids


def test_retry_comes_back_by_itself(db):
    db.enqueue(2)
    claim = db.claim()
    assert db.finish(claim, RETRY, delay_ms=1) == [DONE] * 2
    db.rows("SELECT pg_sleep(0.002)")
    assert db.promote() == 2
    assert {job.attempt for job in db.claim()} == {2}


PASS = "SELECT awa.promote_due(1000)"


def test_cost_does_not_grow_with_promoted_jobs_under_a_pin(db):
    """Nothing can be vacuumed while a snapshot is pinned, so a scan from the beginning meets every dead row."""
    def promote_many(passes):
        for _ in range(passes):
            enqueue_due(db, 500)
            assert db.promote() == 500
    with db.pinned():
        promote_many(2)         # the indexes have got their second level
        enqueue_due(db, 10)
        first = db.cost(PASS)
        promote_many(6)
        enqueue_due(db, 10)
        last = db.cost(PASS)
    print(f"promotion of 10: {first}, after 3,000 under a pin: {last}")
    assert last.buffers <= first.buffers + 60


def test_cost_does_not_grow_with_passes_under_a_pin(db):
    with db.pinned():
        for _ in range(2):
            enqueue_due(db, 1)
            first = db.cost(PASS)
        for _ in range(150):
            db.enqueue(run_at=FUTURE)
            db.promote()
        enqueue_due(db, 1)
        last = db.cost(PASS)
        idle = db.cost(PASS)
    print(f"promotion of 1: {first}, after 150 passes under a pin: {last}, idle: {idle}")
    assert last.buffers <= first.buffers + 60
    assert idle.buffers <= 60


def test_cost_does_not_grow_with_what_is_not_due(db):
    db.enqueue(run_at=FUTURE)
    db.promote()
    enqueue_due(db, 1)
    before = db.cost(PASS)
    db.rows("SELECT count(*) FROM awa.enqueue_many('q', 'k', array_fill('{}'::json, ARRAY[20000]), run_at => %s)", (FUTURE,))
    db.promote()
    enqueue_due(db, 1)
    after = db.cost(PASS)
    assert after.buffers <= before.buffers + 40


def test_idle_promotion_writes_nothing(db):
    db.enqueue(3, run_at=FUTURE)
    db.promote()
    db.promote()
    assert db.cost(PASS).wal_bytes == 0
