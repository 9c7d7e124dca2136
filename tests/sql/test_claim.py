"""Claim: each committed job once, in the promised order, whatever else is going on."""
import psycopg2
import pytest

from engine import BUSY, DONE, EMPTY, RETRY, Item, ids_of


def bury(session, job_ids):
    """What a cancel of ready jobs leaves behind for a claim: tombstones, wherever the rows lie."""
    for slot, in session.rows("SELECT DISTINCT ready_slot FROM awa.ready_entries WHERE job_id = ANY (%s)", (job_ids,)):
        session.rows(f"INSERT INTO awa.ready_tombstones_{slot:02} SELECT lane_id, xid, job_id, clock_timestamp()"
                     f" FROM awa.ready_entries_{slot:02} WHERE job_id = ANY (%s)", (job_ids,))


def backdate(session, job_ids, seconds):
    """Makes ready jobs look enqueued that long ago."""
    for slot, in session.rows("SELECT DISTINCT ready_slot FROM awa.ready_entries WHERE job_id = ANY (%s)", (job_ids,)):
        session.rows(f"UPDATE awa.ready_entries_{slot:02} SET created_at = clock_timestamp() - %s * interval '1 s'"
                     " WHERE job_id = ANY (%s)", (seconds, job_ids))


# --- whose job

@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_trap_03_database_default_isolation_cannot_double_claim(db, level):
    ids = db.enqueue(10)
    db.rows(f"ALTER DATABASE {db.name} SET default_transaction_isolation = '{level}'")
    for claimer in (db.session(), db.session()):
        with pytest.raises(psycopg2.errors.InvalidTransactionState) as refusal:
            claimer.claim()
        assert refusal.value.diag.message_primary == f"claim must run under READ COMMITTED, this transaction is {level.upper()}"
        assert "READ COMMITTED" in refusal.value.diag.message_hint
    assert db.claim().ids == ids


def test_two_claimers_take_turns(queue_db):
    ids = queue_db.enqueue(10)
    first, second = queue_db.session(), queue_db.session()
    first.begin()
    taken = first.claim(4)
    refused = second.claim()
    assert (refused.ids, refused.end) == ([], BUSY)
    first.commit()
    assert taken.ids + second.claim().ids == ids


@pytest.mark.parametrize("end", ["rollback", "die"])
def test_claim_that_does_not_commit_changes_nothing(queue_db, end):
    ids = queue_db.enqueue(10)
    claimer = queue_db.session()
    claimer.begin()
    assert claimer.claim(4).ids == ids[:4]
    if end == "die":
        queue_db.value("SELECT pg_terminate_backend(%s, 5000)", (claimer.pid,))
    else:
        claimer.rollback()
    claim = queue_db.claim()
    assert (claim.ids, claim.end) == (ids, EMPTY)


def test_trap_06_busy_lane_leads_to_the_next(db):
    db.enqueue(5, priority=1)
    other_lane = db.enqueue(5, priority=3)
    other_queue = db.enqueue(5, queue="r")
    holder = db.session()
    holder.begin()
    holder.claim(1)
    claim = db.claim(queues=["q", "r"])
    assert (claim.ids, claim.end) == (other_lane + other_queue, BUSY)


def test_trap_06_buried_head_leads_to_the_next(db):
    head = db.enqueue(50, priority=1)
    bury(db, head)
    behind = db.enqueue(1, priority=1) + db.enqueue(1, priority=4) + db.enqueue(1, queue="r")
    assert sorted(db.claim(queues=["q", "r"]).ids) == behind
    assert db.claim(queues=["q", "r"]).end == EMPTY


# --- order

def test_fifo_and_fields(queue_db):
    ids = queue_db.enqueue(7, kind="mail", max_attempts=3)
    first, second = queue_db.claim(3), queue_db.claim()
    assert (first.ids, first.end) == (ids[:3], None)
    assert (second.ids, second.end) == (ids[3:], EMPTY)
    assert {(job.kind, job.max_attempts, job.attempt, job.run_lease, job.priority, job.queue) for job in first + second} == {
        ("mail", 3, 1, 1, 2, queue_db.queue)}


