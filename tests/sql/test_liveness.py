"""What happens when a connection, a worker or a proxy is lost: nothing is in doubt for long, and every job runs again."""
import re
import select
import socket
import struct
import time

import psycopg2
import pytest

from engine import (ALREADY_DONE, BUSY, CANCEL, DAY_MS, DONE, FAIL, INVALID, RELEASE, RETRY, SNOOZE, STALE, WAIT_S,
                    WORKER_LOST, PROXY_LOST, Item)


def next_attempt(db, instance=1):
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    db.promote()
    return db.claim(instance=instance)


def errors(payload):
    return [e["error"] for e in payload["errors"]]


def wait_for(condition):
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.005)


# --- backends

IDENTITY = "SELECT pid, started, server_started, timeline FROM awa.backend_identity()"


def test_identity_names_the_session_and_the_server(db):
    [(pid, started, server_started, timeline)] = db.rows(IDENTITY)
    assert pid == db.pid
    assert started == db.value("SELECT backend_start FROM pg_stat_activity WHERE pid = %s", (pid,))
    assert server_started == db.value("SELECT pg_postmaster_start_time()")
    assert timeline == db.value("SELECT timeline_id FROM pg_control_checkpoint()")
    other = db.session()
    assert other.rows(IDENTITY)[0][:2] != (pid, started)


def is_gone(db, pid, started):
    return db.value("SELECT awa.backend_is_gone(%s, %s)", (pid, started))


def test_backend_is_asked_to_end_until_it_is_gone(db):
    lost = db.session()
    pid, started, *_ = lost.rows(IDENTITY)[0]
    lost.begin()
    lost.enqueue_sql(3)
    assert is_gone(db, pid, started) is False
    wait_for(lambda: is_gone(db, pid, started))
    assert db.counts() == {}, "what it had not committed is undone once it is gone"
    with pytest.raises(psycopg2.OperationalError):
        lost.commit()


def test_backend_that_has_gone_is_noticed_within_one_transaction(db):
    lost = db.session()
    pid, started, *_ = lost.rows(IDENTITY)[0]
    db.begin()
    assert is_gone(db, pid, started) is False
    wait_for(lambda: is_gone(db, pid, started))
    db.commit()


def test_same_pid_of_another_start_is_another_backend(db):
    other = db.session()
    pid, started, *_ = other.rows(IDENTITY)[0]
    assert db.value("SELECT awa.backend_is_gone(%s, %s::timestamptz - interval '1 us')", (pid, started)) is True
    assert other.value("SELECT 1") == 1, "and is left alone"


@pytest.mark.parametrize("arguments", ["pg_backend_pid(), now()", "NULL, now()", "1, NULL"])
def test_backend_question_without_sense(db, arguments):
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="of another backend"):
        db.rows(f"SELECT awa.backend_is_gone({arguments})")


class RawSession:
    """A session below libpq: it can send statements without a Sync."""

    def __init__(self, cluster, database):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(next((cluster.dir / "socket").glob(".s.PGSQL.*[0-9]"))))
        startup = b"user\0awa_owner\0database\0" + database.encode() + b"\0\0"
        self.socket.sendall(struct.pack("!ii", 8 + len(startup), 196608) + startup)
        self.received = b""
        while not self.received.endswith(b"Z\0\0\0\5I"):
            self.received += self.socket.recv(65536)

    def message(self, kind, body):
        return kind + struct.pack("!i", 4 + len(body)) + body

    def execute_without_sync(self, sql):
        self.socket.sendall(self.message(b"P", b"\0" + sql.encode() + b"\0\0\0") + self.message(b"B", b"\0\0\0\0\0\0\0\0")
                            + self.message(b"E", b"\0\0\0\0\0") + self.message(b"H", b""))

    def query(self, sql):
        self.socket.sendall(self.message(b"Q", sql.encode() + b"\0"))

    def close(self):
        self.socket.close()


def wait_for_stuck(db, sql_part):
    wait_for(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state = 'active'"
                              " AND wait_event = 'ClientRead' AND query LIKE %s", (f"%{sql_part}%",)) == 1)


def test_trap_55_claim_without_its_sync_is_ended(db):
    db.enqueue(3)
    frozen = RawSession(db.cluster, db.name)
    frozen.execute_without_sync("SELECT * FROM awa.claim(7, 7, '{q}', 3, 1000000)")
    wait_for_stuck(db, "awa.claim")
    assert db.claim(3).end == BUSY, "it holds the lane"
    assert db.value("SELECT awa.end_stuck_backends()") == 0, "ten seconds are not over"
    assert db.value("SELECT awa.end_backends_stuck_for(interval '0')") == 1
    wait_for(lambda: db.claim(3).end != BUSY)
    assert db.counts() == {"running": 3}
    frozen.close()


