"""Cancel and look-up by id, in every state and beside everything else that ends a job."""
import pytest

from engine import (ALREADY_DONE, BUSY, CANCEL, COMPLETE, DAY_MS, DONE, EMPTY, FAIL, NOT_FOUND, RELEASE, RETRY, SNOOZE, STALE, Session)

FUTURE = "2099-01-01 00:00+00"


def state_of(db, job_id):
    rows = db.rows("SELECT state::text FROM awa.get_job(%s)", (job_id,))
    return rows[0][0] if rows else None


@pytest.mark.parametrize("priorities", [(2,), (1, 4), (4, 1)])
def test_trap_01_wedged_lane_is_still_claimable(db, priorities):
    app = db.session()
    for priority in priorities:
        app.begin()
        app.enqueue(priority=priority)
        app.rollback()
        cancelled = db.enqueue(priority=priority)
        assert db.cancel(cancelled) == {cancelled[0]: DONE}
    # A cancelled head looks like the oldest for ever: it must not draw every claim to its lane.
    db.rows("UPDATE awa.ready_entries_00 SET created_at = created_at - interval '1 hour'")
    for turn in range(3):
        more = [job_id for priority in sorted(priorities) for job_id in db.enqueue(3, priority=priority)]
        claimed = [db.claim(1).ids[0] for _ in more]
        assert (claimed if turn else sorted(claimed)) == more, "a buried head may mislead once"
        assert db.claim().end == EMPTY


def test_trap_01_aborted_enqueues_behind_a_foreign_transaction(cluster, db):
    cluster.execute("CREATE TABLE IF NOT EXISTS open_work (x int)", database="awa")
    query = "SELECT * FROM awa.claim(1, 2, '{q}', 10, 1000000)"
    for _ in range(3):
        db.enqueue(10)
        before = db.cost(query)
    foreign = Session(cluster.superuser_url("awa"))
    foreign.begin()
    foreign.rows("INSERT INTO open_work VALUES (1)")
    for _ in range(20):
        db.rows("BEGIN; SELECT awa.enqueue('q', 'k'); ROLLBACK;" * 100)
    costs = []
    for _ in range(3):
        db.enqueue(10)
        costs.append(db.cost(query))
    print(f"claim before {before}, after 2,000 aborted enqueues: {costs}")
    assert max(cost.wal_bytes for cost in costs) <= before.wal_bytes + 100
    assert costs[-1].buffers <= before.buffers + 30
    foreign.close()


def test_trap_02_cancel_of_a_job_that_is_being_claimed(db):
    ids = db.enqueue(3)
    claimer, operator = db.session(), db.session()
    claimer.begin()
    claim = claimer.claim(2)
    with db.blocked(operator, operator.cancel, ids) as cancelling:
        claimer.commit()
        statuses = cancelling.result(20)
    assert statuses[ids[2]] == DONE
    assert {statuses[ids[0]], statuses[ids[1]]} <= {DONE, BUSY}
    assert set(db.cancel(ids).values()) <= {DONE, ALREADY_DONE}
    assert db.complete(claim) == [STALE] * 2
    assert db.claim().ids == []
    assert db.counts() == {"cancelled": 3}


@pytest.mark.parametrize("then", ["commit", "rollback"])
def test_trap_53_cancel_in_an_open_transaction(db, then):
    ids = db.enqueue(5)
    operator = db.session()
    operator.begin()
    assert operator.cancel(ids[1:3]) == {ids[1]: DONE, ids[2]: DONE}
    assert db.claim().ids == [ids[0], *ids[3:]]
    more = db.enqueue(2)
    assert db.claim().ids == more
    getattr(operator, then)()
    assert db.claim().ids == ([] if then == "commit" else ids[1:3])
    assert db.counts() == ({"running": 5, "cancelled": 2} if then == "commit" else {"running": 7})


def test_stepped_over_jobs_keep_within_the_byte_budget(db):
    budget = 3 << 20
    ids = [db.value("SELECT awa.enqueue('q', 'kind', to_json(repeat('x', 900000)))") for _ in range(5)]
    operator = db.session()
    operator.begin()
    operator.cancel(ids)
    for _ in ids:  # each claim steps over no more than its budget: together over all of them
        assert db.claim(max_bytes=budget).ids == []
    operator.rollback()
    handed_out = []
    while len(handed_out) < len(ids):
        claim = db.claim(max_bytes=budget)
        assert 0 < len(claim.ids) <= budget // 900000
        handed_out += claim.ids
    assert handed_out == ids


@pytest.mark.parametrize("cancelled", [63, 64, 65, 200])
def test_open_cancel_of_many_jobs_loses_nothing(db, cancelled):
    """More than a lane can remember to step over: it may stop there, but must go on where it stopped."""
    ids = db.enqueue(cancelled + 5)
    operator = db.session()
    operator.begin()
    operator.cancel(ids[:cancelled])
    before = [job_id for _ in range(3) for job_id in db.claim().ids]
    if cancelled < 64:
        assert before == ids[cancelled:]
    operator.rollback()
    assert sorted(before + db.work()) == ids