def test_optional_fields_stay_with_their_job(queue_db):
    ids, refused = queue_db.enqueue_items([Item(args="1"), Item(args="2", metadata='{"b": 1}'), Item(args="3", traceparent="t"),
                                     Item(args="4")])
    assert refused == {}
    assert [(job.args, job.metadata, job.traceparent) for job in queue_db.claim(3) + queue_db.claim(3)] == [
        ("1", None, None), ("2", '{"b": 1}', None), ("3", None, "t"), ("4", None, None)]


def test_queues_in_listed_order(db):
    a, b, c = (db.enqueue(2, queue=queue) for queue in "abc")
    assert db.claim(5, ["c", "a", "b"]).ids == c + a + b[:1]
    assert db.claim(5, ["c", "a", "b"]).ids == b[1:]


def test_best_priority_first(queue_db):
    by_priority = {priority: queue_db.enqueue(2, priority=priority) for priority in (4, 3, 2, 1)}
    assert queue_db.claim(5).ids == by_priority[1] + by_priority[2] + by_priority[3][:1]
    assert [(job.job_id, job.priority) for job in queue_db.claim()] == [
        (by_priority[3][1], 3), (by_priority[4][0], 4), (by_priority[4][1], 4)]


@pytest.mark.parametrize("waited_s, other, first", [(59, 3, "other"), (61, 3, "aged"), (119, 2, "other"), (121, 2, "aged"),
                                                    (179, 1, "other"), (181, 1, "aged")])
def test_trap_04_priority_ages_one_step_a_minute(queue_db, waited_s, other, first):
    aged = queue_db.enqueue(priority=4)
    backdate(queue_db, aged, waited_s)
    fresh = queue_db.enqueue(priority=other)
    [job] = queue_db.claim(1)
    assert [job.job_id] == (aged if first == "aged" else fresh)
    assert job.priority == (4 if first == "aged" else other)


def test_trap_04_aged_job_keeps_its_args_and_its_priority(db):
    [aged] = db.enqueue(priority=4, args='"aged"', metadata='{"m": 4}')
    backdate(db, [aged], 600)
    db.enqueue(3, priority=1, args='"fresh"')
    for attempt in (1, 2, 3):
        [job] = db.claim(1)
        assert (job.job_id, job.args, job.metadata, job.priority, job.attempt) == (aged, '"aged"', '{"m": 4}', 4, attempt)
        assert db.finish([job], RETRY, delay_ms=1, error="no") == [DONE]
        assert db.rows("SELECT args::text, awa.lane_priority(lane_id) FROM awa.deferred_jobs") == [('"aged"', 4)]
        db.rows("SELECT pg_sleep(0.002)")
        assert db.promote() == 1
        db.rows("UPDATE awa.ready_entries_00 SET available_at = created_at WHERE run_lease > 0")  # aged again
    [job] = db.claim(1)
    db.complete([job])
    assert db.rows("SELECT job_id, args::text, priority, attempt FROM awa.terminal_jobs") == [(aged, '"aged"', 4, 4)]


def test_a_job_ages_from_when_it_became_available(db):
    """One scheduled long ago has not waited since: it must not overtake everybody at its promotion."""
    db.enqueue(priority=4, run_at="2099-01-01 00:00+00")
    db.rows("UPDATE awa.deferred_jobs SET created_at = created_at - interval '1 day', due_at = clock_timestamp()")
    assert db.promote() == 1
    fresh = db.enqueue(priority=2)
    assert db.claim(1).ids == fresh


def test_lane_without_a_visible_head_does_not_jump_the_queue(db):
    buried = db.enqueue(priority=4)
    bury(db, buried)
    low = db.enqueue(priority=4)
    high = db.enqueue(priority=2)
    assert db.claim(1).ids == high
    assert db.claim(1).ids == low


def test_shards_keep_a_key_together_and_are_all_claimed(db):
    db.rows("SELECT awa.configure_queue('q', 8)")
    keys = [f"key-{n % 20}" for n in range(200)]
    ids, refused = db.enqueue_items([Item(args=f'"{key}"', ordering_key=key) for key in keys])
    assert refused == {}
    lane_of = dict(db.rows("SELECT args::text, array_agg(DISTINCT lane_id) FROM awa.ready_entries GROUP BY 1"))
    assert len({tuple(lanes) for lanes in lane_of.values()}) > 3
    assert {len(lanes) for lanes in lane_of.values()} == {1}
    claimed = []
    while claim := db.claim(7):
        claimed += claim
    assert sorted(ids_of(claimed)) == ids
    by_id = dict(zip(ids, keys))
    for key in set(keys):
        mine = [job_id for job_id in ids_of(claimed) if by_id[job_id] == key]
        assert mine == sorted(mine)