def test_copy_and_open_transactions_are_no_stuck_backends(db):
    db.rows("CREATE TABLE public.t (x int)")
    copying, idle = RawSession(db.cluster, db.name), db.session()
    copying.query("COPY public.t FROM STDIN")
    wait_for_stuck(db, "COPY")
    idle.begin()
    idle.enqueue_sql()
    assert db.value("SELECT awa.end_backends_stuck_for(interval '0')") == 0
    idle.commit()
    copying.close()


@pytest.mark.parametrize("program, ended", [("awa-proxy", 1), ("psql", 0)])
def test_session_that_does_not_read_what_it_listens_to_is_ended(db, program, ended):
    """A stopped proxy's control session: blocked in a write, it never idles out."""
    stopped = RawSession(db.cluster, db.name)
    stopped.query(f"SET application_name = '{program}'; SELECT awa.listen()")

    def is_blocked():
        db.rows("SELECT awa.wake_queues(ARRAY(SELECT repeat('x', 190) || n FROM generate_series(1, 1000) n))")
        return db.value("SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND state = 'idle' AND wait_event = 'ClientWrite'") == 1

    wait_for(is_blocked)
    assert db.value("SELECT awa.end_stuck_backends()") == 0, "ten seconds are not over"
    assert db.value("SELECT awa.end_backends_stuck_for(interval '0')") == ended
    if ended:
        wait_for(lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", (program,)) == 0)
    stopped.close()


# --- the result of a claim

def test_trap_54_result_of_a_committed_claim(db):
    db.enqueue_items([Item(args=f'{{"n": {n}}}', kind=f"k{n}", metadata='{"m": 1}' if n % 2 else None, max_attempts=n + 1, traceparent=f"t{n}" if n % 3 else None)
                      for n in range(9)])
    db.claim(3)
    lost = db.claim(3, nonce=77)
    db.claim(3)
    found = db.claim_result(77)
    assert list(found) == list(lost) and found.end is None
    assert db.complete(found) == [DONE] * 3


def test_trap_54_result_over_lanes_slots_and_attempts(db):
    """Several batches, in both rings' slots, with bodies of several attempts."""
    db.enqueue(4)
    db.enqueue(2, priority=1)
    db.enqueue(3, queue="other")
    first = db.claim(2, queues=("other",))
    db.finish(first, RETRY, delay_ms=1, error="e")
    db.rotate()
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    db.promote()
    lost = db.claim(100, queues=("other", "q"), nonce=78)
    assert len(lost) == 9 and len(lost.batches) > 3
    for _ in range(3):
        db.rotate()
    found = db.claim_result(78)
    assert [batch[:3] for batch in found.batches] == sorted(batch[:3] for batch in lost.batches)
    unplaced = [[(j.job_id, j.run_lease, j.attempt, j.index, j.batch_id, j.args, j.queue, j.priority) for j in jobs] for jobs in (found, lost)]
    assert sorted(unplaced[0]) == sorted(unplaced[1])
    assert set(db.complete(found)) == {DONE}


@pytest.mark.parametrize("nonce, instance", [(1, 1), (79, 2)])
def test_no_row_for_a_claim_that_did_not_commit_or_is_anothers(db, nonce, instance):
    db.enqueue(4)
    db.begin()
    db.claim(2, nonce=1)
    db.rollback()
    db.claim(2, nonce=79)
    assert list(db.claim_result(nonce, instance)) == []


def test_result_holds_jobs_that_ended_meanwhile(db):
    db.enqueue(4)
    lost = db.claim(nonce=80)
    db.complete(lost[:1])
    db.finish(lost[1:2], FAIL)
    db.cancel([lost[2].job_id])
    found = db.claim_result(80)
    assert list(found) == list(lost)
    assert db.complete(found) == [ALREADY_DONE, STALE, STALE, DONE]


def test_result_of_a_claim_whose_bodies_were_pruned_is_nothing(db):
    """The claim slot stays, because of an attempt of another slot's body."""
    db.enqueue(4)
    db.complete(db.claim(nonce=81))
    db.rotate(0, DAY_MS)
    db.enqueue(1)
    [kept] = db.claim(nonce=82)
    db.close_slots()
    assert db.prune() == 1 and db.count("lease_claim_batches") == 2
    assert list(db.claim_result(81)) == []
    assert list(db.claim_result(82)) == [kept]


def test_result_is_read_among_the_newer_batches_only(db):
    db.enqueue_bulk(4010)
    db.rows("SELECT count(*) FROM generate_series(1, 2000) n CROSS JOIN LATERAL awa.claim(1, n, '{q}', 1, 1000)")
    [answered] = db.claim(1)
    lost = db.claim(3, nonce=5000)
    db.rows("SELECT count(*) FROM generate_series(1, 20) n CROSS JOIN LATERAL awa.claim(1, n, '{q}', 1, 1000)")
    query = "SELECT * FROM awa.claim_result(1, 5000, %s)"
    for _ in range(6):      # until the plan is a generic one
        long, short = db.cost(query, (0,)), db.cost(query, (answered.batch_id,))
    print(f"all: {long}, those above {answered.batch_id}: {short}")
    assert list(db.claim_result(5000, above=answered.batch_id)) == list(db.claim_result(5000)) == list(lost)
    assert list(db.claim_result(5000, above=lost[0].batch_id)) == []
    assert short.buffers + 25 <= long.buffers, "the batches of some twenty pages"


def test_result_is_busy_while_a_claim_slot_may_be_pruned(db):
    db.enqueue(1)
    lost = db.claim(1, nonce=82)
    other = db.session()
    other.begin()
    other.rows("SELECT pg_advisory_xact_lock(awa.advisory_key('claim_slot', %s))", (lost[0].claim_slot,))
    assert db.claim_result(82).end == BUSY, "no row would mean that the claim did not commit"
    other.rollback()
    assert list(db.claim_result(82)) == list(lost)


# --- which jobs exist

def exist(db, ids):
    return db.value("SELECT awa.jobs_exist(%s::bigint[])", (ids,))


def test_jobs_exist_in_every_state(db):
    ids = db.enqueue(9)
    claim = db.claim(7)
    db.complete(claim[:1])
    for job, outcome in zip(claim[1:6], (FAIL, CANCEL, RETRY, SNOOZE, RELEASE), strict=True):
        db.finish([job], outcome, delay_ms=60_000)
    db.cancel(ids[8:])
    scheduled = db.enqueue(2, run_at="2099-01-01 00:00+00")
    db.cancel(scheduled[1:])
    db.rotate()
    later = db.enqueue(1)
    missing = db.reserve(2)
    asked = [missing[0], *ids, *scheduled, *later, missing[1], ids[0], 10**15]
    assert exist(db, asked) == [False, *[True] * 12, False, True, False]
    assert exist(db, []) == []


def test_jobs_of_an_open_transaction_do_not_exist_yet(db):
    producer = db.session()
    producer.begin()
    ids = producer.enqueue_sql(2)
    assert exist(db, ids) == [False, False]
    producer.commit()
    assert exist(db, ids) == [True, True]


# --- idempotency keys

def claim_key(session, key, ids):
    return session.value("SELECT awa.claim_idempotency_key(%s, %s::bigint[])", (key, ids))


def test_a_key_answers_the_ids_of_its_first_use(db):
    assert claim_key(db, "k", [1, 2, 3]) is None
    assert claim_key(db, "k", [4]) == [1, 2, 3]
    assert claim_key(db, "other", [4]) is None


def test_key_and_jobs_are_one_transaction(db):
    db.begin()
    ids = db.reserve(2)
    assert claim_key(db, "k", ids) is None
    db.enqueue_items([Item(job_id=i) for i in ids])
    db.rollback()
    assert exist(db, ids) == [False, False]
    assert claim_key(db, "k", [9]) is None


@pytest.mark.parametrize("then, answer", [("commit", [1]), ("rollback", None)])
def test_two_uses_of_one_key_wait_for_each_other(db, then, answer):
    first, second = db.session(), db.session()
    first.begin()
    assert claim_key(first, "k", [1]) is None
    assert claim_key(db, "another", [3]) is None, "nobody else waits"
    with db.blocked(second, claim_key, second, "k", [2]) as waiting:
        getattr(first, then)()
        assert waiting.result(WAIT_S) == answer


@pytest.mark.parametrize("key, ids, sentence", [("", [1], "idempotency_key must be 1 to 200 bytes"), ("ü" * 101, [1], "idempotency_key must be 1 to 200 bytes"),
                                                (None, [1], "idempotency_key must be 1 to 200 bytes"), ("k", [], "stands for one job"), ("k", None, "stands for one job")])
def test_bad_keys_are_refused_with_a_sentence(db, key, ids, sentence):
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match=sentence):
        claim_key(db, key, ids)
    assert claim_key(db, "x" * 200, [1]) is None


