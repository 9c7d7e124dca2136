"""Every maintenance step does a bounded piece a call, goes on where it stopped, and costs next to nothing while it cannot go on.

Costs are buffers and WAL bytes, not time.
"""
import pytest

from engine import DAY_MS, DONE, Item
from test_rings import pages

JOBS, BATCH = 200_000, 50
OPEN = 1000         # the batch of the big slot that stays open
CLOSE, CARRY, PRUNE = "SELECT * FROM awa.close_slots()", "SELECT awa.carry_lanes(100)", "SELECT * FROM awa.prune_slots(0, 0)"


def end_batches(db, which):
    """As complete_batch does it, but all at once."""
    db.rows("INSERT INTO awa.lease_claim_closure_batches_00 SELECT batch_id, clock_timestamp(), n, repeat('1', n)::bit varying"
            f" FROM awa.lease_claim_batches_00 WHERE {which}")
    db.rows("INSERT INTO awa.receipt_completion_batches_00 SELECT lane_id, batch_id, claimed_at, clock_timestamp(), 0, n, job_ids, NULL, NULL"
            f" FROM awa.lease_claim_batches_00 WHERE {which}")


@pytest.fixture(scope="module")
def big(new_engine):
    """A slot of 200,000 jobs that were claimed in 4,000 batches; all have ended but one."""
    with new_engine() as db:
        db.enqueue_bulk(JOBS)
        db.rows("DO $$ BEGIN FOR i IN 1 .. %s LOOP PERFORM count(*) FROM awa.claim(1, i, '{q}', %s, 1000000000); END LOOP; END $$", (JOBS // BATCH, BATCH))
        end_batches(db, f"batch_id <> {OPEN}")
        for _ in range(6):  # until every plan that can be generic is
            for step in (CLOSE, CARRY, PRUNE):
                db.rows(step)
        db.rotate()
        yield db


def test_big_slot_is_closed_and_pruned_in_small_steps(big):
    db = big
    closing = []
    while not closing or len(db.open_generations()) > 1:
        closing += [db.cost(CLOSE), db.cost(CARRY)]
        assert len(closing) < 10
    blocked = [db.cost(PRUNE) for _ in range(8)]
    assert pages(db) >= {0} and pages(db, "claim") >= {0}
    resting = blocked[-1]
    db.close_slots()
    end_batches(db, f"batch_id = {OPEN}")
    proving = []
    while 0 in pages(db) or 0 in pages(db, "claim"):
        proving.append(db.cost(PRUNE))
        assert len(proving) < 60
    print(f"close and carry: {closing}\nblocked: {blocked}\nproof and prune: {proving}")
    assert max(cost.buffers for cost in closing) <= 400
    assert max(cost.buffers for cost in blocked) <= 900
    assert resting.buffers <= 60 and resting.wal_bytes == 0
    assert max(cost.buffers for cost in proving) <= 1600
    assert len(proving) >= 8, "4,000 batches and 3,000 pages at once"
    assert db.counts() == {"completed": JOBS}
    assert db.rows("SELECT * FROM awa.prune_states") == []


def test_count_finds_one_row_too_many_on_a_late_page(db):
    db.enqueue_bulk(60_000)
    db.rows("DO $$ BEGIN FOR i IN 1 .. 120 LOOP PERFORM count(*) FROM awa.claim(1, i, '{q}', 500, 1000000000); END LOOP; END $$")
    end_batches(db, "true")
    db.rotate()
    for _ in range(3):
        db.close_slots()
    db.rows("DELETE FROM awa.ready_claim_attempt_batches_00 WHERE batch_id = 120")
    calls = 0
    with pytest.raises(Exception, match="500 rows that were neither claimed nor buried"):
        for calls in range(20):
            db.prune()
    assert calls >= 2
    assert db.count("ready_entries_00") == 60_000


def test_many_lanes_are_closed_a_hundred_at_a_time(db):
    queues = [f"lane-{n}" for n in range(350)]  # the one that is last here may be anywhere in the walk
    db.enqueue_items([Item(queue=queue) for queue in queues for _ in range(2)])
    for queue in queues[:349]:
        db.claim(queues=[queue])
    db.claim(1, queues=queues[349:])
    db.rotate()

    def walk():
        """Up to the next thing that it has to wait for; how many calls that were."""
        calls = 1
        while db.rows(CLOSE)[0][1]:
            calls += 1
        return calls
    calls = walk()
    assert db.open_generations() == [1, 2], "a job is left"
    db.cost(CLOSE)
    resting = db.cost(CLOSE)
    assert resting.buffers <= 40 and resting.wal_bytes == 0
    assert len(db.claim(queues=queues[349:])) == 1
    assert calls + walk() >= 5, "a hundred lanes a call, and one more when it waits"
    carried = 0
    for _ in range(12):
        db.rows(CLOSE)
        step = db.cost(CARRY)
        carried += step.wal_bytes > 10_000
        assert step.buffers <= 4000
    assert carried >= 3
    assert db.open_generations() == [2]
    assert [db.claim(queues=[queue]).ids for queue in queues[:3]] == [[], [], []]


def test_many_tombstones_are_passed_in_pieces(db):
    db.enqueue_bulk(10_000)
    db.rows("INSERT INTO awa.ready_tombstones_00 SELECT lane_id, xid, job_id, now() FROM awa.ready_entries_00 WHERE job_id < 10000")
    db.rotate()
    calls = [db.rows(CLOSE)[0] for _ in range(8)]
    assert calls[-1] == (0, False) and db.open_generations() == [1, 2], "one job is left"
    assert db.value("SELECT spent_job FROM awa.queue_ring_sealed") >= 8000, "how far it came is kept"
    assert db.cost(CLOSE).wal_bytes == 0
    assert db.work() == [10_000]
    for _ in range(4):
        db.close_slots()
    assert db.open_generations() == [2]


def test_step_that_rolls_back_is_done_again(db):
    """Nothing is known but what was committed."""
    db.enqueue(3)
    db.work()
    db.rotate()
    for step in (CLOSE, CARRY, CLOSE, PRUNE):
        db.begin()
        db.rows(step)
        db.rollback()
    assert db.open_generations() == [1, 2]
    for step in (CLOSE, CARRY, CLOSE):
        db.rows(step)
    assert db.open_generations() == [2]
    db.begin()
    assert db.prune() == 2
    db.rollback()
    assert db.prune() == 2 and db.counts() == {"completed": 3}


def test_ticks_that_can_do_nothing_write_nothing(db):
    """An attempt that runs on, a job that nobody consumes, an enqueue that is not committed: each keeps a slot."""
    db.enqueue(2)
    db.claim(1)
    db.complete(db.claim(1))
    db.rotate()
    db.close_slots()
    db.enqueue(2, queue="paused")
    db.enqueue(100)
    db.work()
    db.rotate()
    producer = db.session()
    producer.begin()
    producer.enqueue_sql(1)
    db.enqueue(1)
    db.work()
    db.rotate()
    db.enqueue(1)
    db.work()
    for _ in range(4):
        db.maintain(lap_ms=DAY_MS)
    before = db.wal_position()
    for _ in range(20):
        assert db.maintain(lap_ms=DAY_MS) == 0
    assert db.wal_position() - before < 500


def test_row_of_the_skip_list_keeps_its_slot(db):
    ids = db.enqueue(3)
    canceller = db.session()
    canceller.begin()
    canceller.cancel(ids[:1])
    assert db.work() == ids[1:]
    db.rotate()
    for _ in range(3):
        db.close_slots()
    assert db.open_generations() == [1, 2]
    canceller.rollback()
    for _ in range(3):
        db.close_slots()
    assert db.open_generations() == [1, 2], "it can be claimed again"
    assert db.work() == ids[:1]
    for _ in range(3):
        db.close_slots()
    assert db.open_generations() == [2]


def test_cancelled_row_of_the_skip_list_does_not(db):
    ids = db.enqueue(3)
    canceller = db.session()
    canceller.begin()
    canceller.cancel(ids[:1])
    assert db.work() == ids[1:]
    canceller.commit()
    db.rotate()
    for _ in range(3):
        db.close_slots()
    assert db.open_generations() == [2]
    for _ in range(4):
        db.lap()
    assert db.counts() == {"completed": 2, "cancelled": 1}


def test_claim_that_commits_late_keeps_its_claim_slot(db):
    """Its batch has a smaller number than others in that slot that have ended long ago."""
    db.enqueue(1)
    db.enqueue(1, queue="other")
    late = db.session()
    late.begin()
    slow = late.claim(1)
    quick = db.claim(1, queues=["other"])
    assert slow[0].batch_id < quick[0].batch_id and slow[0].claim_slot == quick[0].claim_slot
    assert db.complete(quick) == [DONE]
    db.enqueue(1, queue="other")
    for _ in range(3):
        db.maintain()
    late.commit()
    for _ in range(3):
        db.maintain()
    assert db.count("lease_claim_batches WHERE batch_id = %d" % slow[0].batch_id) == 1
    assert db.complete(slow) == [DONE]
    for _ in range(4):
        db.lap()
    assert db.counts() == {"completed": 1}
    assert db.counts("other")["completed"] + db.counts("other").get("available", 0) == 2


def test_retention_counts_from_the_last_end(db):
    """A slot whose proof is done waits for its youngest end, and no longer."""
    db.enqueue(2)
    claim = db.claim()
    db.rotate()
    for _ in range(3):
        db.close_slots()
    db.rows("UPDATE awa.queue_ring_sealed SET sealed_at = sealed_at - interval '1 h'")
    db.rows("UPDATE awa.claim_ring_slots SET opened_at = opened_at - interval '1 h'")
    db.complete(claim)
    for _ in range(3):
        assert db.prune(retention_ms=1_800_000) == 0
    db.rows("UPDATE awa.prune_states SET youngest = youngest - interval '29 min'")
    assert db.prune(retention_ms=1_800_000) == 0
    db.rows("UPDATE awa.prune_states SET youngest = youngest - interval '2 min'")
    assert db.prune(retention_ms=1_800_000) == 2
