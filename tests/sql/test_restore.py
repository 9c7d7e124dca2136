"""After a crash, and after the schema was moved to another cluster."""
import itertools
import os
import signal
import subprocess

import psycopg2
import pytest

from engine import DAY_MS, DONE, FAIL, Engine, Session
from postgres import Cluster

NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def young_cluster(cluster):
    """Another cluster, whose transaction ids are behind those of the first."""
    young = Cluster(cluster.dir.parent / "y")
    try:
        young.tool("start")
        yield young
    finally:
        young.tool("destroy")


def move(db, cluster):
    """pg_dump | psql into a new database of `cluster`."""
    name = f"moved_{next(NUMBERS)}"
    cluster.execute(f"CREATE DATABASE {name} OWNER awa_owner")
    dump = subprocess.run(["pg_dump", "--schema", "awa", db.url], check=True, capture_output=True, timeout=60)
    subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "--single-transaction", cluster.url(name)], input=dump.stdout,
                   check=True, stdout=subprocess.DEVNULL, timeout=60, env=os.environ | {"PGOPTIONS": "-c client_min_messages=warning"})
    return Engine(cluster, name)


@pytest.fixture
def old(db):
    """Jobs in every place, two slots, a queue that was claimed from and one that never was."""
    db.rows("DO $$ BEGIN FOR i IN 1 .. 3000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
    db.left = db.enqueue(6)
    claim = db.claim(4)
    db.complete(claim[:1])
    db.finish(claim[1:2], FAIL)
    db.running = claim[2:]
    db.rotate()
    db.left = db.left[4:] + db.enqueue(3)
    db.never_claimed = db.enqueue(3, queue="never")
    db.enqueue(2, run_at="2099-01-01 00:00+00")
    return db


COUNTS = {"scheduled": 2, "available": 5, "running": 2, "completed": 1, "failed": 1}


def assert_everything_runs_once(moved, old, extra=()):
    moved.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    assert moved.promote() == 2
    assert moved.complete(old.running) == [DONE] * 2, "receipts are still good"
    worked = moved.work()
    assert len(worked) == len(set(worked)) == len(old.left) + 2 + len(extra)
    assert set(worked) >= {*old.left, *extra}
    assert moved.work(["never"]) == old.never_claimed
    fresh = moved.enqueue(600)
    assert min(fresh) > max(worked), "ids are not given out again"
    assert moved.work(limit=100) == fresh
    for _ in range(6):
        moved.lap()
    assert moved.counts() == {"completed": 1 + 2 + len(worked) + 600, "failed": 1}


@pytest.mark.parametrize("queue", ["q", "never"])
def test_trap_56_claim_in_a_younger_cluster_is_refused_with_the_remedy(old, young_cluster, queue):
    moved = move(old, young_cluster)
    for _ in range(2):
        with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState) as refusal:
            moved.claim(queues=[queue])
        assert f"queue {queue} holds foreign state" in refusal.value.diag.message_primary
        assert refusal.value.diag.message_hint
    assert moved.counts() == COUNTS
    assert moved.claim(queues=["nobody"]).ids == [], "other queues are not concerned"
    moved.close()


@pytest.mark.parametrize("sequences", ["kept", "set back"])
@pytest.mark.parametrize("first_call", ["claim", "enqueue"])
def test_trap_56_every_job_runs_once_after_the_remedy(old, young_cluster, first_call, sequences):
    moved = move(old, young_cluster)
    if sequences == "set back":
        for sequence in ("job_id_seq", "lease_claim_batch_id_seq"):
            moved.rows(f"SELECT setval('awa.{sequence}', 1, false)")
    extra = []
    if first_call == "claim":
        with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState):
            moved.claim()
    elif sequences == "kept":
        extra = moved.enqueue(2)
    moved.rows("SELECT awa.rebase()")
    assert moved.counts() == COUNTS | {"available": 5 + len(extra)}
    assert_everything_runs_once(moved, old, extra)
    moved.close()