def test_keys_are_purged_after_ten_minutes_oldest_first(db):
    for n in range(5):
        claim_key(db, f"k{n}", [n + 1])
    db.rows("UPDATE awa.idempotency_keys SET created_at = clock_timestamp() - interval '10 minutes' - (10 - job_ids[1]) * interval '1 s' WHERE job_ids[1] < 4")
    holder = db.session()
    holder.begin()
    holder.rows("SELECT FROM awa.idempotency_keys WHERE key = 'k1' FOR UPDATE")
    assert db.value("SELECT awa.purge_idempotency_keys(1)") == 1
    assert [row[0] for row in db.rows("SELECT key FROM awa.idempotency_keys ORDER BY 1")] == ["k1", "k2", "k3", "k4"]
    assert db.value("SELECT awa.purge_idempotency_keys(10)") == 1, "a locked key is nobody's reason to wait"
    holder.rollback()
    assert db.value("SELECT awa.purge_idempotency_keys(10)") == 1
    assert db.value("SELECT awa.purge_idempotency_keys(10)") == 0
    assert claim_key(db, "k0", [7]) is None and claim_key(db, "k3", [7]) == [4]


# --- a lost worker

def test_worker_lost_is_a_failed_attempt_that_backs_off(db):
    db.enqueue(max_attempts=9)
    before = db.value("SELECT clock_timestamp()")
    assert db.finish(db.claim(), WORKER_LOST, error="ignored") == [DONE]
    after = db.value("SELECT clock_timestamp()")
    [(state, attempt, due, payload)] = db.rows("SELECT state::text, attempt, due_at, payload FROM awa.deferred_jobs")
    assert (state, attempt, errors(payload), payload["crashes"]) == ("retryable", 1, ["worker lost"], 1)
    assert 2 <= (due - before).total_seconds() and (due - after).total_seconds() <= 2.5