def test_open_cancel_leaves_other_lanes_alone(db):
    ids = db.enqueue(100)
    operator = db.session()
    operator.begin()
    operator.cancel(ids)
    other = db.enqueue(3, priority=3) + db.enqueue(3, queue="r")
    assert sorted(set(db.claim(queues=["q", "r"]).ids) - set(ids)) == other


def test_cancel_in_every_state(db):
    ids = db.enqueue(7)
    scheduled = db.enqueue(run_at=FUTURE)[0]
    claim = db.claim(6)
    outcomes = dict(zip(ids, (COMPLETE, RETRY, SNOOZE, FAIL, CANCEL)))
    for job, outcome in zip(claim, outcomes.values()):
        assert db.finish([job], outcome, DAY_MS if outcome in (RETRY, SNOOZE) else None) == [DONE]
    statuses = db.cancel([*ids, scheduled, 10 ** 15, ids[0]])
    assert statuses == {ids[0]: STALE, ids[1]: DONE, ids[2]: DONE, ids[3]: STALE, ids[4]: ALREADY_DONE, ids[5]: DONE, ids[6]: DONE,
                        scheduled: DONE, 10 ** 15: NOT_FOUND}
    assert db.counts() == {"completed": 1, "failed": 1, "cancelled": 6}
    assert [state_of(db, job_id) for job_id in (*ids, scheduled)] == ["completed", "cancelled", "cancelled", "failed"] + ["cancelled"] * 4
    again = db.cancel([*ids, scheduled])
    assert again == {job_id: STALE if job_id in (ids[0], ids[3]) else ALREADY_DONE for job_id in (*ids, scheduled)}
    assert db.complete(claim[5:6]) == [STALE]
    assert db.claim().ids == []


def test_cancelled_jobs_keep_their_body(db):
    body = {"args": '{"b": [1e400], "a": 1}', "metadata": '{"z": 1}', "kind": "x", "priority": 3, "max_attempts": 7, "traceparent": "t",
            "ordering_key": "o"}
    available, running = db.enqueue(1, **body)[0], db.enqueue(1, **body | {"priority": 1})[0]
    scheduled = db.enqueue(1, **body, run_at=FUTURE)[0]
    assert db.claim(1).ids == [running]
    assert set(db.cancel([available, running, scheduled]).values()) == {DONE}
    rows = db.rows("SELECT job_id, args::text, metadata::text, kind, max_attempts, traceparent, ordering_key, state::text FROM awa.terminal_jobs")
    assert sorted(rows) == [(job_id, body["args"], body["metadata"], "x", 7, "t", "o", "cancelled") for job_id in (available, running, scheduled)]


def test_cancelled_rows_do_not_keep_their_slot(db):
    ids = db.enqueue(10)
    db.cancel(ids[:5])
    assert db.work() == ids[5:]
    for _ in range(6):
        db.lap()
    assert db.count("ready_tombstones") == 0
    assert db.counts() == {"completed": 5, "cancelled": 5}


def test_cancel_of_rows_in_old_slots(db):
    ids = db.enqueue(4)
    for _ in range(5):
        db.lap()
    assert set(db.cancel(ids[:2]).values()) == {DONE}
    assert db.claim().ids == ids[2:]
    assert set(db.cancel(ids[2:]).values()) == {DONE}
    for _ in range(6):
        db.lap()
    assert db.counts() == {"cancelled": 4}


@pytest.mark.parametrize("outcome", [RETRY, SNOOZE, RELEASE])
def test_cancel_after_earlier_attempts(db, outcome):
    [job_id] = db.enqueue(args='"mine"')
    db.finish(db.claim(), outcome, DAY_MS if outcome != RELEASE else None)
    db.rotate()
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    db.promote()
    assert db.cancel([job_id]) == {job_id: DONE}
    assert db.claim().ids == []
    assert db.rows("SELECT state::text, args::text FROM awa.get_job(%s)", (job_id,)) == [("cancelled", '"mine"')]
    assert db.counts() == {"cancelled": 1}


def test_get_job_follows_a_job_through_its_life(db):
    [job_id] = db.enqueue(args="[1]", run_at=FUTURE, priority=3, metadata='{"a": 1}')
    def look():
        return db.rows("SELECT state::text, attempt, run_lease, args::text, metadata::text, priority, queue FROM awa.get_job(%s)", (job_id,))[0]
    same = ("[1]", '{"a": 1}', 3, "q")
    assert look() == ("scheduled", 0, 0, *same)
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    db.promote()
    assert look() == ("available", 0, 0, *same)
    claim = db.claim()
    assert look() == ("running", 1, 1, *same)
    db.finish(claim, RETRY, DAY_MS)
    assert look() == ("retryable", 1, 1, *same)
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    db.promote()
    assert look() == ("available", 1, 1, *same)
    claim = db.claim()
    assert look() == ("running", 2, 2, *same)
    db.complete(claim)
    assert look() == ("completed", 2, 2, *same)
    for _ in range(5):
        db.lap()
    assert state_of(db, job_id) is None
    assert state_of(db, 10 ** 15) is None


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_trap_52_cancel_under_an_older_snapshot_is_refused(db, level):
    db.begin(level)
    with pytest.raises(Exception, match=f"cancel_jobs must run under READ COMMITTED, this transaction is {level}"):
        db.cancel([1])
    db.rollback()


