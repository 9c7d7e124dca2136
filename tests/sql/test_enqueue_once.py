"""enqueue_once: a request with an idempotency key, stored once however often it is sent."""
import time

import psycopg2
import pytest


def once(session, key, args, queue="q"):
    """(ids tried, the rows that came back)."""
    ids = session.reserve(len(args))
    n = len(args)
    return ids, session.rows(
        "SELECT item, code, reason, known, job_id FROM awa.enqueue_once(%s, %s::text[], %s::smallint[], %s::bigint[],"
        " %s::smallint[], %s::text[], %s::text[], %s::smallint[], NULL, NULL, NULL, NULL)",
        (key, [queue], [1] * n, ids, [2] * n, ["k"] * n, args, [25] * n))


def stored(session):
    return session.value("SELECT count(*) FROM awa.ready_entries")


def test_a_key_stores_once(db):
    ids, rows = once(db, "key", ["{}", "[1]"])
    assert rows == []
    _, again = once(db, "key", ["{}", "[1]"])
    assert again == [(1, None, None, True, ids[0]), (2, None, None, True, ids[1])]
    assert stored(db) == 2
    assert once(db, "other", ["{}"])[1] == []
    assert stored(db) == 3


def test_a_refused_job_is_refused_again(db):
    ids, rows = once(db, "key", ["{}", "{", "[1]"])
    assert [(item, known, job_id) for item, _, _, known, job_id in rows] == [(2, False, None)]
    _, again = once(db, "key", ["{}", "{", "[1]"])
    assert [(item, known, job_id) for item, _, _, known, job_id in again] == [
        (1, True, ids[0]), (2, True, None), (3, True, ids[2])]
    assert stored(db) == 2


def test_a_key_is_for_so_many_jobs(db):
    once(db, "key", ["{}", "{}"])
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="first used for 2 jobs, now for 1"):
        once(db, "key", ["{}"])
    assert stored(db) == 2


def test_nothing_stays_of_what_rolls_back(db):
    db.begin()
    once(db, "key", ["{}"])
    db.rollback()
    assert once(db, "key", ["{}"])[1] == []
    assert stored(db) == 1


def test_another_open_use_is_waited_for_briefly(db):
    """The connection that waits is missing to everybody who does not use that key."""
    other = db.session()
    other.begin()
    ids, _ = once(other, "key", ["{}"])
    db.rows("SET lock_timeout = '40s'")     # which the call does not use
    began = time.monotonic()
    with pytest.raises(psycopg2.errors.LockNotAvailable):
        once(db, "key", ["{}"])
    assert 0.1 < time.monotonic() - began < 20
    other.commit()
    assert once(db, "key", ["{}"])[1] == [(1, None, None, True, ids[0])]
    assert stored(db) == 1
