"""A body that cannot be read any more: that job fails, alone and loudly, and nothing else notices.

The damage is real: a chunk of a body's TOAST value is deleted, or the whole row of a body is.
"""
import contextlib
import random
import secrets

import psycopg2
import pytest

from engine import ALREADY_DONE, CANCEL, DAY_MS, DONE, EMPTY, FAIL, RELEASE, RETRY, SNOOZE, STALE, WORKER_LOST
from postgres import connected

LARGE = f'"{random.Random(1).randbytes(3000).hex()}"'   # does not compress into its row
UNREADABLE = "unreadable: the stored body of the job cannot be read"


def table_of(db, job_id):
    if db.count(f"deferred_jobs WHERE job_id = {job_id}"):
        return "deferred_jobs"
    return "ready_entries_%02d" % db.value("SELECT ready_slot FROM awa.ready_entries WHERE job_id = %s ORDER BY run_lease DESC LIMIT 1", (job_id,))


def cut(db, job_id):
    """Kills the first chunk of the job's args. Every row of these tests has one TOAST value, so the n-th of the one belongs to the n-th of the other."""
    table = f"awa.{table_of(db, job_id)}"
    with connected(db.cluster.superuser_url(db.name)) as cursor:
        cursor.execute("SET client_min_messages = warning")
        cursor.execute("CREATE EXTENSION IF NOT EXISTS pg_surgery SCHEMA public")
        cursor.execute("SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = %s::regclass", (table,))
        toast, = cursor.fetchone()
        cursor.execute(f"SELECT array_agg(job_id ORDER BY ctid) FROM {table} WHERE pg_column_size(args) > 1000")
        jobs, = cursor.fetchone()
        place = max(i for i, job in enumerate(jobs) if job == job_id)
        cursor.execute(f"SELECT DISTINCT chunk_id FROM {toast} ORDER BY 1 OFFSET %s LIMIT 1", (place,))
        cursor.execute(f"SELECT ctid::text FROM {toast} WHERE chunk_id = %s AND chunk_seq = 0", cursor.fetchone())
        cursor.execute("SELECT public.heap_force_kill(%s::regclass, ARRAY[%s::tid])", (toast, cursor.fetchone()[0]))
    with pytest.raises(psycopg2.errors.DataCorrupted, match="chunk number"):
        db.rows(f"SELECT octet_length(args::text) FROM {table} WHERE job_id = %s", (job_id,))


def lose(db, job_id):
    """Deletes the whole row."""
    db.rows(f"DELETE FROM awa.{table_of(db, job_id)} WHERE job_id = %s", (job_id,))
    assert db.cursor.rowcount == 1


DAMAGE = {"a chunk is missing": cut, "the row is missing": lose}


@contextlib.contextmanager
def warning(db, text="the body of job"):
    db.connection.notices.clear()
    yield
    assert any(text in notice for notice in db.connection.notices), db.connection.notices


def enqueue_large(db, count, **fields):
    return db.enqueue(count, args=LARGE, **fields)


def facts(db, job_id):
    """How a job ended, by brute force."""
    return [state for state, in db.rows("SELECT state::text FROM awa.done_entries WHERE job_id = %s UNION ALL"
                                        " SELECT 'completed' FROM awa.receipt_completion_batches WHERE %s = ANY (job_ids)", (job_id, job_id))]


def errors(db, job_id):
    return [e["error"] for e in db.value("SELECT payload -> 'errors' FROM awa.done_entries WHERE job_id = %s", (job_id,))]


def readable(job):
    return job.kind is not None


def check_neighbours(claim, ids, broken):
    """All are handed out in order, the broken one without its body."""
    assert claim.ids == ids
    for job in claim:
        if job.job_id == broken:
            assert (job.kind, job.args, job.run_lease, job.attempt) == (None, None, 1, 1)
        else:
            assert (job.kind, job.args) == ("k", LARGE)


# --- claim