def test_trap_19_three_crashes_in_a_row_are_the_end(db):
    db.enqueue(max_attempts=25)
    for _ in range(2):
        assert db.finish(next_attempt(db), WORKER_LOST) == [DONE]
        assert db.counts() == {"retryable": 1}
    assert db.finish(next_attempt(db), WORKER_LOST) == [DONE]
    [(state, attempt, payload)] = db.rows("SELECT state::text, attempt, payload FROM awa.terminal_jobs")
    assert (state, attempt, errors(payload)) == ("failed", 3, ["worker lost", "worker lost", "worker lost", "crashed"])


@pytest.mark.parametrize("between, crashes", [(RETRY, 1), (SNOOZE, 1), (RELEASE, 3), (PROXY_LOST, 3)])
def test_only_a_workers_own_word_ends_a_row_of_crashes(db, between, crashes):
    db.enqueue()
    for _ in range(2):
        db.finish(next_attempt(db), WORKER_LOST)
    claim = next_attempt(db, instance=5)
    if between == PROXY_LOST:
        assert db.rescue() == 0 and db.rescue() == 1
    else:
        assert db.finish(claim, between, delay_ms=60_000) == [DONE]
    db.finish(next_attempt(db), WORKER_LOST)
    assert db.counts() == ({"failed": 1} if crashes == 3 else {"retryable": 1})


def test_trap_19_max_attempts_end_it_earlier(db):
    db.enqueue(max_attempts=2)
    for _ in range(2):
        db.finish(next_attempt(db), WORKER_LOST)
    [(state, payload)] = db.rows("SELECT state::text, payload FROM awa.terminal_jobs")
    assert (state, errors(payload)) == ("failed", ["worker lost"] * 2)


def test_nobody_but_rescue_says_proxy_lost(queue_db):
    queue_db.enqueue()
    assert queue_db.finish(queue_db.claim(), PROXY_LOST) == [INVALID]


# --- instances

def register(session, instance, name="a proxy"):
    return session.value("SELECT awa.register_instance(%s, %s)", (instance, name))


def instances(db):
    return {i: (missing is not None, settled is not None) for i, missing, settled in
            db.rows("SELECT instance, missing_since, settled_at FROM awa.runtime_instances")}


def lose(db, session):
    """Ends a session; returns when its locks are gone."""
    session.close()
    wait_for(lambda: not db.value("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", (session.pid,)))


def let_pass(db, seconds):
    """So much of the absence of all that are missing, with the leader looking all the time."""
    db.rows("UPDATE awa.runtime_instances SET missing_since = missing_since - %s * interval '1 s', looked_at = clock_timestamp() + interval '1 h'", (seconds,))


def lost_instance(db, number, jobs=0, **fields):
    """A proxy that registered, claimed and died; what it held."""
    proxy = db.session()
    assert register(proxy, number) is True
    if jobs:
        db.enqueue(jobs, **fields)
    claim = db.claim(jobs, instance=number) if jobs else []
    lose(db, proxy)
    return claim


