"""Ending attempts: each at most once, by durable evidence, and one bad or busy item costs the others nothing."""
import dataclasses
import json

import psycopg2
import pytest

from engine import (ALREADY_DONE, BUSY, CANCEL, COMPLETE, DAY_MS, DONE, FAIL, INVALID, NOT_FOUND, RELEASE, RETRY, SNOOZE,
                    STALE, WORKER_LOST, Item)

ENDINGS = {"complete": COMPLETE, "retry": RETRY, "snooze": SNOOZE, "fail": FAIL, "cancel": CANCEL, "release": RELEASE,
           "worker lost": WORKER_LOST}
STATE_AFTER = {COMPLETE: "completed", RETRY: "retryable", SNOOZE: "scheduled", FAIL: "failed", CANCEL: "cancelled",
               RELEASE: "available", WORKER_LOST: "retryable"}


def altered(job, **fields):
    return dataclasses.replace(job, **fields)


def end(session, jobs, outcome, delay_ms=None):
    return session.finish(jobs, outcome, 60_000 if outcome == SNOOZE and delay_ms is None else delay_ms)


def make_due(db):
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp() WHERE due_at > clock_timestamp()")
    return db.promote()


def next_attempt(db, jobs=1):
    make_due(db)
    claim = db.claim()
    assert len(claim) == jobs
    return claim


# --- the compact path

def test_trap_17_completion_takes_the_compact_path(db):
    ids = db.enqueue(512)
    claim = db.claim()
    assert db.complete(claim) == [DONE] * 512
    assert db.rows("SELECT n, job_ids, run_leases, attempts FROM awa.receipt_completion_batches") == [(512, ids, None, None)]
    assert db.rows("SELECT length(members), bit_count(members) FROM awa.lease_claim_closure_batches") == [(512, 512)]
    assert db.rows("SELECT n, run_leases, attempts FROM awa.lease_claim_batches") == [(512, None, None)]
    assert db.count("lease_claim_closures") == db.count("done_entries") == 0
    assert db.counts() == {"completed": 512}


@pytest.mark.parametrize("fields", [{}, {"metadata": "{}"}, {"traceparent": "t"}, {"ordering_key": "o"}, {"max_attempts": 1}])
def test_trap_17_no_field_leaves_the_compact_path(db, fields):
    db.enqueue(4, **fields)
    assert db.complete(db.claim()) == [DONE] * 4
    assert db.count("receipt_completion_batches") == db.count("lease_claim_closure_batches") == 1
    assert db.count("lease_claim_closures") == db.count("done_entries") == 0


def test_trap_17_a_second_attempt_is_compact_too(db):
    ids = db.enqueue(3)
    db.finish(db.claim(), RETRY, delay_ms=60_000)
    fresh = db.enqueue(2)
    claim = next_attempt(db, 5)
    assert db.complete(claim) == [DONE] * 5
    [(job_ids, leases, attempts)] = db.rows("SELECT job_ids, run_leases, attempts FROM awa.receipt_completion_batches")
    assert {*zip(job_ids, leases, attempts)} == {(i, 2, 2) for i in ids} | {(i, 1, 1) for i in fresh}
    assert db.count("done_entries") == 0


def test_out_of_order_and_partial_flushes(queue_db):
    queue_db.enqueue(100)
    claim = queue_db.claim()
    for start in range(0, 7):
        assert set(queue_db.complete(claim[start::7])) == {DONE}
    assert queue_db.complete(claim) == [ALREADY_DONE] * 100
    assert queue_db.counts() == {"completed": 100}


# --- history

def test_terminal_jobs_hydrates_what_was_enqueued(db):
    bodies = [Item(args='{"b": 1, "a": [1e400]}', kind="k1", metadata='{"z": 1, "a": 2}', priority=n % 4 + 1, max_attempts=n + 1,
                   traceparent=f"t{n}", ordering_key=f"o{n}") for n in range(5)] + [Item(args=" [ 1 ] ", kind="k2")] * 2
    ids, refused = db.enqueue_items(bodies)
    assert refused == {}
    jobs = {job.job_id: job for job in db.claim()}
    by_end = {"completed": ids[:3], "failed": ids[3:5], "cancelled": ids[5:]}
    db.complete([jobs[i] for i in by_end["completed"]])
    db.finish([jobs[i] for i in by_end["failed"]], FAIL, error="why")
    db.finish([jobs[i] for i in by_end["cancelled"]], CANCEL)
    read = {row[0]: row[1:] for row in db.rows(
        "SELECT job_id, state::text, queue, priority, kind, args::text, metadata::text, max_attempts, traceparent, ordering_key,"
        " run_lease, attempt, created_at, attempted_at <= finalized_at FROM awa.terminal_jobs")}
    assert read == {
        job_id: (state, "q", body.priority, body.kind, body.args, body.metadata, body.max_attempts, body.traceparent,
                 body.ordering_key, 1, 1, jobs[job_id].created_at, True)
        for state, members in by_end.items() for job_id in members for body in [bodies[ids.index(job_id)]]}
    assert db.value("SELECT count(*) FROM awa.done_entries WHERE args IS NOT NULL") == 0, "the body is not to be copied"


