"""status(), ring_slots() and queue_counts(): against the tables, and without standing in anybody's way."""
import psycopg2
import pytest

from engine import CANCEL, DAY_MS, FAIL, RETRY


def status(db):
    (row,) = db.rows("SELECT open_attempts, oldest_claim_at, scheduled, retryable, overdue FROM awa.status()")
    return row


def test_nothing_is_open_at_first(db):
    assert status(db) == (0, None, 0, 0, 0)


def test_open_attempts_of_all_queues(db):
    db.enqueue(10)
    db.enqueue(5, queue="other")
    db.enqueue(2, run_at="2099-01-01 00:00+00")
    claim = db.claim(10)
    db.claim(5, queues=["other"])
    db.complete(claim[:3])
    db.finish(claim[3:5], RETRY, delay_ms=DAY_MS)
    db.finish(claim[5:6], FAIL)
    db.finish(claim[6:7], CANCEL)
    assert status(db)[0] == 3 + 5
    assert status(db)[2:] == (2, 2, 0)
    (first,) = db.rows("SELECT min(claimed_at) FROM awa.lease_claim_batches")
    assert status(db)[1] == first[0]
    db.complete(claim[7:])
    (second,) = db.rows("SELECT max(claimed_at) FROM awa.lease_claim_batches")
    assert status(db)[1] == second[0]  # the other claim is the oldest that is open


def test_overdue_until_promoted(db):
    db.enqueue(3, run_at="2099-01-01 00:00+00")
    assert status(db)[2:] == (3, 0, 0)
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    assert status(db)[2:] == (3, 0, 3)
    db.rows("SELECT awa.promote_due(100)")
    assert status(db)[2:] == (0, 0, 0)


def test_queue_counts_are_those_of_each_queue(db):
    db.enqueue(3)
    db.enqueue(2, queue="other")
    assert db.rows("SELECT queue, available FROM awa.queue_counts('{}')") == [("other", 2), (db.queue, 3)]
    assert db.rows("SELECT queue, available FROM awa.queue_counts(ARRAY[%s, 'unused', 'other'])", (db.queue,)) == [
        (db.queue, 3), ("unused", 0), ("other", 2)]
    with pytest.raises(psycopg2.Error, match="queue must be 1 to 200 bytes"):
        db.rows("SELECT * FROM awa.queue_counts(ARRAY['no spaces'])")