@pytest.mark.parametrize("place", [0, 2, 4])
def test_ptrap_17_claim_hands_out_what_it_cannot_read(queue_db, place):
    ids = enqueue_large(queue_db, 5)
    cut(queue_db, ids[place])
    with warning(queue_db):
        claim = queue_db.claim(5)
    check_neighbours(claim, ids, ids[place])
    assert queue_db.claim().end == EMPTY
    assert queue_db.finish([claim[place]], FAIL, error="unreadable job") == [DONE]
    assert queue_db.complete([job for job in claim if readable(job)]) == [DONE] * 4
    assert queue_db.counts() == {"completed": 4, "failed": 1}
    assert facts(queue_db, ids[place]) == ["failed"]
    assert UNREADABLE in errors(queue_db, ids[place]) and "unreadable job" in errors(queue_db, ids[place])


def test_ptrap_17_claim_over_several_slots_and_tombstones(db):
    first = enqueue_large(db, 4)
    db.cancel(first[1:2])
    db.rotate()
    second = enqueue_large(db, 3)
    cut(db, first[2])
    cut(db, second[0])
    assert len(db.open_generations()) == 2
    claim = db.claim(6)
    assert claim.ids == [first[0], first[2], first[3], *second]
    assert [job.job_id for job in claim if not readable(job)] == [first[2], second[0]]
    assert [job.place for job in claim] == list(range(1, 7))


def test_ptrap_17_claim_of_few_bytes_stays_within_them(queue_db):
    ids = enqueue_large(queue_db, 40)
    cut(queue_db, ids[20])
    seen = []
    for _ in range(60):
        claim = queue_db.claim(40, max_bytes=100_000)
        assert sum(len(job.args) for job in claim if readable(job)) <= 100_000
        seen += claim.ids
    assert seen == ids


def test_ptrap_17_claim_out_of_the_skip_list(queue_db):
    ids = enqueue_large(queue_db, 3)
    canceller = queue_db.session()
    canceller.begin()
    canceller.cancel(ids[:2])
    claim = queue_db.claim()
    assert claim.ids == ids[2:]
    canceller.rollback()
    cut(queue_db, ids[1])
    again = queue_db.claim()
    assert again.ids == ids[:2] and [readable(job) for job in again] == [True, False]


def test_ptrap_17_returned_and_damaged(queue_db):
    ids = enqueue_large(queue_db, 3)
    assert queue_db.finish(queue_db.claim(), RELEASE) == [DONE] * 3
    cut(queue_db, ids[1])
    claim = queue_db.claim()
    assert claim.ids == ids and [readable(job) for job in claim] == [True, False, True]
    assert {job.run_lease for job in claim} == {2}


# --- claim_result

@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("count", [1, 3])
def test_ptrap_17_claim_result_tells_of_every_attempt(queue_db, damage, count):
    ids = enqueue_large(queue_db, count)
    nonce = secrets.randbits(63)
    claim = queue_db.claim(nonce=nonce)
    DAMAGE[damage](queue_db, ids[0])
    with warning(queue_db):
        result = queue_db.claim_result(nonce)
    check_neighbours(result, ids, ids[0])
    assert [job.index for job in result] == [job.index for job in claim]
    assert queue_db.finish(result[:1], FAIL, error="x") == [DONE]
    assert queue_db.complete(result[1:]) == [DONE] * (count - 1)


def test_claim_result_of_what_was_pruned_is_nothing(db):
    enqueue_large(db, 3)
    db.complete(db.claim(nonce=77))
    for _ in range(4):
        db.enqueue()
        db.complete(db.claim())
        db.rotate(0, DAY_MS)
        db.close_slots()
        db.prune()
    assert db.count("ready_entries_00") == 0 and db.count("lease_claim_batches WHERE nonce = 77") == 1
    db.connection.notices.clear()
    assert db.claim_result(77) == []
    assert db.connection.notices == []


# --- every way to end such an attempt