def test_registering_again_is_the_same_instance(db):
    proxy = db.session()
    assert register(proxy, 5, "one") and register(proxy, 5, "two")
    assert db.rows("SELECT instance, proxy, missing_since FROM awa.runtime_instances") == [(5, "two", None)]
    assert db.rescue() == 0
    assert instances(db) == {5: (False, False)}


@pytest.mark.parametrize("instance, name", [(None, "x"), (1, "x" * 201)])
def test_instance_that_cannot_be(db, instance, name):
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="at most 200 bytes"):
        register(db, instance, name)


def test_missing_is_noted_and_cleared(db):
    lost_instance(db, 5)
    assert db.rescue(missing_ms=60_000) == 0
    let_pass(db, 0)
    first = db.value("SELECT missing_since FROM awa.runtime_instances")
    assert first is not None
    db.rescue(missing_ms=60_000)
    assert db.value("SELECT missing_since FROM awa.runtime_instances") == first, "since when, not when it was last seen to be"
    back = db.session()
    register(back, 5)
    assert instances(db) == {5: (False, False)}


def test_lock_without_a_new_registration_clears_missing_too(db):
    lost_instance(db, 5)
    db.rescue(missing_ms=60_000)
    back = db.session()
    back.value("SELECT awa.instance_lock(5)")
    db.rescue(missing_ms=60_000)
    assert instances(db) == {5: (False, False)}


def test_leaders_own_instance_is_alive(db):
    leader = db.session()
    register(leader, 5)
    db.enqueue(2)
    leader.claim(2, instance=5)
    assert leader.rescue() == 0 and leader.rescue() == 0
    assert instances(db) == {5: (False, False)}
    assert db.counts() == {"running": 2}


def test_attempts_of_a_lost_proxy_run_again(db):
    held = lost_instance(db, 5, jobs=3, max_attempts=2)
    before = db.value("SELECT clock_timestamp()")
    assert db.rescue() == 3
    after = db.value("SELECT clock_timestamp()")
    assert db.counts() == {"retryable": 3}
    for attempt, due, payload in db.rows("SELECT attempt, due_at, payload FROM awa.deferred_jobs"):
        assert (attempt, errors(payload), "crashes" in payload) == (1, ["proxy lost"], False)
        assert 2 <= (due - before).total_seconds() and (due - after).total_seconds() <= 2.5
    assert set(db.complete(held)) == set(db.finish(held, RETRY)) == {STALE}
    again = next_attempt(db, instance=6)
    assert [(job.attempt, job.run_lease) for job in again] == [(2, 2)] * 3
    lost_instance(db, 6)
    assert db.rescue() == 3
    assert db.counts() == {"failed": 3}, "max_attempts are respected"
    assert {tuple(errors(p)) for p, in db.rows("SELECT payload FROM awa.terminal_jobs")} == {("proxy lost", "proxy lost")}


def test_not_before_its_time(db):
    lost_instance(db, 5, jobs=2)
    assert db.rescue(missing_ms=300_000) == 0
    assert db.counts() == {"running": 2}
    let_pass(db, 200)
    assert db.rescue(missing_ms=300_000) == 0
    let_pass(db, 100)
    assert db.rescue(missing_ms=300_000) == 2


@pytest.mark.parametrize("looks_before", [1, 2])
def test_time_in_which_nobody_looked_is_no_absence(db, looks_before):
    """The server was away for a minute: who comes back first does not take those for dead that come back next."""
    lost_instance(db, 5, jobs=2)
    for _ in range(looks_before):
        assert db.rescue(missing_ms=30_000) == 0
    db.rows("UPDATE awa.runtime_instances SET missing_since = missing_since - interval '60 s', looked_at = looked_at - interval '60 s'")
    assert db.rescue(missing_ms=30_000) == 0
    assert db.value("SELECT clock_timestamp() - missing_since BETWEEN '2 s' AND '30 s' FROM awa.runtime_instances")
    let_pass(db, 28)
    assert db.rescue(missing_ms=30_000) == 2


def test_attempts_of_the_living_are_left_alone(db):
    living = db.session()
    register(living, 4)
    db.enqueue(5)
    db.claim(5, instance=4)
    lost_instance(db, 5, jobs=3)
    assert db.rescue() == 3
    assert db.rescue() == 0
    assert db.counts() == {"running": 5, "retryable": 3}


def test_a_number_without_a_row_counts_as_missing(db):
    db.enqueue(3)
    db.claim(3, instance=99)
    assert db.rescue(missing_ms=30_000) == 0
    assert instances(db) == {99: (True, False)}
    let_pass(db, 30)
    assert db.rescue(missing_ms=30_000) == 3