def test_each_attempt_is_hydrated_with_its_own_body(db):
    """Bodies of one job lie in several slots; the join has to find the right one."""
    ids, _ = db.enqueue_items([Item(args=f'"{n}"') for n in range(3)])
    for _ in range(3):
        db.finish(db.claim(), RETRY, delay_ms=60_000, error="no")
        db.rotate()
        make_due(db)
    db.complete(db.claim())
    assert db.rows("SELECT job_id, args::text, run_lease, attempt, jsonb_array_length(payload -> 'errors')"
                   " FROM awa.terminal_jobs ORDER BY 1") == [(job_id, f'"{n}"', 4, 4, 3) for n, job_id in enumerate(ids)]


# --- fences

@pytest.mark.parametrize("first", ENDINGS)
@pytest.mark.parametrize("second", ENDINGS)
def test_trap_10_only_the_first_outcome_of_an_attempt_counts(queue_db, first, second):
    queue_db.enqueue()
    claim = queue_db.claim()
    assert end(queue_db, claim, ENDINGS[first]) == [DONE]
    assert end(queue_db, claim, ENDINGS[second]) == [ALREADY_DONE if first == second else STALE]
    assert queue_db.complete(claim) == [ALREADY_DONE if first == "complete" else STALE]
    assert queue_db.counts() == {STATE_AFTER[ENDINGS[first]]: 1}


def test_trap_10_completed_in_bulk_then_finished(queue_db):
    queue_db.enqueue()
    claim = queue_db.claim()
    assert queue_db.complete(claim) == [DONE]
    assert [end(queue_db, claim, outcome)[0] for outcome in ENDINGS.values()] == [ALREADY_DONE, *[STALE] * 6]
    assert queue_db.counts() == {"completed": 1}


def test_trap_10_same_receipt_twice_in_one_bulk_flush_is_refused_and_closes_nothing(queue_db):
    queue_db.enqueue(3)
    claim = queue_db.claim()
    slots, batches, nonces, _, indexes, ids, leases = queue_db.complete_arguments(claim)
    with pytest.raises(psycopg2.errors.CheckViolation):
        queue_db.rows(queue_db.COMPLETE, (slots, batches, nonces, [4], [indexes[0], *indexes], [ids[0], *ids], [1, *leases]))
    assert queue_db.counts() == {"running": 3}
    assert queue_db.complete(claim) == [DONE] * 3


def test_trap_10_same_receipt_twice_in_one_flush_closes_once(queue_db):
    queue_db.enqueue(2)
    claim = queue_db.claim()
    assert end(queue_db, [*claim, *claim], RETRY) == [DONE, DONE, ALREADY_DONE, ALREADY_DONE]
    assert queue_db.counts() == {"retryable": 2}


@pytest.mark.parametrize("between", ["retry", "snooze", "release", "worker lost"])
def test_trap_10_old_receipt_cannot_end_a_newer_attempt(db, between):
    db.enqueue()
    old = db.claim()
    assert end(db, old, ENDINGS[between]) == [DONE]
    [new] = next_attempt(db)
    assert new.run_lease == old[0].run_lease + 1
    for outcome in ENDINGS.values():
        assert end(db, old, outcome) in ([STALE], [ALREADY_DONE])
    # Nor can a forged mix of both.
    assert db.complete([altered(old[0], run_lease=new.run_lease)]) == [INVALID]
    assert db.complete([altered(new, run_lease=1)]) == [INVALID]
    assert db.counts() == {"running": 1}
    assert db.complete([new]) == [DONE]