def test_shard_stays_through_a_retry(db):
    db.rows("SELECT awa.configure_queue('q', 64)")
    db.enqueue(ordering_key="a")
    lane = db.value("SELECT lane_id FROM awa.ready_entries")
    db.rows("SELECT awa.configure_queue('q', 1)")
    db.finish(db.claim(), RETRY, delay_ms=1)
    db.rows("SELECT pg_sleep(0.002)")
    db.promote()
    assert db.rows("SELECT DISTINCT lane_id, ordering_key FROM awa.ready_entries") == [(lane, "a")]


# --- how much

@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("max_bytes, taken", [(299, 2), (300, 3), (301, 3), (99, 1), (1, 1)])
def test_byte_budget(db, slots, max_bytes, taken):
    args, metadata = '"' + "x" * 88 + '"', '{"m": "x"}'
    assert len(args) + len(metadata) == 100
    ids = []
    for _ in range(slots):
        ids += db.enqueue(4, args=args, metadata=metadata)
        db.rotate()
    claim = db.claim(max_bytes=max_bytes)
    assert (claim.ids, claim.end) == (ids[:taken], BUSY)
    assert sum(size for *_, size in claim.batches) == 100 * taken
    rest = []
    while more := db.claim(max_bytes=max_bytes):
        rest += more.ids
    assert claim.ids + rest == ids


@pytest.mark.parametrize("slots", [1, 2])
def test_one_huge_job_is_handed_out_alone(db, slots):
    huge = '"' + "x" * 1_000_000 + '"'
    ids, _ = db.enqueue_items([Item(args="1"), Item(args=huge), Item(args="2")])
    if slots == 2:
        db.rotate()
        ids += db.enqueue()
    assert db.claim(max_bytes=1000).ids == ids[:1]
    assert db.claim(max_bytes=1000).ids == ids[1:2]
    assert db.claim(max_bytes=1000).ids == ids[2:]


@pytest.mark.parametrize("lanes", [[{"priority": 1}, {"priority": 2}], [{"queue": "q"}, {"queue": "r"}]])
def test_byte_budget_is_one_for_all_lanes(db, lanes):
    ids = [db.enqueue(args='"' + "x" * 598 + '"', **lane)[0] for lane in lanes]
    for job_id in ids:
        claim = db.claim(queues=["q", "r"], max_bytes=1000)
        assert claim.ids == [job_id], "at least one job a call, not a lane"
    assert db.claim(queues=["q", "r"], max_bytes=1000).end == EMPTY


def test_byte_budget_is_one_for_all_windows(queue_db):
    """The rest of one window and the next one: the second must not get its own first job for nothing."""
    first = queue_db.enqueue(2, args="1")
    assert queue_db.claim(1).ids == first[:1]
    second = queue_db.enqueue(args='"' + "x" * 2000 + '"')
    assert queue_db.claim(max_bytes=1000).ids == first[1:]
    assert queue_db.claim(max_bytes=1000).ids == second


@pytest.mark.parametrize("limit", [1, 9, 10, 11])
def test_limit_is_exact(queue_db, limit):
    ids = queue_db.enqueue(4, priority=1) + queue_db.enqueue(6)
    claim = queue_db.claim(limit)
    assert (claim.ids, claim.end) == (ids[:limit], EMPTY if limit > 10 else None)


# --- late commits and many slots

def test_trap_39_what_the_limit_cut_of_a_late_transaction_is_not_forgotten(queue_db):
    late = queue_db.session()
    late.begin()
    late_ids = late.enqueue_sql(200)
    others, claimed = [], []
    for limit in (3, 5) * 8:
        others += queue_db.enqueue(3)
        claimed += queue_db.claim(limit).ids
    late.commit()
    while (claim := queue_db.claim((3, 5)[len(claimed) % 2])) or claim.end != EMPTY:
        claimed += claim.ids
        if len(others) < 100:
            others += queue_db.enqueue(3)
    assert sorted(claimed) == sorted(late_ids + others)
    assert [job_id for job_id in claimed if job_id in late_ids] == late_ids
    assert [job_id for job_id in claimed if job_id in others] == others


