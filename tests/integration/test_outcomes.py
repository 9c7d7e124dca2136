"""What becomes of calls whose connection is lost, at every point, closed or silent: the proxy finds out
whether they were committed, and tells each client the truth once."""
import concurrent.futures
import contextlib
import os
import re
import signal
import threading
import time

import pytest

from postgres import connected
from proxy_process import Proxy, wait_for
from relay import Relay
from wire_client import Client, pb

# What docs/protocol.md states, with as much room for a busy machine as still tells it from what would be wrong.
CLOSED_BOUND_S = 9          # a closed connection: far below a second when nothing else runs; taken for a silent one, 10 s
STALL_BOUND_S = 25          # a silent one: given up after 15 s, under a claim after 10
REQUEST_BOUND_S = 44        # an own deadline of 30 s; kept until a question of 15 s is given up, the second one after that: 45
CONTROL_BOUND_S = 14        # a control session that is given up: at once; a silent one would idle out after 15 s
OPTIONS = ("--drain-timeout-ms", "2000", "--pool-size", "3")


class World:
    """A database of its own, a relay to it, and proxies that all end with it."""

    def __init__(self, cluster, program, template, name, folder):
        self.cluster, self.program, self.name, self.folder = cluster, program, name, folder
        cluster.execute(f"CREATE DATABASE {name} OWNER awa_owner TEMPLATE {template}")
        self.url = cluster.url(name)
        self.relay = Relay(cluster, self.url)
        self.relay.__enter__()
        self.proxies = []

    def start(self, url=None, *options):
        """One more proxy, in a folder of its own; behind the relay, unless told otherwise."""
        folder = self.folder / f"{self.name}-{len(self.proxies)}"
        folder.mkdir()
        self.proxies.append(Proxy(self.program, folder, url or self.relay.url, *OPTIONS, *options))
        return self.proxies[-1].wait_ready()

    def connect(self, *options):
        """A client of a proxy behind the relay."""
        client = Client(self.start(None, *options).socket)
        client.socket.settimeout(60)
        return client

    def log(self):
        return self.proxies[0].log()

    def end(self):
        for proxy in self.proxies:
            proxy.end()
        self.relay.__exit__()
        self.cluster.execute(f"DROP DATABASE {self.name} WITH (FORCE)")
        for proxy in self.proxies:
            assert "level=fatal" not in proxy.log() and "Sanitizer" not in proxy.log(), proxy.log()


