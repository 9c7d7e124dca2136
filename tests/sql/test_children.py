"""Trap 8: the hot path names the children it touches, so it waits for nobody who has others locked."""
import pytest

from engine import CANCEL, DONE, FAIL, RELEASE, RETRY, SNOOZE

GENERIC_AFTER = 7   # plancache.c: five custom plans, then it may choose a generic one


def ring_children(db, ring):
    return [name for name, in db.rows(
        f"SELECT c.oid::regclass::text FROM pg_class c WHERE c.relnamespace = 'awa'::regnamespace AND c.relkind = 'r'"
        f" AND left(c.relname, -3) = ANY (awa.{ring}_ring_tables())")]


def hot_calls(session):
    """Everything a proxy does all the time; each call would end as lock_timeout if it had to wait."""
    session.enqueue(8)
    session.enqueue_sql(1)
    claim = session.claim(8)
    assert session.complete(claim[:2]) == [DONE] * 2
    for job, outcome in zip(claim[2:], (RETRY, SNOOZE, FAIL, CANCEL, RELEASE)):
        assert session.finish([job], outcome, 60_000 if outcome == SNOOZE else None) == [DONE]
    assert session.complete(claim[7:]) == [DONE]
    session.claim(8)
    session.promote()


def test_trap_08_hot_path_does_not_wait_for_prune(db):
    worker = db.session()
    for _ in range(GENERIC_AFTER):
        hot_calls(worker)
    pruner = db.session()
    pruner.begin()
    others = [name for ring in ("queue", "claim") for name in ring_children(db, ring)
              if not name.endswith(f"_{db.slot(ring):02}")]
    pruner.rows("LOCK TABLE " + ", ".join(others) + " IN ACCESS EXCLUSIVE MODE")
    fresh = db.session()
    for session in (worker, fresh):
        hot_calls(session)
    pruner.rollback()


CALLS = {
    "enqueue_batch": lambda session, claim: session.enqueue(3),
    "enqueue": lambda session, claim: session.enqueue_sql(1),
    "claim": lambda session, claim: session.claim(3),
    "complete_batch": lambda session, claim: session.complete(claim),
    "finish_items": lambda session, claim: session.finish(claim, RETRY),
    "promote_due": lambda session, claim: session.promote(),
    "reserve_job_ids": lambda session, claim: session.reserve(3),
}


@pytest.mark.parametrize("call", CALLS)
def test_trap_08_a_call_locks_children_of_one_slot_only(queue_db, call):
    queue_db.enqueue(20)
    claim = queue_db.claim(3)
    queue_db.begin()
    CALLS[call](queue_db, claim)
    slots = queue_db.rows("SELECT DISTINCT right(c.relname, 3) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                          " WHERE l.pid = pg_backend_pid() AND c.relkind = 'r' AND c.relname ~ '_[0-9][0-9]$'")
    queue_db.rollback()
    assert slots in ([("_00",)], [])
    assert (slots == []) == (call in ("reserve_job_ids", "promote_due"))