def test_trap_43_late_row_in_an_older_slot_is_found(db):
    late = db.session()
    late.begin()
    late_ids = late.enqueue_sql(3)
    db.rotate()
    assert db.work() == []
    newer = db.enqueue(3)
    assert db.work() == newer
    db.rotate()
    late.commit()
    assert db.work() == late_ids


def test_places_order_a_call_over_open_slots(db):
    """Rows of one transaction order alternate between slots, so no order of batches is right."""
    sessions = [db.session() for _ in range(4)]
    for session in sessions:
        session.begin()
        session.value("SELECT pg_current_xact_id()")
    ids = {}
    for n in (1, 3):
        ids[n] = sessions[n].enqueue_sql(2)
    db.rotate()
    for n in (0, 2):
        ids[n] = sessions[n].enqueue_sql(2)
    for session in sessions:
        session.commit()
    expected = [job_id for n in range(4) for job_id in ids[n]]
    claim = db.claim(7)
    assert claim.ids == expected[:7]
    assert len(claim.batches) == 2
    assert db.claim().ids == expected[7:]


def test_places_go_on_over_lanes(db):
    first = db.enqueue(2, priority=1)
    db.rotate()
    first += db.enqueue(2, priority=1)
    second = db.enqueue(2, priority=2)
    claim = db.claim()
    assert claim.ids == first + second
    assert len(claim.batches) == 3


# --- bounded work

@pytest.mark.parametrize("live_behind", [1, 600])
def test_trap_57_tombstones_are_passed_in_bounded_steps(db, live_behind):
    examined = db.value("SELECT awa.claim_examine_limit()")
    count = 3 * examined + 10
    db.enqueue_bulk(count)
    # Like bury(), but in bulk: the trap is the number.
    db.rows("INSERT INTO awa.ready_tombstones_00 SELECT lane_id, xid, job_id, clock_timestamp() FROM awa.ready_entries_00")
    live = db.enqueue(live_behind)
    other = db.enqueue(5, queue="other")
    assert db.claim(queues=["other"]).ids == other
    claimed, calls = [], 0
    while calls < 10:
        calls += 1
        claim = db.claim()
        claimed += claim.ids
        if claim.end == EMPTY:
            break
    assert claimed == live
    assert 4 <= calls <= 6
    assert db.claim().end == EMPTY


def test_trap_57_cost_of_a_claim_among_tombstones_is_bounded(db):
    examined = db.value("SELECT awa.claim_examine_limit()")
    db.enqueue_bulk(3 * examined)
    db.rows("INSERT INTO awa.ready_tombstones_00 SELECT lane_id, xid, job_id, clock_timestamp() FROM awa.ready_entries_00")
    db.claim(queues=["warm"])
    cost = db.cost("SELECT * FROM awa.claim(1, 2, '{q}', 512, 1000000)")
    print(f"claim among tombstones: {cost}")
    assert cost.buffers < 12 * examined


def test_trap_57_open_bulk_enqueue_costs_a_claim_nothing(db):
    query = "SELECT * FROM awa.claim(1, 2, '{q}', 100, 1000000)"
    few, bulk = db.session(), db.session()
    few.begin()
    few.enqueue_bulk(10)  # so that the first measured claim does not pay for planning
    for _ in range(3):
        db.enqueue(100)
        before = db.cost(query)
    few.rollback()
    bulk.begin()
    bulk.enqueue_bulk(100_000)
    for _ in range(2):
        db.enqueue(100)
        during = db.cost(query)
        print(f"claim beside an open bulk enqueue: {before} {during}")
        assert during.buffers <= before.buffers + 50
    assert db.claim().end == EMPTY
    bulk.commit()
    assert len(db.claim()) == 512


def test_claim_after_an_enqueue_of_its_own_transaction(db):
    """What it wrote itself becomes visible with its commit, to itself too."""
    db.begin()
    ids = db.enqueue_sql(2)
    claim = db.claim()
    assert (claim.ids, claim.end) == ([], EMPTY)
    db.commit()
    assert db.claim().ids == ids


def test_idle_claim_writes_nothing(db):
    db.enqueue(5)
    db.work()
    db.claim()
    assert db.cost("SELECT * FROM awa.claim(1, 2, '{q,never-used}', 512, 1000000)").wal_bytes == 0
    before = db.count("lane_states")
    assert db.claim(queues=["q", "never-used"]).end == EMPTY
    assert db.count("lane_states") == before