@pytest.fixture(scope="module")
def new_world(cluster, awa_proxy, migrated, database_numbers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("outcomes")
    return lambda: World(cluster, awa_proxy, migrated, f"outcome_{next(database_numbers)}", folder)


@pytest.fixture
def world(new_world):
    made = new_world()
    yield made
    made.end()


SCENARIOS = []


def together(scenario):
    """Makes a test of a scenario that mostly waits: all of these run at the same time, begun by the first."""
    SCENARIOS.append(scenario)

    def test(running):
        running[scenario].result(120)
    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


@pytest.fixture(scope="module")
def running(new_world):
    worlds = [new_world() for _ in SCENARIOS]
    with concurrent.futures.ThreadPoolExecutor(len(SCENARIOS)) as pool:
        yield {s: pool.submit(s, w) for s, w in zip(SCENARIOS, worlds)}
    for made in worlds:
        made.end()


@contextlib.contextmanager
def within(seconds):
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def fetch(url, sql, *parameters):
    with connected(url) as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone()


def counts(url, queue="q"):
    return fetch(url, "SELECT available, running, completed FROM awa.queue_counts_exact(%s)", queue)


def new_job(number=0, queue="q"):
    return pb.NewJob(queue=queue, kind="k", args=b"%d" % number)


def statuses(results):
    return [pb.FinishStatus.Name(result.status) for result in results]


def enqueue(client, count=1, key="", queue="q"):
    answer = client.call(enqueue=pb.Enqueue(jobs=[new_job(i, queue) for i in range(count)], idempotency_key=key))
    assert not answer.HasField("error"), answer.error
    return answer.enqueue_ok.results


def ids_of(results):
    assert all(r.job_id for r in results), results
    return [r.job_id for r in results]


# ---- claims

def test_trap_54_claim_cut_between_commit_and_answer(world):
    client = world.connect()
    ids = ids_of(enqueue(client, 3))
    fault = world.relay.inject("after_commit", "awa_CLAIM")
    with within(CLOSED_BOUND_S):
        jobs = client.claim("q", jobs=3, wait_ms=20000)
    fault.wait()
    # The very attempts of the lost answer, whole and in order.
    assert [(j.job_id, j.attempt, j.args) for j in jobs] == [(ids[i], 1, b"%d" % i) for i in range(3)]
    assert fetch(world.url, "SELECT count(*) FROM awa.ready_claim_attempt_batches")[0] == 1
    assert statuses(client.complete(*jobs)) == ["DONE"] * 3
    assert "outcome_unknown call=claim" in world.log() and "outcome_resolved" in world.log()


def test_trap_54_claim_that_never_arrived(world):
    client = world.connect()
    ids = ids_of(enqueue(client, 2))
    world.relay.inject("before_sent", "awa_CLAIM")
    with within(CLOSED_BOUND_S):
        jobs = client.claim("q", jobs=2, wait_ms=20000)
    assert [j.job_id for j in jobs] == ids
    assert statuses(client.complete(*jobs)) == ["DONE"] * 2


@together
def test_trap_54_claim_stalled_between_commit_and_answer(world):
    """It is given up earlier than what stalls before it: it holds the mutexes of its lanes."""
    client = world.connect()
    client.open_more(world.proxies[0])
    ids = ids_of(enqueue(client, 2))
    fault = world.relay.inject("stall", "awa_ENQUEUE_BATCH")
    stalled = client.send(enqueue=pb.Enqueue(jobs=[new_job(queue="other")]))
    fault.wait()
    world.relay.inject("stall", "awa_CLAIM")
    with within(STALL_BOUND_S):
        jobs = client.claim("q", jobs=2, wait_ms=30000)
        ids_of(client.answer(stalled).enqueue_ok.results)
    assert [(j.job_id, j.attempt) for j in jobs] == [(i, 1) for i in ids]
    assert statuses(client.complete(*jobs)) == ["DONE"] * 2
    # More may follow: what was sent behind the enqueue.
    assert re.findall(r"outcome_unknown call=(\w+)", world.log())[:2] == ["claim", "enqueue"]


@together
def test_trap_54_jobs_that_nobody_waits_for_go_back(world):
    client = world.connect()
    enqueue(client, 2)
    fault = world.relay.inject("stall", "awa_CLAIM")
    client.send(claim=pb.Claim(queues=["q"], max_jobs=2, wait_ms=30000))
    fault.wait()
    assert counts(world.url) == (0, 2, 0)
    client.close()
    with within(STALL_BOUND_S):
        wait_for(lambda: counts(world.url) == (2, 0, 0))
    jobs = Client(world.proxies[0].socket).claim("q", jobs=2, wait_ms=5000)
    assert [job.attempt for job in jobs] == [1, 1]


@together
def test_trap_55_claim_without_its_sync_frees_the_lane(world):
    client = world.connect()
    ids = ids_of(enqueue(client, 2))
    other = Client(world.start(world.url).socket)
    fault = world.relay.inject("no_sync", "awa_CLAIM")
    waiting = client.send(claim=pb.Claim(queues=["q"], max_jobs=1, wait_ms=30000))
    fault.wait()
    with within(STALL_BOUND_S):  # the lane's mutex is held until the backend is ended
        first, = other.claim("q", wait_ms=30000)
        second, = client.answer(waiting).claim_ok.jobs
    assert sorted([first.job_id, second.job_id]) == ids
    assert statuses(other.complete(first)) + statuses(client.complete(second)) == ["DONE"] * 2


# ---- enqueues

@pytest.mark.parametrize("kind", ["after_commit", "before_sent"])
def test_enqueue_cut(world, kind):
    client = world.connect()
    enqueue(client)
    fault = world.relay.inject(kind, "awa_ENQUEUE_BATCH")
    with within(CLOSED_BOUND_S):
        ids = ids_of(enqueue(client, 20))
    fault.wait()
    assert counts(world.url) == (21, 0, 0)  # none twice
    jobs = client.claim("q", jobs=100, wait_ms=5000)
    assert [j.job_id for j in jobs][1:] == ids


def stall_an_enqueue(world, kind):
    client = world.connect()
    enqueue(client)
    world.relay.inject(kind, "awa_ENQUEUE_BATCH")
    with within(STALL_BOUND_S):
        ids_of(enqueue(client, 5))
    assert counts(world.url) == (6, 0, 0)
    assert "Postgres did not answer in time" in world.log()


@together
def test_ptrap_03_enqueue_stalled_after_commit(world):
    stall_an_enqueue(world, "stall")


@together
def test_ptrap_03_enqueue_lost_on_the_way(world):
    stall_an_enqueue(world, "deaf")


@together
def test_ptrap_03_enqueue_without_its_sync(world):
    stall_an_enqueue(world, "no_sync")


@together
def test_ptrap_03_deadline_passes_first_and_a_resend_learns(world):
    """Nothing gets through for longer than a request may wait."""
    client = world.connect()
    enqueue(client)
    job, = client.claim("q", wait_ms=5000)
    faults = [world.relay.inject("stall", "awa_COMPLETE_BATCH"), world.relay.inject("stall", "awa_ENQUEUE_ONCE"),
              world.relay.inject("deaf", "awa_BACKEND_IS_GONE", times=99)]
    finish = pb.Finish(items=[pb.FinishItem(receipt=job.receipt, complete=pb.Complete())])
    sent = client.send(finish=finish)
    keyed = client.send(enqueue=pb.Enqueue(jobs=[new_job()] * 2, idempotency_key="key"))
    faults[0].wait()
    faults[1].wait()
    with within(REQUEST_BOUND_S):
        assert client.answer(sent).error.code == pb.DEADLINE_EXCEEDED
        assert [r.error.code for r in client.answer(keyed).enqueue_ok.results] == [pb.DEADLINE_EXCEEDED] * 2
    for fault in faults:
        fault.left = 0
    with within(STALL_BOUND_S):
        again, = client.call(finish=finish).finish_ok.results
        assert statuses([again]) == ["ALREADY_DONE"]
        ids_of(enqueue(client, 2, key="key"))
    assert counts(world.url) == (2, 0, 1)


@together
def test_completion_cut(world):
    client = world.connect()
    enqueue(client, 4)
    jobs = client.claim("q", jobs=4, wait_ms=5000)
    world.relay.inject("after_commit", "awa_COMPLETE_BATCH")
    with within(CLOSED_BOUND_S):
        assert statuses(client.complete(*jobs[:2])) == ["ALREADY_DONE"] * 2
    world.relay.inject("no_sync", "awa_COMPLETE_BATCH")
    with within(STALL_BOUND_S):
        assert statuses(client.complete(*jobs[2:])) == ["DONE"] * 2
    assert counts(world.url) == (0, 0, 4)


OTHER_SERVER = """
CREATE TABLE awa.pretended (timeline int);
INSERT INTO awa.pretended VALUES (1);
ALTER FUNCTION awa.backend_identity() RENAME TO real_identity;
CREATE FUNCTION awa.backend_identity() RETURNS TABLE (pid int, started timestamptz, server_started timestamptz, timeline int)
LANGUAGE sql AS $$ SELECT r.pid, r.started, r.server_started, p.timeline FROM awa.real_identity() r, awa.pretended p $$;
"""


@together
def test_trap_58_ids_of_another_server_are_not_used(world):
    """A failover that one connection has seen and another has not: the block of ids was given out before it."""
    with connected(world.url) as cursor:
        cursor.execute(OTHER_SERVER)
        client = world.connect()
        first, = ids_of(enqueue(client))
        cursor.execute("UPDATE awa.pretended SET timeline = 2")
        fault = world.relay.inject("deaf", "awa_CLAIM")
        client.send(claim=pb.Claim(queues=["none"], max_jobs=1, wait_ms=1000))
        fault.wait()
        client.send(queue_counts=pb.QueueCounts(queue="q"))  # the only connection is busy: one more is opened
        wait_for(lambda: world.log().count("pg_connected pool=data") == 2)
        with within(CLOSED_BOUND_S):
            second, = ids_of(enqueue(client))
    assert second >= first + 4000  # of a new block
    assert counts(world.url) == (2, 0, 0)


def replace_database(cluster, name):
    """By a copy of the same name on the same server, as when a backup takes the place of what it was made of. An id that was given out there meanwhile."""
    copy = f"{name}_copy"
    cluster.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    cluster.execute(f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'")
    cluster.execute(f"CREATE DATABASE {copy} OWNER awa_owner TEMPLATE {name}")
    cluster.execute(f"DROP DATABASE {name}")
    with connected(cluster.url(copy)) as cursor:
        cursor.execute("SELECT first_id FROM awa.reserve_job_ids(10)")
        (job_id,), = cursor.fetchall()
    cluster.execute(f"ALTER DATABASE {copy} RENAME TO {name}")
    return job_id


@together
def test_ids_of_a_database_that_another_one_has_replaced_are_not_used(world):
    """The connection over which they were given out looks open all the time."""
    client = world.connect()
    before, = ids_of(enqueue(client))
    fault = world.relay.inject("deaf", "awa_CLAIM")
    client.send(claim=pb.Claim(queues=["none"], max_jobs=1, wait_ms=1000))
    fault.wait()
    theirs = replace_database(world.cluster, world.name)
    client.send(queue_counts=pb.QueueCounts(queue="q"))  # the only connection is busy: one more is opened
    wait_for(lambda: world.log().count("pg_connected pool=data") == 2)
    with within(CLOSED_BOUND_S):
        after, = ids_of(enqueue(client))
    assert before < theirs < after
    assert counts(world.url) == (2, 0, 0)


# ---- idempotency keys

def test_same_key_same_ids_over_connections_and_proxies(world):
    one, two = world.start(), world.start()
    ids = ids_of(enqueue(Client(one.socket), 3, key="one"))
    assert ids_of(enqueue(Client(one.socket), 3, key="one")) == ids
    assert ids_of(enqueue(Client(two.socket), 3, key="one")) == ids
    assert set(ids_of(enqueue(Client(one.socket), 3, key="two"))).isdisjoint(ids)
    assert counts(world.url) == (6, 0, 0)
    clients = [Client(proxy.socket) for proxy in (one, one, two)]  # and at the same time
    sent = [c.send(enqueue=pb.Enqueue(jobs=[new_job()] * 2, idempotency_key="three")) for c in clients]
    answers = [ids_of(c.answer(s).enqueue_ok.results) for c, s in zip(clients, sent)]
    assert answers[0] == answers[1] == answers[2]
    assert counts(world.url) == (8, 0, 0)


def cut_a_keyed_enqueue(world, kind, bound):
    client = world.connect()
    world.relay.inject(kind, "awa_ENQUEUE_ONCE")
    with within(bound):
        ids = ids_of(enqueue(client, 1000, key="key"))  # more than a flush holds
    assert ids_of(enqueue(client, 1000, key="key")) == ids
    assert counts(world.url) == (1000, 0, 0)


@pytest.mark.parametrize("kind", ["after_commit", "before_sent"])
def test_keyed_enqueue_cut(world, kind):
    cut_a_keyed_enqueue(world, kind, CLOSED_BOUND_S)


@together
def test_keyed_enqueue_without_its_sync(world):
    cut_a_keyed_enqueue(world, "no_sync", STALL_BOUND_S)


def test_key_of_a_request_with_refused_jobs(world):
    client = world.connect()
    with connected(world.url) as cursor:  # what only the storage refuses
        cursor.execute("""CREATE OR REPLACE FUNCTION awa.queue_refusal(p_queue text) RETURNS text LANGUAGE sql AS
                          $$ SELECT CASE WHEN p_queue = 'bad' THEN 'the queue is bad' END $$""")
    request = pb.Enqueue(jobs=[new_job(), new_job(queue="no spaces"), new_job(queue="bad"), new_job()],
                         idempotency_key="key")
    first = client.call(enqueue=request).enqueue_ok.results
    again = client.call(enqueue=request).enqueue_ok.results
    assert [bool(r.job_id) for r in first] == [True, False, False, True]
    assert [r.job_id for r in again] == [r.job_id for r in first]
    assert "the queue is bad" in first[2].error.message
    assert [r.error.code for r in again] == [0, pb.INVALID_ARGUMENT, pb.INVALID_ARGUMENT, 0]
    assert "first used" in again[2].error.message


def test_key_that_another_transaction_holds(world):
    client = world.connect()
    with connected(world.url) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT awa.claim_idempotency_key('key', ARRAY[1::bigint])")
        held = enqueue(client, 2, key="key")
        cursor.execute("ROLLBACK")
    assert [(r.error.code, r.error.retryable, r.error.sqlstate) for r in held] == [(pb.ABORTED, True, "55P03")] * 2
    assert "another request with this idempotency_key is under way" in held[0].error.message
    assert len(ids_of(enqueue(client, 2, key="key"))) == 2


def test_key_of_another_request_is_refused(world):
    client = world.connect()
    enqueue(client, 2, key="key")
    error = enqueue(client, 3, key="key")[0].error
    assert error.code == pb.INVALID_ARGUMENT and "first used for 2 jobs, now for 3" in error.message
    assert ids_of(enqueue(client, 1, key="k" * 200))
    too_long = client.call(enqueue=pb.Enqueue(jobs=[new_job()], idempotency_key="k" * 201)).error
    assert too_long.code == pb.INVALID_ARGUMENT and "idempotency_key: 201 bytes, at most 200" in too_long.message


# ---- prepared statements

def test_ptrap_04_statement_that_is_gone_is_prepared_again(world):
    """Each call is replayed on a new connection, and its client does not notice."""
    client = world.connect()

    def lose(statement):
        return world.relay.inject("forget", statement)

    faults = [lose("awa_ENQUEUE_BATCH")]
    ids = ids_of(enqueue(client, 3))
    faults.append(lose("awa_QUEUE_COUNTS"))
    assert client.counts("q").available == 3
    faults.append(lose("awa_CLAIM"))
    jobs = client.claim("q", jobs=3, wait_ms=5000)
    assert [(j.job_id, j.attempt) for j in jobs] == [(i, 1) for i in ids]
    faults.append(lose("awa_COMPLETE_BATCH"))
    assert statuses(client.complete(*jobs[:2])) == ["DONE"] * 2
    faults.append(lose("awa_FINISH_ITEMS"))
    released = client.call(release=pb.Release(receipts=[jobs[2].receipt])).release_ok.results
    assert statuses(released) == ["DONE"]
    for fault in faults:
        assert fault.hits == 1, fault.statement
    assert counts(world.url) == (1, 0, 2)
    assert "outcome_unknown" not in world.log()


def test_ptrap_04_replayed_once(world):
    """What goes each time is an error of that call; the next one finds its statement."""
    client = world.connect()
    fault = world.relay.inject("forget", "awa_QUEUE_COUNTS", times=2)
    error = client.call(queue_counts=pb.QueueCounts(queue="q")).error
    assert (error.code, error.sqlstate, error.retryable) == (pb.UNAVAILABLE, "26000", True)
    assert fault.hits == 2
    enqueue(client, 2)
    assert client.counts("q").available == 2


def test_ptrap_04_control_session_is_replaced(world):
    """It is given up whole: with its session the locks went too."""
    client = world.connect()
    wait_for(lambda: "event=leading" in world.log())
    world.relay.inject("forget", "awa_PROMOTE_DUE").wait()
    with within(CONTROL_BOUND_S):
        wait_for(lambda: world.log().count("event=leading") == 2)
    # Said late: what lived shortly and was refused is not announced again before it has proved itself.
    wait_for(lambda: world.log().count("pg_connected pool=control") == 2)
    ids_of(enqueue(client))
    assert statuses(client.complete(*client.claim("q", wait_ms=5000))) == ["DONE"]


def test_sigterm_meets_a_new_control_session(world):
    """In one turn of the loop: what is then asked of the session is answered before the end."""
    proxy = world.start()
    late = world.relay.inject("late", "awa_RESIGN")
    control = re.findall(r"pg_connected pool=control pid=(\d+)", proxy.log())[-1]
    fetch(world.url, "SELECT pg_terminate_backend(%s)", int(control))
    late.wait()
    proxy.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, proxy.process.pid, os.WSTOPPED | os.WNOWAIT)
    late.pass_on()
    proxy.process.send_signal(signal.SIGTERM)
    assert proxy.stop(signal.SIGCONT) == 0
    assert "clean=yes" in proxy.log(), proxy.log()


def test_ptrap_04_names_that_are_taken(world):
    """As a pooler hands on a session: what it had prepared is another text."""
    fault = world.relay.inject("taken", "awa_QUEUE_COUNTS", times=99)
    client = world.connect()
    ids_of(enqueue(client, 2))
    assert client.counts("q").available == 2
    assert fault.hits >= 2


def test_ptrap_04_failed_parse_is_not_kept(world):
    """A function is missing, for a connection that had prepared it and for new ones: created again, both recover."""
    client = world.connect("--pool-size", "1")
    enqueue(client, 1)
    assert client.counts("q").available == 1
    with connected(world.url) as cursor:
        cursor.execute("SELECT pg_get_functiondef('awa.queue_counts_exact'::regproc)")
        definition, = cursor.fetchone()
        cursor.execute("DROP FUNCTION awa.queue_counts_exact")
        error = client.call(queue_counts=pb.QueueCounts(queue="q")).error
        assert (error.code, error.sqlstate) == (pb.FAILED_PRECONDITION, "42883")
        cursor.execute(definition)
        assert client.counts("q").available == 1
        assert world.log().count("pg_connected pool=data") == 1
        cursor.execute("DROP FUNCTION awa.queue_counts_exact")
        world.relay.inject("before_sent", "awa_ENQUEUE_BATCH")
        sent = client.send(enqueue=pb.Enqueue(jobs=[new_job()]))
        wait_for(lambda: "run awa-proxy migrate" in world.log())
        cursor.execute(definition)
        ids_of(client.answer(sent).enqueue_ok.results)
    assert client.counts("q").available == 2


# ---- deadlocks

def all_counters(world):
    """The lines `counters` of the log."""
    return [{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)\b", line)}
            for line in re.findall(r"event=counters (.*)", world.log())]


def counters(world):
    """What has been counted so far, as the proxy says when it is asked."""
    before = len(all_counters(world))
    world.proxies[0].process.send_signal(signal.SIGUSR1)
    wait_for(lambda: len(all_counters(world)) > before)
    return all_counters(world)[-1]


DEADLOCKS = """
CREATE SEQUENCE awa.deadlock_calls;
CREATE TABLE awa.deadlock_limit (n int);
INSERT INTO awa.deadlock_limit VALUES (0);
DO $do$
DECLARE
    v_arguments text := pg_get_function_identity_arguments('awa.complete_batch'::regproc);
BEGIN
    ALTER FUNCTION awa.complete_batch RENAME TO complete_batch_real;
    EXECUTE format('CREATE FUNCTION awa.complete_batch(%s) RETURNS smallint[] LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval(''awa.deadlock_calls'') <= (SELECT n FROM awa.deadlock_limit) THEN
                RAISE EXCEPTION ''made to fail'' USING ERRCODE = ''deadlock_detected'';
            END IF;
            RETURN awa.complete_batch_real($1, $2, $3, $4, $5, $6, $7);
        END $$', v_arguments);
END $do$;
"""


INCONSISTENT = """
CREATE TABLE awa.inconsistent (job_id bigint);
DO $do$
DECLARE
    v_name text;
    v_call text;
BEGIN
    FOREACH v_name IN ARRAY ARRAY['complete_batch', 'finish_items'] LOOP
        SELECT string_agg('$' || i, ', ') INTO v_call FROM pg_proc, generate_series(1, pronargs) i
         WHERE oid = ('awa.' || v_name)::regproc;
        EXECUTE format('ALTER FUNCTION awa.%1$I RENAME TO %1$s_real', v_name);
        EXECUTE format('CREATE FUNCTION awa.%1$I(%2$s) RETURNS smallint[] LANGUAGE plpgsql AS $$
            DECLARE
                v_job bigint := (SELECT job_id FROM awa.inconsistent WHERE job_id = ANY (p_job_ids));
            BEGIN
                IF v_job IS NOT NULL THEN
                    RAISE EXCEPTION ''job %% contradicts itself'', v_job USING ERRCODE = ''data_corrupted'';
                END IF;
                RETURN awa.%1$s_real(%3$s);
            END $$', v_name, pg_get_function_identity_arguments(('awa.' || v_name || '_real')::regproc), v_call);
    END LOOP;
END $do$;
"""


def test_ptrap_17_an_inconsistent_job_fails_alone(world):
    """Loudly, to its client and in the log; its neighbours of the same flush, and the server, go on."""
    client = world.connect()
    ids = ids_of(enqueue(client, 40))
    jobs = client.claim("q", jobs=40, wait_ms=5000)
    bad = jobs[7]
    with connected(world.url) as cursor:
        cursor.execute(INCONSISTENT)
        cursor.execute("INSERT INTO awa.inconsistent VALUES (%s)", (bad.job_id,))
        results = client.complete(*jobs[:20])
        assert [r.status == pb.DONE for r in results] == [job is not bad for job in jobs[:20]]
        assert (results[7].status, results[7].error.code, results[7].error.sqlstate) == (pb.STATUS_ABORTED, pb.INTERNAL, "XX001")
        assert f"job {bad.job_id} contradicts itself" in results[7].error.message
        fail = [pb.FinishItem(receipt=job.receipt, fail=pb.Fail(error="e")) for job in [*jobs[20:], bad]]
        assert [r.status == pb.DONE for r in client.finish(*fail)] == [True] * 20 + [False]
        assert world.log().count("level=error event=item_inconsistent") == 2
        assert f"job {bad.job_id} contradicts itself" in world.log() and "pg_lost" not in world.log()
        ids_of(enqueue(client, 1))
        assert statuses(client.complete(*client.claim("q", wait_ms=5000))) == ["DONE"]
        cursor.execute("DELETE FROM awa.inconsistent")
    assert statuses(client.complete(bad)) == ["DONE"]  # its attempt was kept all the time
    assert fetch(world.url, "SELECT count(*) FROM unnest(%s::bigint[]) id, awa.get_job(id) WHERE state = 'completed'",
                 ids) == (20,)


SPOILED = """
CREATE TABLE awa.spoiled (job_id bigint PRIMARY KEY, how text);
DO $do$
DECLARE
    v_name text;
    v_call text;
BEGIN
    FOREACH v_name IN ARRAY ARRAY['claim', 'claim_result'] LOOP
        SELECT string_agg('$' || i, ', ') INTO v_call FROM pg_proc, generate_series(1, pronargs) i
         WHERE oid = ('awa.' || v_name)::regproc;
        EXECUTE format('ALTER FUNCTION awa.%1$I RENAME TO %1$s_real', v_name);
        EXECUTE format('CREATE FUNCTION awa.%1$I(%2$s) RETURNS SETOF awa.claimed_batch LANGUAGE plpgsql AS $$
            DECLARE
                v_batch awa.claimed_batch;
                v_how text;
            BEGIN
                FOR v_batch IN SELECT * FROM awa.%1$s_real(%3$s) LOOP
                    FOR i IN 1 .. coalesce(cardinality(v_batch.job_ids), 0) LOOP
                        v_how := (SELECT how FROM awa.spoiled WHERE job_id = v_batch.job_ids[i]);
                        CASE v_how
                            WHEN ''body'' THEN v_batch.kinds[i] := NULL; v_batch.args[i] := NULL;
                            WHEN ''attempt'' THEN v_batch.attempts[i] := 0;
                            WHEN ''created_at'' THEN v_batch.created_ats[i] := ''infinity'';
                            ELSE NULL;
                        END CASE;
                    END LOOP;
                    RETURN NEXT v_batch;
                END LOOP;
            END $$', v_name, pg_get_function_identity_arguments(('awa.' || v_name || '_real')::regproc), v_call);
    END LOOP;
END $do$;
"""


@contextlib.contextmanager
def spoiled(world, ways):
    """The jobs in `ways` make no sense any more, each in its way, when they are claimed."""
    with connected(world.url) as cursor:
        cursor.execute(SPOILED)
        for job_id, how in ways.items():
            cursor.execute("INSERT INTO awa.spoiled VALUES (%s, %s)", (job_id, how))
        yield


def unreadable_errors(world, ids):
    """The last errors of those of the jobs that have failed."""
    def ended():
        row = fetch(world.url, "SELECT array_agg(state::text), array_agg(payload -> 'errors' -> -1 ->> 'error') FROM unnest(%s::bigint[]) "
                    "WITH ORDINALITY i (id, n) CROSS JOIN LATERAL awa.get_job(id)", ids)
        return row[1] if row[0] == ["failed"] * len(ids) else None
    return wait_for(ended)


@pytest.mark.parametrize("lost", [False, True])
def test_ptrap_17_an_unreadable_job_fails_alone(world, lost):
    """It fails, loudly and once; what was claimed with it is handed out and done, also when the claim's answer was lost."""
    client = world.connect()
    ids = ids_of(enqueue(client, 20))
    bad = {ids[3]: "body", ids[7]: "attempt", ids[19]: "created_at"}
    with spoiled(world, bad):
        if lost:
            world.relay.inject("after_commit", "awa_CLAIM")
        jobs = client.claim("q", jobs=20, wait_ms=5000)
        assert [job.job_id for job in jobs] == [i for i in ids if i not in bad]
        assert statuses(client.complete(*jobs)) == ["DONE"] * 17
        errors = unreadable_errors(world, list(bad))
    assert ["body" in errors[0], "attempt" in errors[1], "creation" in errors[2]] == [True] * 3
    for job_id in bad:
        assert world.log().count(f'level=error event=job_unreadable queue="q" job={job_id} ') == 1, world.log()
    assert "reply_malformed" not in world.log() and counts(world.url) == (0, 0, 17)
    assert ("outcome_resolved" in world.log()) == lost
    assert counters(world)["unreadable_jobs"] == 3


def test_ptrap_17_only_unreadable_jobs(world):
    """Nobody is given an empty answer for them: the claim goes on waiting, and the proxy drains with nothing left open."""
    client = world.connect()
    ids = ids_of(enqueue(client, 600))
    with spoiled(world, dict.fromkeys(ids, "body")):
        sent = client.send(claim=pb.Claim(queues=["q"], max_jobs=512, wait_ms=30000))
        wait_for(lambda: fetch(world.url, "SELECT failed FROM awa.queue_counts_exact('q')")[0] == len(ids))
        late = ids_of(enqueue(world.connect(), 1))
        assert [job.job_id for job in client.answer(sent).claim_ok.jobs] == late
        client.call(goodbye=pb.Goodbye())
        assert world.proxies[0].stop() == 0
    assert "clean=yes" in world.log() and counts(world.url) == (1, 0, 0)


def test_trap_14_deadlocks_are_tried_again(world):
    with connected(world.url) as cursor:
        cursor.execute(DEADLOCKS)
        client = world.connect()
        retries = 0
        for k, expected in ((1, "DONE"), (2, "DONE"), (3, "DONE"), (1000, "STATUS_ABORTED")):
            enqueue(client, 3)
            jobs = client.claim("q", jobs=3, wait_ms=5000)
            cursor.execute("UPDATE awa.deadlock_limit SET n = %s", (k,))
            cursor.execute("SELECT setval('awa.deadlock_calls', 1, false)")
            results = client.complete(*jobs)
            assert statuses(results) == [expected] * 3
            cursor.execute("SELECT last_value FROM awa.deadlock_calls")
            assert cursor.fetchone()[0] == k + 1 or expected != "DONE"
            if expected == "DONE":
                assert counters(world)["deadlock_retries"] == (retries := retries + k)
        assert all(r.error.retryable and r.error.sqlstate == "40P01" for r in results)
        cursor.execute("UPDATE awa.deadlock_limit SET n = 0")
        assert statuses(client.complete(*jobs)) == ["DONE"] * 3  # they were still ours
        assert counts(world.url) == (0, 0, 12)
    assert 1 <= world.log().count("event=deadlock_retry") <= 2, world.log()
    client.call(goodbye=pb.Goodbye())
    before = counters(world)
    assert world.proxies[0].stop() == 0
    assert before["deadlock_retries"] > retries
    assert all_counters(world)[-1] | {"up_s": 0} == before | {"up_s": 0}
    assert world.log().rindex("event=counters") < world.log().index("event=stopped")


# ---- crashes

def backends(url):
    """The pids of the data connections."""
    name = url.split("/")[3].split("?")[0]
    with connected(url) as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'awa-proxy' AND datname = %s", (name,))
        return [pid for pid, in cursor.fetchall()]


def terminate_one(url, number):
    pids = backends(url)
    if pids:
        with connected(url) as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", (sorted(pids)[number % len(pids)],))


def crash(url, number):
    """All of the server falls with the one process, and starts again by itself."""
    with contextlib.suppress(Exception):
        pids = backends(url)
        if pids:
            os.kill(sorted(pids)[number % len(pids)], signal.SIGKILL)


class Load:
    """Clients that enqueue, claim and complete until told to stop, and note what they were told."""

    def __init__(self, proxies, clients=3):
        self.stopping = threading.Event()
        self.enqueued = []      # acknowledged ids
        self.unknown = 0        # enqueues that nobody could tell the fate of
        self.done = []          # ids whose completion was accepted
        self.failures = []
        self.threads = [threading.Thread(target=self.run, args=(proxies[i % len(proxies)], i), daemon=True)
                        for i in range(clients)]
        for thread in self.threads:
            thread.start()

    def run(self, proxy, number):
        try:
            client = Client(proxy.socket)
            client.socket.settimeout(90)
            round_number = 0
            while not self.stopping.is_set():
                round_number += 1
                self.enqueue(client, f"{number}-{round_number}" if round_number % 2 else "")
                self.work(client, 100)
        except BaseException as failure:  # shown by stop()
            self.failures.append(failure)

    def enqueue(self, client, key):
        while True:
            answer = client.call(enqueue=pb.Enqueue(jobs=[new_job()] * 5, idempotency_key=key))
            results = answer.enqueue_ok.results
            assert len(results) == 5, answer
            self.enqueued += [r.job_id for r in results if r.job_id]
            codes = {r.error.code for r in results if not r.job_id}
            assert codes <= {pb.UNAVAILABLE, pb.DEADLINE_EXCEEDED, pb.ABORTED}, codes
            if not key:
                self.unknown += sum(r.error.code == pb.DEADLINE_EXCEEDED for r in results)
                return
            if not codes:
                return

    def work(self, client, wait_ms):
        answer = client.call(claim=pb.Claim(queues=["q"], max_jobs=20, wait_ms=wait_ms))
        if answer.HasField("error"):
            assert answer.error.code == pb.UNAVAILABLE, answer.error
            return 0
        jobs = list(answer.claim_ok.jobs)
        left = jobs
        while left:
            answer = client.complete(*left)
            if not answer:
                continue  # DEADLINE_EXCEEDED: again
            assert len(answer) == len(left)
            told = list(zip(left, statuses(answer)))
            assert {s for _, s in told} <= {"DONE", "ALREADY_DONE", "STATUS_ABORTED"}, told
            self.done += [job.job_id for job, s in told if s != "STATUS_ABORTED"]
            left = [job for job, s in told if s == "STATUS_ABORTED"]
        return len(jobs)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(100)
            assert not thread.is_alive()
        assert not self.failures, self.failures

    def check(self, proxies, url):
        """Works off what is left; then every acknowledged job has ended once and none is lost, and nothing is in doubt."""
        client = Client(proxies[0].socket)
        deadline = time.monotonic() + 60
        while counts(url)[:2] != (0, 0):
            assert time.monotonic() < deadline, counts(url)
            self.work(client, 500)
        client.close()
        assert len(set(self.done)) == len(self.done), "a job was completed twice"
        assert len(set(self.enqueued)) == len(self.enqueued), "an id was acknowledged twice"
        assert set(self.enqueued) <= set(self.done), "an acknowledged job was lost"
        assert len(set(self.done) - set(self.enqueued)) <= self.unknown, "a job was stored twice"
        assert counts(url)[2] == len(self.done)
        for proxy in proxies:
            assert proxy.stop() == 0
            assert "event=stopped clean=yes" in proxy.log(), proxy.log()


def disturb(load, url, what, rounds):
    for number in range(rounds):
        before = len(load.done)
        wait_for(lambda: len(load.done) > before + 20 or load.failures)
        assert not load.failures, load.failures
        what(url, number)
    load.stop()


def test_backends_terminated_under_load(world):
    proxies = [world.start(world.url), world.start(world.url)]
    load = Load(proxies, 4)
    disturb(load, world.url, terminate_one, 20)
    load.check(proxies, world.url)
    assert load.unknown == 0  # the server stayed the same: nothing remains unknown


def test_connections_cut_under_load(world):
    proxies = [world.start(), world.start()]
    load = Load(proxies, 4)
    statements = ("awa_CLAIM", "awa_ENQUEUE_BATCH", "awa_COMPLETE_BATCH", "awa_ENQUEUE_ONCE", "awa_RESERVE_JOB_IDS",
                  "awa_BACKEND_IS_GONE", "awa_JOBS_EXIST", "awa_CLAIM_RESULT", "awa_FINISH_ITEMS")
    faults = [world.relay.inject("after_commit" if i % 2 else "before_sent", s, times=5)
              for i, s in enumerate(statements * 2)]
    wait_for(lambda: sum(f.hits for f in faults) > 50 or load.failures)
    load.stop()
    load.check(proxies, world.url)
    assert load.unknown == 0


def test_server_crashes_under_load(world):
    proxies = [world.start(world.url), world.start(world.url)]
    load = Load(proxies)
    disturb(load, world.url, crash, 2)
    wait_for(world.cluster.is_running)
    load.check(proxies, world.url)


def test_enqueue_in_doubt_over_a_restart(world):
    """Another run of the server could have given out the same ids again: only a key can tell."""
    client = world.connect()
    enqueue(client)
    world.cluster.execute("CHECKPOINT")  # the restart has little to write, and ends before the requests do
    faults = [world.relay.inject("stall", "awa_ENQUEUE_BATCH"), world.relay.inject("stall", "awa_ENQUEUE_ONCE")]
    unasked = world.relay.inject("deaf", "awa_BACKEND_IS_GONE", times=99)  # however long the restart takes
    plain = client.send(enqueue=pb.Enqueue(jobs=[new_job()]))
    keyed = client.send(enqueue=pb.Enqueue(jobs=[new_job()], idempotency_key="key"))
    for fault in faults:
        fault.wait()
    world.cluster.tool("stop", "--mode", "fast")
    world.cluster.tool("start")
    unasked.left = 0
    for link in world.relay.links:
        link.close()
    assert client.answer(plain).enqueue_ok.results[0].error.code == pb.DEADLINE_EXCEEDED
    ids = ids_of(client.answer(keyed).enqueue_ok.results)
    assert ids_of(enqueue(client, 1, key="key")) == ids
    assert counts(world.url) == (3, 0, 0)


def test_trap_58_crash_after_ids_were_reserved(world):
    """Ids that were reserved and not used, a crash, and another proxy that reserves: no id is given out twice."""
    owners = {}
    proxies = [world.start(world.url), world.start(world.url)]
    for number in range(2):
        for owner, proxy in enumerate(proxies):
            answer = Client(proxy.socket).call(enqueue=pb.Enqueue(jobs=[new_job(queue=f"of{owner}")] * 10))
            for result in answer.enqueue_ok.results:
                assert result.job_id and result.job_id not in owners, answer
                owners[result.job_id] = f"of{owner}"
        crash(world.url, number)
        wait_for(world.cluster.is_running)
    client = Client(proxies[0].socket)
    for owner in ("of0", "of1"):
        got = []
        while len(got) < 20:
            jobs = client.claim(owner, jobs=100, wait_ms=10000)
            got += [job.job_id for job in jobs]
        assert sorted(got) == sorted(i for i, o in owners.items() if o == owner)


def test_ptrap_05_every_request_of_a_broken_pipeline_is_answered_once(world):
    proxy = world.start(world.url, "--pool-size", "1")  # all share one connection
    clients = [Client(proxy.socket) for _ in range(4)]
    enqueue(clients[0], 1)
    for number in range(10):
        queue = f"q{number}"
        sent = []
        for client in clients:
            sent += [(client, client.send(enqueue=pb.Enqueue(jobs=[new_job(queue=queue)]))) for _ in range(5)]
            sent += [(client, client.send(claim=pb.Claim(queues=[queue], max_jobs=1, wait_ms=300)))]
            sent += [(client, client.send(queue_counts=pb.QueueCounts(queue=queue)))]
        terminate_one(world.url, number)
        kinds = [c.answer(request).WhichOneof("answer") for c, request in sent]
        assert kinds.count("enqueue_ok") == 20
        assert set(kinds) <= {"enqueue_ok", "claim_ok", "queue_counts_ok", "error"}
        for client in clients:  # nothing else comes
            ping = client.send(ping=pb.Ping())
            assert client.answer(ping).HasField("pong") and not client.answers
        assert sum(counts(world.url, queue)[:2]) == 20