class Gate:
    """Whoever calls a function of the engine is stopped behind it, once it has its answer, until the gate opens."""

    def __init__(self, db, function, arguments, result):
        names = ", ".join(f"${i}" for i in range(1, arguments.count(",") + 2))
        db.rows(f"ALTER FUNCTION awa.{function}({arguments}) RENAME TO {function}_itself")
        db.rows(f"CREATE FUNCTION awa.{function}({arguments}) RETURNS awa.{result} LANGUAGE plpgsql AS $$ DECLARE v_answer awa.{result} := awa.{function}_itself({names});"
                " BEGIN PERFORM pg_advisory_xact_lock_shared(50); RETURN v_answer; END $$")
        self.db = db
        self.keeper = db.session()

    def during(self, call, happens):
        """The answer of a call in a session of its own, while something happens behind the gate."""
        caller = self.db.session()
        self.keeper.rows("SELECT pg_advisory_lock(50)")
        with self.db.blocked(caller, call, caller) as answer:
            happens()
            self.keeper.rows("SELECT pg_advisory_unlock(50)")
            return answer.result()


@pytest.mark.parametrize("outcome", [RETRY, SNOOZE, RELEASE])
def test_attempt_that_ends_under_a_cancel_is_not_the_end_of_its_job(db, outcome):
    [job_id] = db.enqueue()
    claim = db.claim()
    gate = Gate(db, "locate_job", "bigint", "job_place")
    answer = gate.during(lambda caller: caller.cancel([job_id]), lambda: db.finish(claim, outcome, DAY_MS if outcome != RELEASE else None))
    assert answer == {job_id: BUSY}
    assert db.cancel([job_id]) == {job_id: DONE}
    assert db.counts() == {"cancelled": 1}


@pytest.mark.parametrize("outcome, state", [(RETRY, "retryable"), (RELEASE, "available"), (FAIL, "failed"), (COMPLETE, "completed")])
@pytest.mark.parametrize("function, arguments", [("newest_ready_row", "int, bigint"), ("terminal_place", "int, bigint, int")])
def test_job_that_moves_while_it_is_looked_for_is_found(db, function, arguments, outcome, state):
    [job_id] = db.enqueue()
    claim = db.claim()
    gate = Gate(db, function, arguments, "job_place")
    assert gate.during(lambda caller: state_of(caller, job_id), lambda: db.finish(claim, outcome, DAY_MS if outcome == RETRY else None)) == state


def test_job_that_becomes_due_while_it_is_looked_at_is_seen_whole(db):
    [job_id] = db.enqueue(args='"mine"', run_at=FUTURE)
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    gate = Gate(db, "locate_job", "bigint", "job_place")
    query = "SELECT state::text, queue, args::text, due_at FROM awa.get_job(%s)"
    assert gate.during(lambda caller: caller.rows(query, (job_id,)), db.promote) == [("available", "q", '"mine"', None)]


def test_old_body_of_a_job_that_is_gone_says_nothing(db):
    """Its second body was pruned with its end, the first is kept by a batch-mate that goes on running."""
    db.enqueue(2)
    [retried, _running] = db.claim()
    db.finish([retried], RETRY, DAY_MS)
    db.rotate()
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    db.promote()
    assert db.complete(db.claim()) == [DONE]
    assert state_of(db, retried.job_id) == "completed"
    for _ in range(5):
        db.lap()
    assert db.counts() == {"running": 1, "completed": 1}
    assert state_of(db, retried.job_id) is None
    assert db.cancel([retried.job_id]) == {retried.job_id: NOT_FOUND}


@pytest.mark.parametrize("outcome", [None, RETRY, SNOOZE])
def test_cancelled_job_is_found_in_another_slot_than_its_body(db, outcome):
    [job_id] = db.enqueue(args='"mine"')
    if outcome is not None:
        db.finish(db.claim(), outcome, DAY_MS)
    db.rotate()
    assert db.cancel([job_id]) == {job_id: DONE}
    db.connection.notices.clear()
    assert db.rows("SELECT state::text, args::text FROM awa.get_job(%s)", (job_id,)) == [("cancelled", '"mine"')]
    assert db.connection.notices == [], "nothing is damaged"
    assert db.cancel([job_id]) == {job_id: ALREADY_DONE}