def test_a_lock_without_a_row_is_a_living_instance(db):
    proxy = db.session()
    proxy.value("SELECT awa.instance_lock(99)")
    db.enqueue(3)
    db.claim(3, instance=99)
    for _ in range(4):
        assert db.rescue() == 0
    assert instances(db) == {} and db.counts() == {"running": 3}


def test_a_limit_a_call_newest_batches_first(db):
    proxy = db.session()
    register(proxy, 5)
    db.enqueue(300)
    claims = [db.claim(100, instance=5) for _ in range(3)]
    lose(db, proxy)
    assert db.rescue(limit=30) == 30
    assert {i for i, in db.rows("SELECT job_id FROM awa.deferred_jobs")} <= set(claims[2].ids)
    db.begin()
    assert db.rescue(limit=10_000) == 64, "the lock table's share of one transaction"
    assert db.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()") <= 64 + 10
    db.commit()
    ended = [30, 64]
    while ended[-1]:
        ended.append(db.rescue())
    assert sum(ended) == 300 and db.counts() == {"retryable": 300}


def test_work_a_call_is_bounded_by_batches_too(db):
    """The lost one's batch is older than more others than one call looks at."""
    lost_instance(db, 5, jobs=2)
    living = db.session()
    register(living, 4)
    db.enqueue_bulk(2500)
    db.rows("SELECT count(*) FROM generate_series(1, 2500) n CROSS JOIN LATERAL awa.claim(4, n, '{q}', 1, 1000)")
    assert db.rescue() == 0, "1000 batches were looked at"
    assert db.value("SELECT generation IS NOT NULL FROM awa.rescue_states"), "and the pass goes on from there"
    assert [db.rescue(), db.rescue()] == [0, 2]
    db.rescue()
    while db.value("SELECT generation IS NOT NULL FROM awa.rescue_states"):
        db.rescue()
    assert instances(db) == {4: (False, False), 5: (True, True)}


def test_a_second_loss_does_not_wait_for_the_pass_of_the_first(db):
    """What it held is among the newest batches, behind which that pass already is."""
    early = lost_instance(db, 5, jobs=1)
    living = db.session()
    register(living, 4)
    db.enqueue_bulk(4500)
    db.rows("SELECT count(*) FROM generate_series(1, 4500) n CROSS JOIN LATERAL awa.claim(4, n, '{q}', 1, 1000)")
    assert db.rescue() == 0
    lost_instance(db, 6, jobs=2)
    assert db.rescue() == 2, "at once"
    calls = [db.rescue() for _ in range(6)]
    assert sum(calls) == 1 and db.value("SELECT state FROM awa.get_job(%s)", (early.ids[0],)) == "retryable", "and the first one's in its turn"
    for _ in range(6):  # two passes
        db.rescue()
    assert instances(db) == {4: (False, False), 5: (True, True), 6: (True, True)}


def test_claim_slots_that_the_pointer_has_left_are_searched(db):
    claims = []
    proxy = db.session()
    register(proxy, 5)
    for _ in range(4):
        db.enqueue(1)
        claims += db.claim(1, instance=5)
        db.rotate()
    assert len({job.claim_slot for job in claims}) == 4
    lose(db, proxy)
    assert db.rescue() == 4


def test_partly_ended_batches(db):
    claim = lost_instance(db, 5, jobs=4)
    db.complete(claim[:1])
    db.finish(claim[1:2], FAIL)
    assert db.rescue() == 2
    assert db.counts() == {"completed": 1, "failed": 1, "retryable": 2}


def test_trap_18_one_bad_row_blocks_nobody_and_is_visible(db):
    """Its history is not what the engine writes."""
    claim = lost_instance(db, 5, jobs=70)
    bad = claim[10].job_id
    db.rows("UPDATE awa.ready_entries_00 SET payload = '{\"snoozes\": \"x\"}' WHERE job_id = %s", (bad,))
    ended = [db.rescue(), db.rescue(), db.rescue()]
    assert sum(ended) == 69
    assert db.counts() == {"running": 1, "retryable": 69}
    [warning] = {line for line in db.connection.notices if str(bad) in line}
    assert re.match(rf"WARNING:  job {bad} could not be rescued from a lost proxy: invalid input syntax for type integer", warning)
    assert instances(db) == {5: (True, False)}, "it is not settled as long as something is open"
    db.rows("UPDATE awa.ready_entries_00 SET payload = NULL WHERE job_id = %s", (bad,))
    assert db.rescue() + db.rescue() == 1


