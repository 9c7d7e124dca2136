"""Jobs that come back for ever, and jobs that make jobs: what the database keeps of them stays the same."""
import pytest

from engine import COMPLETE, DONE, RETRY, SNOOZE, WORKER_LOST
from test_enqueue_once import once

JOBS = 5
WARM_UP, ROUNDS = 30, 60
KEY_ROUNDS = 5  # how long idempotency keys are kept
PAGE = 8192
PAYLOAD_MAX = 4096  # 20 errors of less than 100 bytes each, and two counts


def size_of(db):
    """Bytes of everything in the schema."""
    return db.value("SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r'")


def tick(db):
    """The leader's tick, and what autovacuum does to the few tables that rows are deleted from; it is off here."""
    db.maintain()
    for table in "deferred_jobs", "promotion_states", "idempotency_keys":
        db.rows(f"VACUUM (INDEX_CLEANUP ON) awa.{table}")


def make_due(db):
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp() - interval '1 ms' * random()")
    db.promote()


def lift_snooze_cap(db):
    source = db.value("SELECT pg_get_functiondef('awa.end_attempt'::regproc)")
    assert source.count("v_snoozes >= 1000") == 1
    db.rows("SET search_path = awa, pg_temp")
    db.rows(source.replace("v_snoozes >= 1000", "v_snoozes >= 2000000000"))
    db.rows("RESET search_path")


def flat(db, one_round):
    """Runs the rounds; the size after each tick, once it has warmed up."""
    sizes = []
    for number in range(WARM_UP + ROUNDS):
        one_round(number)
        if number % 3 == 2:
            tick(db)
            if number >= WARM_UP:
                sizes.append(size_of(db))
    first, last = sizes[:len(sizes) // 4], sizes[-len(sizes) // 4:]
    print(f"size {max(first)} B in the first quarter, {max(last)} B in the last")
    assert max(last) <= max(first) + 4 * PAGE, "it grows"


@pytest.mark.parametrize("outcome", [SNOOZE, RETRY])
def test_ptrap_15_jobs_that_come_back_again_and_again(db, outcome):
    """With the cap of snoozes lifted: what a job drags along of its past is bounded."""
    lift_snooze_cap(db)
    ids = db.enqueue(JOBS, max_attempts=1000)

    def one_round(_number):
        claim = db.claim()
        assert sorted(claim.ids) == ids
        assert set(db.finish(claim, outcome, 60_000, "again")) == {DONE}
        assert db.value("SELECT max(octet_length(payload::text)) FROM awa.deferred_jobs") < PAYLOAD_MAX
        make_due(db)

    flat(db, one_round)
    claim = db.claim()
    assert db.complete(claim) == [DONE] * JOBS
    assert db.counts() == {"completed": JOBS}
    assert {job.run_lease for job in claim} == {WARM_UP + ROUNDS + 1}


def test_ptrap_15_jobs_that_enqueue_jobs_and_lose_their_workers(db):
    """Each job enqueues the next one under a key of its own, and every third worker dies between that and its completion. The job
    runs again, and so does its enqueue: without the key there would be more jobs each time."""
    db.enqueue(JOBS)

    def one_round(number):
        claim = db.claim()
        assert sum(job.attempt == 1 for job in claim) == JOBS, "jobs were multiplied or lost"
        for place, job in enumerate(claim):
            _, known = once(db, f"after {job.job_id}", ['{"n": 1}'])
            assert [row[3] for row in known] == [True] * (job.attempt - 1), "its first enqueue is forgotten"
            lost = job.attempt == 1 and (number + place) % 3 == 0
            assert db.finish([job], WORKER_LOST if lost else COMPLETE) == [DONE]
        make_due(db)
        db.rows("UPDATE awa.idempotency_keys SET created_at = created_at - interval '10 min' / %s", (KEY_ROUNDS,))
        db.value("SELECT awa.purge_idempotency_keys(1000)")

    flat(db, one_round)
    counts = db.counts()
    assert counts["available"] <= JOBS + JOBS
    assert counts["completed"] >= JOBS * (WARM_UP + ROUNDS - 1)
    assert set(counts) == {"available", "completed"}