WRONG = {"nonce": ({"nonce": 1}, NOT_FOUND), "batch": ({"batch_id": 999}, NOT_FOUND), "slot": ({"claim_slot": 5}, NOT_FOUND),
         "index 0": ({"index": 0}, INVALID), "index behind the end": ({"index": 513}, INVALID), "another's index": ({"index": 2}, INVALID),
         "job": ({"job_id": 999_999}, INVALID), "lease": ({"run_lease": 2}, INVALID), "lease 0": ({"run_lease": 0}, INVALID)}


@pytest.mark.parametrize("what", WRONG)
def test_receipt_that_is_nobodys(queue_db, what):
    fields, status = WRONG[what]
    queue_db.enqueue(512)
    claim = queue_db.claim()
    wrong = altered(claim[0], **fields)
    assert queue_db.complete([wrong]) == [status]
    for outcome in ENDINGS.values():
        assert end(queue_db, [wrong], outcome) == [status]
    assert queue_db.counts() == {"running": 512}


@pytest.mark.parametrize("slot", [-1, 8, 255])
def test_receipt_of_an_impossible_slot(queue_db, slot):
    """The receipt is a client's: a byte that no slot has must not fail the whole flush."""
    queue_db.enqueue(3)
    claim = queue_db.claim()
    assert queue_db.complete([altered(claim[0], claim_slot=slot), *claim[1:]]) == [NOT_FOUND, DONE, DONE]
    assert queue_db.finish([altered(claim[0], claim_slot=slot), claim[0]], FAIL) == [NOT_FOUND, DONE]


def test_trap_13_one_broken_item_among_512(queue_db):
    for what, spoil in {"job": {"job_id": -1}, "lease": {"run_lease": 7}, "nonce": {"nonce": 1}, "batch": {"batch_id": 999_999}}.items():
        queue_db.enqueue(512)
        claim = queue_db.claim()
        statuses = queue_db.complete([*claim[:99], altered(claim[99], **spoil), *claim[100:]])
        assert statuses[99] == (INVALID if what in ("job", "lease") else NOT_FOUND)
        assert statuses[:99] + statuses[100:] == [DONE] * 511
        assert queue_db.complete(claim[99:100]) == [DONE]


def test_trap_13_ended_items_among_512(queue_db):
    queue_db.enqueue(512)
    claim = queue_db.claim()
    queue_db.complete(claim[:1])
    queue_db.finish(claim[1:2], FAIL)
    assert queue_db.complete(claim) == [ALREADY_DONE, STALE] + [DONE] * 510
    assert queue_db.counts() == {"completed": 511, "failed": 1}


def test_trap_13_refused_item_among_finished_ones(queue_db):
    queue_db.enqueue(5)
    claim = queue_db.claim()
    mixed = [claim[0], altered(claim[1], job_id=-1), claim[2], altered(claim[3], nonce=2), claim[4]]
    assert queue_db.finish(mixed, RETRY) == [DONE, INVALID, DONE, NOT_FOUND, DONE]
    assert queue_db.counts() == {"running": 2, "retryable": 3}


def test_receipts_of_a_pruned_slot_are_not_found(db):
    db.enqueue()
    claim = db.claim()
    db.complete(claim)
    for _ in range(4):
        db.lap()
    assert db.complete(claim) == [NOT_FOUND]
    assert db.finish(claim, FAIL) == [NOT_FOUND]
    assert db.counts() == {"completed": 1}


# --- outcomes

@pytest.mark.parametrize("attempt", [1, 2, 5, 12])
def test_retry_backs_off_by_powers_of_two_with_jitter(queue_db, attempt):
    waits = [row[0] for row in queue_db.rows("SELECT extract(epoch FROM awa.retry_backoff(%s))::float8 FROM generate_series(1, 300)", (attempt,))]
    assert 2 ** attempt <= min(waits) < max(waits) <= 2 ** attempt * 1.25
    assert max(waits) - min(waits) > 2 ** attempt * 0.1, "the jitter is what spreads them"


@pytest.mark.parametrize("attempt", [17, 1000])
def test_retry_backoff_ends_at_a_day(queue_db, attempt):
    assert queue_db.value("SELECT max(awa.retry_backoff(%s)) = interval '24 hours' FROM generate_series(1, 50)", (attempt,))


def test_retry_waits_as_long_as_the_policy_says(db):
    db.enqueue(50)
    before = db.value("SELECT clock_timestamp()")
    assert set(db.finish(db.claim(), RETRY, error="no")) == {DONE}
    after = db.value("SELECT clock_timestamp()")
    due = db.rows("SELECT due_at FROM awa.deferred_jobs")
    assert all((moment - before).total_seconds() >= 2 and (moment - after).total_seconds() <= 2.5 for moment, in due)