def test_trap_18_a_whole_call_of_bad_rows_does_not_starve_the_rest(db):
    claim = lost_instance(db, 5, jobs=200)
    db.rows("UPDATE awa.ready_entries_00 SET payload = '{\"snoozes\": \"x\"}' WHERE job_id <= %s", (claim[150].job_id,))
    assert sum(db.rescue() for _ in range(4)) == 49


def test_trap_18_unreadable_batch_blocks_nobody(db):
    claim = lost_instance(db, 5, jobs=2)
    proxy_claim = lost_instance(db, 6, jobs=2)
    db.rows("INSERT INTO awa.lease_claim_closures_00 VALUES (%s, 9, 2, now())", (proxy_claim[0].batch_id,))
    assert db.rescue() == 2
    assert any("could not be read" in line for line in db.connection.notices)
    assert db.finish(claim, RETRY) == [STALE, STALE]


def test_trap_21_completion_in_flight_and_rescue(db):
    claim = lost_instance(db, 5, jobs=3)
    flush = db.session()
    flush.begin()
    assert flush.complete(claim[:2]) == [DONE] * 2
    assert db.rescue() == 0, "the whole batch is in the other's hands"
    flush.rollback()
    flush.begin()
    assert flush.finish(claim[:1], RETRY) == [DONE]
    assert db.rescue() == 2, "one attempt is"
    assert not any("could not be rescued" in line for line in db.connection.notices), "it met the other at a row"
    flush.commit()
    assert db.rescue() == 0
    assert db.counts() == {"retryable": 3}
    assert db.rows("SELECT count(*), count(DISTINCT job_id) FROM awa.deferred_jobs") == [(3, 3)]


def test_trap_20_two_rescuers_rescue_once(db):
    lost_instance(db, 5, jobs=3)
    other = db.session()
    other.begin()
    assert other.rescue() == 3
    assert db.rescue() == 0
    other.rollback()
    assert db.rescue() == 3 and other.rescue() == 0
    assert db.counts() == {"retryable": 3}


def test_settled_then_forgotten_after_the_resend_window(db):
    lost_instance(db, 5, jobs=1)
    assert db.rescue() == 1
    assert instances(db) == {5: (True, False)}
    db.rescue()
    assert instances(db) == {5: (True, True)}
    db.rows("UPDATE awa.runtime_instances SET settled_at = settled_at - interval '14 minutes'")
    db.rescue()
    assert instances(db) == {5: (True, True)}
    db.rows("UPDATE awa.runtime_instances SET settled_at = settled_at - interval '1 minute'")
    db.rescue()
    assert instances(db) == {}


def test_claim_that_commits_after_its_instance_was_settled(db):
    db.enqueue(4)
    late = db.session()
    late.begin()
    late.claim(2, instance=5)
    lost_instance(db, 5)
    for _ in range(3):
        db.rescue()
    assert instances(db) == {5: (True, True)}
    late.commit()
    living = db.session()
    register(living, 4)
    living.claim(1, instance=4)
    assert db.rescue() == 2
    assert db.counts() == {"available": 1, "running": 1, "retryable": 2}
    assert instances(db)[5] == (True, False)


def test_forgotten_instance_that_claims_again_counts_as_missing(db):
    lost_instance(db, 5, jobs=1)
    db.rescue(), db.rescue()
    db.rows("DELETE FROM awa.runtime_instances")
    db.enqueue(1)
    db.claim(1, instance=5)
    assert db.rescue() + db.rescue() == 1


def test_slot_in_the_middle_of_a_prune_proves_nothing(db):
    claim = lost_instance(db, 5, jobs=2)
    other = db.session()
    other.begin()
    other.rows("SELECT pg_advisory_xact_lock(awa.advisory_key('claim_slot', %s))", (claim[0].claim_slot,))
    assert [db.rescue() for _ in range(3)] == [0, 0, 0]
    assert instances(db) == {5: (True, False)}
    other.rollback()
    assert db.rescue() == 2


def test_unregistered_in_a_slot_in_the_middle_of_a_prune_is_found_later(db):
    db.enqueue(1)
    [job] = db.claim(1, instance=99)
    other = db.session()
    other.begin()
    other.rows("SELECT pg_advisory_xact_lock(awa.advisory_key('claim_slot', %s))", (job.claim_slot,))
    assert [db.rescue() for _ in range(4)] == [0] * 4
    other.rollback()
    assert [db.rescue() for _ in range(3)].count(1) == 1