@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("outcome", [RETRY, SNOOZE, FAIL, CANCEL, RELEASE, WORKER_LOST])
def test_ptrap_17_every_outcome_ends_it(queue_db, damage, outcome):
    ids = enqueue_large(queue_db, 3)
    claim = queue_db.claim()
    DAMAGE[damage](queue_db, ids[1])
    with warning(queue_db):
        assert queue_db.finish(claim, outcome, delay_ms=3_600_000, error="mine") == [DONE] * 3
    ended_as = "cancelled" if outcome == CANCEL else "failed"
    assert facts(queue_db, ids[1]) == [ended_as]
    assert UNREADABLE in errors(queue_db, ids[1])
    assert queue_db.counts()[ended_as] == (3 if outcome in (FAIL, CANCEL) else 1)
    assert queue_db.finish(claim[1:2], outcome, delay_ms=3_600_000) == [ALREADY_DONE]
    assert queue_db.finish(claim[1:2], RETRY if outcome == FAIL else FAIL) == [STALE]


@pytest.mark.parametrize("damage", DAMAGE)
def test_ptrap_17_completion_needs_no_body(queue_db, damage):
    ids = enqueue_large(queue_db, 3)
    claim = queue_db.claim()
    DAMAGE[damage](queue_db, ids[1])
    assert queue_db.complete(claim) == [DONE] * 3
    assert facts(queue_db, ids[1]) == ["completed"]


@pytest.mark.parametrize("damage", DAMAGE)
def test_ptrap_17_rescue_ends_it(db, damage):
    ids = enqueue_large(db, 3)
    db.claim(instance=99)
    DAMAGE[damage](db, ids[1])
    with warning(db):
        ended = sum(db.rescue() for _ in range(4))
    assert ended == 3
    assert facts(db, ids[1]) == ["failed"]
    assert db.counts()["failed"] == 1 and db.counts()["retryable"] == 2


# --- by id

def test_ptrap_17_cancel_and_get_by_id(db):
    available, running, deferred = enqueue_large(db, 1) + enqueue_large(db, 1, queue="r") + enqueue_large(db, 1, run_at="2099-01-01 00:00+00")
    db.claim(queues=["r"])
    for job_id in (available, running, deferred):
        cut(db, job_id)
    for job_id, state in ((available, "available"), (running, "running"), (deferred, "scheduled")):
        with warning(db):
            assert db.rows("SELECT state::text, kind, args FROM awa.get_job(%s)", (job_id,)) == [(state, "k", None)]
    for job_id in (available, running, deferred):
        with warning(db):
            assert db.cancel([job_id]) == {job_id: DONE}
        assert facts(db, job_id) == ["cancelled"]
        assert errors(db, job_id) == [UNREADABLE]
        assert db.value("SELECT state::text FROM awa.get_job(%s)", (job_id,)) == "cancelled"
        assert db.cancel([job_id]) == {job_id: ALREADY_DONE}
    assert db.counts() == {"cancelled": 2}


# --- promotion

def test_ptrap_17_promotion_moves_the_others(db):
    ids = enqueue_large(db, 5, run_at="2099-01-01 00:00+00")
    cut(db, ids[2])
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    with warning(db):
        assert db.promote() == 4
    assert db.counts() == {"available": 4, "failed": 1}
    assert facts(db, ids[2]) == ["failed"] and errors(db, ids[2]) == [UNREADABLE]
    assert sorted(db.work()) == sorted(set(ids) - {ids[2]})
    assert db.promote() == 0


# --- space comes back

@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("when", ["before its claim", "while it runs", "after its end"])
def test_ptrap_17_slot_is_pruned_and_counts_are_right(db, damage, when):
    ids = enqueue_large(db, 3)
    lost = damage == "the row is missing" and when == "before its claim"
    if when == "before its claim":
        DAMAGE[damage](db, ids[1])
    claim = db.claim()
    assert len(claim) == 3 - lost
    if when == "while it runs":
        DAMAGE[damage](db, ids[1])
    assert set(db.finish(claim, FAIL)) == {DONE}
    if when == "after its end":
        DAMAGE[damage](db, ids[1])
    for _ in range(4):
        db.lap()
    assert db.count("ready_entries WHERE job_id <= %d" % ids[2]) == 0
    assert db.counts() == {"failed": 3 - lost}
    db.rotate()
    assert db.work() == []