def test_retry_with_a_delay_of_its_own(db):
    db.enqueue()
    before = db.value("SELECT clock_timestamp()")
    db.finish(db.claim(), RETRY, delay_ms=90_500)
    after = db.value("SELECT clock_timestamp()")
    due = db.value("SELECT due_at FROM awa.deferred_jobs")
    assert 90.5 <= (due - before).total_seconds() and (due - after).total_seconds() <= 90.5


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_retry_until_attempts_are_used_up(db, max_attempts):
    db.enqueue(max_attempts=max_attempts, args='"mine"')
    for attempt in range(1, max_attempts + 1):
        [job] = next_attempt(db)
        assert (job.attempt, job.run_lease, job.max_attempts) == (attempt, attempt, max_attempts)
        assert db.finish([job], RETRY, delay_ms=60_000, error=f"error {attempt}") == [DONE]
    assert db.counts() == {"failed": 1}
    [(state, attempt, args, errors)] = db.rows("SELECT state::text, attempt, args::text, payload -> 'errors' FROM awa.terminal_jobs")
    assert (state, attempt, args) == ("failed", max_attempts, '"mine"')
    assert [(e["attempt"], e["error"]) for e in errors] == [(n, f"error {n}") for n in range(1, max_attempts + 1)]


def test_newest_twenty_errors_are_kept(db):
    db.enqueue(max_attempts=30)
    for attempt in range(1, 24):
        db.finish(next_attempt(db), RETRY, delay_ms=60_000, error=str(attempt))
    payload = db.value("SELECT payload FROM awa.deferred_jobs")
    assert [e["error"] for e in payload["errors"]] == [str(n) for n in range(4, 24)]


def test_fail_is_final_whatever_attempts_are_left(queue_db):
    queue_db.enqueue()
    assert queue_db.finish(queue_db.claim(), FAIL, error="no way") == [DONE]
    assert queue_db.counts() == {"failed": 1}
    assert queue_db.value("SELECT payload #>> '{errors,0,error}' FROM awa.terminal_jobs WHERE queue = %s", (queue_db.queue,)) == "no way"


@pytest.mark.parametrize("outcome", [SNOOZE, RELEASE])
def test_snooze_and_release_consume_no_attempt(db, outcome):
    db.enqueue(max_attempts=1)
    for lease in range(1, 6):
        [job] = next_attempt(db)
        assert (job.attempt, job.run_lease) == (1, lease)
        assert end(db, [job], outcome) == [DONE]
    [job] = next_attempt(db)
    assert db.finish([job], RETRY) == [DONE]
    assert db.counts() == {"failed": 1}


def test_release_keeps_everything_else(queue_db):
    ids, _ = queue_db.enqueue_items([Item(args="[2]", metadata='{"a": 1}', traceparent="t", kind="x", priority=3, max_attempts=4)])
    [before] = queue_db.claim()
    queue_db.finish([before], RELEASE)
    [after] = queue_db.claim()
    kept = ("job_id", "args", "metadata", "traceparent", "kind", "priority", "max_attempts", "created_at", "attempt")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert after.job_id == ids[0]


def test_released_jobs_go_to_the_end(queue_db):
    first = queue_db.enqueue(2)
    released = queue_db.claim(1)
    queue_db.finish(released, RELEASE)
    assert queue_db.claim().ids == [first[1], first[0]]


@pytest.mark.parametrize("delay_ms, status", [(0, INVALID), (None, INVALID), (-1, INVALID), (1, DONE), (30 * DAY_MS - 1, DONE),
                                              (30 * DAY_MS, DONE), (30 * DAY_MS + 1, INVALID)])
def test_snooze_delay_limits(queue_db, delay_ms, status):
    queue_db.enqueue()
    claim = queue_db.claim()
    assert queue_db.finish(claim, SNOOZE, delay_ms) == [status]
    assert queue_db.counts() == ({"scheduled": 1} if status == DONE else {"running": 1})


@pytest.mark.parametrize("delay_ms, status", [(-1, INVALID), (0, DONE), (None, DONE), (30 * DAY_MS, DONE), (30 * DAY_MS + 1, INVALID)])
def test_retry_delay_limits(queue_db, delay_ms, status):
    queue_db.enqueue()
    assert queue_db.finish(queue_db.claim(), RETRY, delay_ms) == [status]