def test_trap_24_idle_rescue_writes_nothing(db):
    living = db.session()
    register(living, 4)
    db.enqueue(2)
    db.claim(1, instance=4)
    lost_instance(db, 5, jobs=1)
    for _ in range(6):
        db.rescue()
    before = db.wal_position()
    for _ in range(50):
        assert db.rows("SELECT awa.rescue_instances(1000, 0), pg_current_xact_id_if_assigned()") == [(0, None)]
    assert db.wal_position() - before < 500, "more than Postgres' own: a record of the running transactions every 15 s"


def test_trap_31_cost_of_a_call_does_not_grow_with_what_has_ended(db):
    """All of it by the missing instance, so that each batch is looked at; what is open is the oldest, and is found."""
    lost_instance(db, 5, jobs=1)
    db.enqueue_bulk(6000)
    db.rows("SELECT count(*) FROM generate_series(1, 6000) n CROSS JOIN LATERAL awa.claim(5, n, '{q}', 1, 1000)")
    db.rows("INSERT INTO awa.lease_claim_closure_batches_00 (batch_id, closed_at, n, members)"
            " SELECT batch_id, clock_timestamp(), 1, '1' FROM awa.lease_claim_batches_00 WHERE batch_id > (SELECT min(batch_id) FROM awa.lease_claim_batches_00)")
    costs = [db.cost("SELECT awa.rescue_instances(64, 0)") for _ in range(8)]
    print(costs)
    assert db.counts()["retryable"] == 1
    assert max(cost.buffers for cost in costs) < 1000, "they were looked up one by one"


@pytest.mark.parametrize("limit, missing_ms", [(0, 0), (1, -1), (None, 0), (1, None)])
def test_rescue_without_sense_is_refused(db, limit, missing_ms):
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="a limit above 0"):
        db.rescue(limit, missing_ms)


# --- leadership

def test_one_leads_and_the_next_after_it(db):
    other = db.session()
    lead, resign = "SELECT awa.try_lead()", "SELECT awa.resign()"
    assert db.value(lead) and not other.value(lead)
    assert db.value(lead), "still the same one"
    assert not other.value(resign) and not other.value(lead)
    assert db.value(resign), "one resignation ends it, however often it led"
    assert other.value(lead) and not db.value(lead)
    lose(db, other)
    assert db.value(lead)
    assert db.value(resign) and not db.value(resign)


def test_lead_survives_a_rollback(db):
    db.begin()
    assert db.value("SELECT awa.try_lead()")
    db.rollback()
    assert not db.session().value("SELECT awa.try_lead()")


# --- wake-ups

def wake_ups(db, listener):
    """Those up to now: they arrive in the order of their commits, so what is behind the last one has not been sent."""
    db.rows("SELECT pg_notify(%s, 'the last one')", (listener.channel,))
    found = []
    while (listener.channel, "the last one") not in found:
        assert select.select([listener.connection], [], [], WAIT_S)[0], f"no more than {found}"
        listener.connection.poll()
        found += [(n.channel, n.payload) for n in listener.connection.notifies]
        listener.connection.notifies.clear()
    return found[:-1]


@pytest.fixture
def listener(db):
    session = db.session()
    session.channel = session.value("SELECT awa.wake_channel()")
    session.rows(f'LISTEN "{session.channel}"')
    return session


def test_channel_is_the_schemas_own(db):
    assert re.fullmatch(r"awa_[0-9a-f]{1,16}", db.value("SELECT awa.wake_channel()"))


def test_wake_queues_names_each_queue_once(db, listener):
    db.rows("SELECT awa.wake_queues('{a,b,a,NULL}')")
    assert sorted(wake_ups(db, listener)) == [(listener.channel, "a"), (listener.channel, "b")]


def test_promotion_wakes_its_queues_once_each(db, listener):
    for queue in ("a", "b"):
        db.enqueue(3, queue=queue, run_at="2099-01-01 00:00+00")
    db.promote()
    assert wake_ups(db, listener) == []
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    assert db.promote() == 6
    assert sorted(payload for _, payload in wake_ups(db, listener)) == ["a", "b"]


def test_release_wakes_and_other_ends_do_not(db, listener):
    db.enqueue(7)
    claim = db.claim()
    db.complete(claim[:1])
    for job, outcome in zip(claim[1:5], (RETRY, FAIL, CANCEL, WORKER_LOST), strict=True):
        db.finish([job], outcome)
    assert wake_ups(db, listener) == []
    db.finish(claim[5:], RELEASE)
    assert wake_ups(db, listener) == [(listener.channel, "q")]


def test_enqueue_does_not_notify(db, listener):
    """A commit that notifies shuts out every other such commit until it is flushed."""
    db.enqueue(3)
    db.enqueue_sql(3)
    assert wake_ups(db, listener) == []