def test_trap_56_rescue_looks_at_what_is_claimed_after_the_remedy(old, young_cluster):
    """Its walk knows how far it came by numbers that the sequence has yet to reach."""
    old.rows("UPDATE awa.rescue_states SET newest = 5000, lowest = 4000")     # their batches have been pruned, of an instance that is forgotten
    moved = move(old, young_cluster)
    moved.rows("SELECT setval('awa.lease_claim_batch_id_seq', 1, false)")
    moved.rows("SELECT awa.rebase()")
    [job] = moved.claim(1, queues=["never"], instance=99)
    assert job.batch_id < 4000
    moved.rescue(missing_ms=DAY_MS)
    assert (99,) in moved.rows("SELECT instance FROM awa.runtime_instances WHERE missing_since IS NOT NULL")
    moved.close()


def test_trap_56_maintenance_before_the_remedy_loses_nothing(old, young_cluster):
    """States and bodies of the other cluster prove nothing, so no slot with bodies that wait is closed."""
    old.rotate()
    alone = old.enqueue(2, queue="alone")
    moved = move(old, young_cluster)
    for _ in range(4):
        moved.maintain()
    extra = moved.enqueue(2)
    for _ in range(4):
        moved.maintain()
    moved.rows("SELECT awa.rebase()")
    assert moved.counts() == COUNTS | {"available": 7}
    assert moved.work(["alone"]) == alone
    assert_everything_runs_once(moved, old, extra)
    moved.close()


def test_trap_38_dump_and_restore_beside_the_original(old, cluster):
    """Transaction ids are not behind here, so nothing has to be repaired."""
    moved = move(old, cluster)
    assert moved.counts() == COUNTS
    assert_everything_runs_once(moved, old)
    moved.close()
    assert old.counts() == COUNTS


def test_remedy_is_refused_while_proxies_live(db):
    db.enqueue(2)
    proxies = [db.session() for _ in range(3)]
    for number, (proxy, name) in enumerate(zip(proxies, ["left", None, "gone"]), 11):
        assert proxy.value("SELECT awa.register_instance(%s, %s)", (number, name))
    proxies.pop().close()
    lock = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"
    while db.value(lock) > 2:
        pass
    with pytest.raises(psycopg2.errors.ObjectInUse) as refusal:
        db.rows("SELECT awa.rebase()")
    assert refusal.value.diag.message_primary == "schema awa has proxies connected: left (instance 11), unnamed (instance 12)"
    assert refusal.value.diag.message_hint == "Stop all of them first."
    for proxy in proxies:
        proxy.close()
    while db.value(lock) > 0:
        pass
    db.rows("SELECT awa.rebase()")
    assert len(db.work()) == 2


def test_proxy_that_comes_in_the_middle_of_the_remedy_waits_for_it(db):
    proxy, other = db.session(), db.session()
    other.rows("SELECT awa.register_instance(12, 'other')")     # would be seen, had it come before
    other.close()
    while db.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'") > 0:
        pass
    db.begin()
    db.rows("SELECT awa.rebase()")
    with db.blocked(proxy, proxy.value, "SELECT awa.register_instance(12, 'again')") as registered:
        db.commit()
        assert registered.result() is True


def test_trap_58_reserved_ids_survive_a_crash(cluster, new_engine):
    """nextval logs 32 values at once: a block inside what an open transaction has logged is on disk only if reserving flushes.
    With the WAL writer stopped nobody else does."""
    with new_engine() as db:
        db.enqueue(3)
        superuser, other = Session(cluster.superuser_url()), db.session()
        os.kill(superuser.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"), signal.SIGSTOP)
        other.begin()
        other.reserve(40)
        reserved = db.reserve(5)
        cluster.tool("kill9")
        cluster.tool("start")
        superuser.close()
        after = Session(db.url)
        again = after.reserve(500)
        after.close()
    assert min(again) > max(reserved)