@pytest.mark.parametrize("snoozes, status", [(998, DONE), (999, DONE), (1000, INVALID)])
def test_snooze_cap(db, snoozes, status):
    """A thousand real ones would take minutes, so the count is set; one real snooze shows that it is counted there."""
    db.enqueue()
    db.finish(db.claim(), SNOOZE, 60_000)
    assert db.value("SELECT payload FROM awa.deferred_jobs") == {"snoozes": 1}
    db.rows("UPDATE awa.deferred_jobs SET payload = %s", (json.dumps({"snoozes": snoozes}),))
    claim = next_attempt(db)
    assert db.finish(claim, SNOOZE, 60_000) == [status]
    if status == INVALID:
        assert db.counts() == {"running": 1}
        assert db.complete(claim) == [DONE], "the attempt is still its owner's"


@pytest.mark.parametrize("outcome", [0, 8, 9, -1, None])
def test_unknown_outcome_is_invalid(queue_db, outcome):
    queue_db.enqueue()
    claim = queue_db.claim()
    assert queue_db.finish(claim, outcome) == [INVALID]
    assert queue_db.counts() == {"running": 1}


@pytest.mark.parametrize("size, status", [(4095, DONE), (4096, DONE), (4097, INVALID)])
def test_error_limit(queue_db, size, status):
    queue_db.enqueue()
    assert queue_db.finish(queue_db.claim(), FAIL, error="e" * size) == [status]


# --- locks

def advisory_locks(session):
    return session.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")


def scattered_batches(db, batches, size):
    """One job of each of that many claim batches, and the rest of them."""
    db.enqueue_bulk(batches * size)
    claims = [db.claim(size) for _ in range(batches)]
    return [claim[0] for claim in claims], [job for claim in claims for job in claim[1:]]


def test_trap_15_locks_of_one_transaction_are_few(queue_db):
    ones, _ = scattered_batches(queue_db, 70, 2)
    queue_db.begin()
    assert queue_db.complete(ones) == [DONE] * 64 + [BUSY] * 6
    assert advisory_locks(queue_db) <= 64 + 10
    queue_db.rollback()
    queue_db.begin()
    assert queue_db.finish(ones, RETRY) == [DONE] * 64 + [BUSY] * 6
    assert advisory_locks(queue_db) <= 2 * 64 + 10
    queue_db.rollback()


def test_trap_15_single_keys_are_capped_too(queue_db):
    queue_db.enqueue(200)
    claim = queue_db.claim()
    other = queue_db.session()
    other.begin()
    other.finish(claim[:1], RETRY)
    queue_db.begin()
    statuses = queue_db.complete(claim[1:])
    assert statuses == [DONE] * 64 + [BUSY] * 135
    assert advisory_locks(queue_db) <= 2 * 64 + 10
    queue_db.rollback()


def test_trap_15_claim_and_enqueue_hold_few_locks(queue_db):
    for priority in (1, 2, 3, 4):
        queue_db.enqueue(100, priority=priority)
    queue_db.begin()
    queue_db.enqueue(10)
    queue_db.claim()
    assert advisory_locks(queue_db) <= 10
    queue_db.rollback()


def test_trap_16_no_lock_outlives_a_statement_timeout(db):
    db.enqueue(10)
    claim = db.claim(5)
    worker = db.session()
    calls = ["SELECT * FROM awa.claim(1, 2, '{q}', 10, 1000000)",
             worker.cursor.mogrify(worker.COMPLETE, worker.complete_arguments(claim)).decode(),
             "SELECT awa.promote_due(10)", "SELECT awa.rotate_rings(0, 0)", "SELECT awa.sync_ring_pointers()",
             "SELECT awa.carry_lanes(10)", "SELECT awa.close_slots()", "SELECT awa.prune_slots(0, 0)",
             "SELECT awa.claim_result(1, 2, 0)", "SELECT awa.jobs_exist('{1}')", "SELECT awa.claim_idempotency_key('k', '{1}')",
             "SELECT awa.enqueue('q', 'k')", "SELECT * FROM awa.reserve_job_ids(3)", "SELECT * FROM awa.queue_counts_exact('q')"]
    worker.rows("SET statement_timeout = '300ms'")
    for call in calls:
        with pytest.raises(psycopg2.errors.QueryCanceled):
            worker.rows(f"WITH done AS MATERIALIZED ({call}) SELECT count(*), pg_sleep(60) FROM done")
        assert advisory_locks(worker) == 0, call
    assert db.counts() == {"available": 5, "running": 5}
    assert len(db.claim()) == 5
    assert db.complete(claim) == [DONE] * 5


@pytest.mark.parametrize("then, status_of_it", [("commit", STALE), ("rollback", DONE)])
def test_trap_42_one_job_closed_in_an_open_session(queue_db, then, status_of_it):
    queue_db.enqueue(64)
    claim = queue_db.claim()
    psql = queue_db.session()
    psql.begin()
    assert psql.finish(claim[10:11], FAIL) == [DONE]
    statuses = queue_db.complete(claim)
    assert statuses[10] == BUSY
    assert statuses[:10] + statuses[11:] == [DONE] * 63
    assert queue_db.complete(claim[10:11]) == [BUSY]
    assert queue_db.finish(claim[10:11], RETRY) == [BUSY]
    getattr(psql, then)()
    assert queue_db.complete(claim) == [ALREADY_DONE] * 10 + [status_of_it] + [ALREADY_DONE] * 53
    assert queue_db.counts() == ({"completed": 63, "failed": 1} if then == "commit" else {"completed": 64})


def test_bulk_closer_that_stays_open_makes_the_others_busy(queue_db):
    queue_db.enqueue(10)
    claim = queue_db.claim()
    slow = queue_db.session()
    slow.begin()
    assert slow.complete(claim[:5]) == [DONE] * 5
    assert set(queue_db.complete(claim)) == set(queue_db.finish(claim, RETRY)) == {BUSY}
    slow.commit()
    assert queue_db.complete(claim) == [ALREADY_DONE] * 5 + [DONE] * 5


NEEDS_READ_COMMITTED = {
    "claim": "SELECT * FROM awa.claim(1, 2, '{q}', 1, 1)",
    "complete_batch": "SELECT awa.complete_batch('{0}', '{1}', '{1}', '{1}', '{1}', '{1}', '{1}')",
    "finish_items": "SELECT awa.finish_items('{0}', '{1}', '{1}', '{1}', '{1}', '{1}', '{1}', '{0}', '{NULL}')",
    "promote_due": "SELECT awa.promote_due(1)",
    "rotate_rings": "SELECT awa.rotate_rings(0, 0)",
    "sync_ring_pointers": "SELECT awa.sync_ring_pointers()",
    "carry_lanes": "SELECT awa.carry_lanes(1)",
    "close_slots": "SELECT awa.close_slots()",
    "prune_slots": "SELECT awa.prune_slots(0, 0)",
    "queue_counts_exact": "SELECT * FROM awa.queue_counts_exact('q')",
    "claim_result": "SELECT * FROM awa.claim_result(1, 2, 0)",
    "jobs_exist": "SELECT awa.jobs_exist('{1}')",
    "claim_idempotency_key": "SELECT awa.claim_idempotency_key('k', '{1}')",
    "purge_idempotency_keys": "SELECT awa.purge_idempotency_keys(1)",
    "rescue_instances": "SELECT awa.rescue_instances(1, 0)",
}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("function", NEEDS_READ_COMMITTED)
def test_trap_52_older_snapshots_are_refused_with_a_sentence(queue_db, function, level):
    queue_db.enqueue()
    queue_db.begin(level)
    with pytest.raises(psycopg2.errors.InvalidTransactionState) as refusal:
        queue_db.rows(NEEDS_READ_COMMITTED[function])
    assert refusal.value.diag.message_primary == f"{function} must run under READ COMMITTED, this transaction is {level}"
    assert refusal.value.diag.message_hint
    queue_db.rollback()


def test_trap_59_items_of_64_batches(queue_db):
    """64 jobs, each of another claim batch of 512: each costs its batch's pages and two small rows."""
    ones, rest = scattered_batches(queue_db, 64, 512)
    warm = ones.pop()
    assert queue_db.complete([warm]) == [DONE]
    single = queue_db.cost(queue_db.COMPLETE, queue_db.complete_arguments(rest[:1]))
    ordered = sorted(ones, key=lambda job: job.batch_id)
    cost = queue_db.cost(queue_db.COMPLETE, queue_db.complete_arguments(ordered))
    print(f"63 items of 63 batches: {cost}, one: {single}")
    assert cost.buffers <= 63 * 12
    assert queue_db.counts()["completed"] == 65
