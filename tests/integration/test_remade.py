"""The schema is dropped and made anew below proxies that live on. What they know is of the one before: ids, claims, who lives and leads."""
import contextlib
import subprocess
import time

import psycopg2
import pytest

from postgres import connected
from proxy_process import Proxy, is_healthy, wait_for
from relay import Relay
from wire_client import Client, pb

PROMPT_S = 15   # a request whose ids never fit ends after 30 s
STRANGERS = 5000    # more than a block of ids: the numbers that a proxy holds are given out again
LEADERS = """SELECT count(*) FROM awa.runtime_instances r
               JOIN awa.held_keys('ShareLock') lives ON lives.key = awa.advisory_key('instance', r.instance)
               JOIN awa.held_keys('ExclusiveLock') leads ON leads.pid = lives.pid AND leads.key = awa.advisory_key('leader', 0)
              WHERE r.missing_since IS NULL"""


@pytest.fixture
def relay(cluster, own_database):
    with Relay(cluster, own_database) as made:
        yield made


@pytest.fixture
def proxy(awa_proxy, relay, tmp_path):
    started = Proxy(awa_proxy, tmp_path, relay.url, "--pool-size", "3").wait_ready()
    yield started
    started.end()
    assert is_healthy(started), started.log()


@pytest.fixture
def client(proxy):
    made = Client(proxy.socket)
    made.socket.settimeout(60)
    yield made
    made.close()


def fetch(url, sql):
    with connected(url) as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def is_dropped(cursor):
    """It takes its locks as it finds the tables, and so may be the victim of a deadlock with a call of the proxy's."""
    with contextlib.suppress(psycopg2.errors.DeadlockDetected):
        cursor.execute("DROP SCHEMA awa CASCADE")
        return True
    return False


def remake(awa_proxy, url):
    """With jobs of somebody else."""
    with connected(url) as cursor:
        wait_for(lambda: is_dropped(cursor))
        subprocess.run([awa_proxy, "migrate", "--database", url], check=True, capture_output=True, timeout=60)
        cursor.execute("SELECT awa.enqueue_many('other', 'k', array_fill('{}'::json, ARRAY[%s]))", (STRANGERS,))


def available(url):
    return fetch(url, "SELECT available FROM awa.queue_counts_exact('q')")[0]


def request(key=""):
    return pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k", args=b"{}")], idempotency_key=key)


def enqueue(client, key=""):
    result, = client.call(enqueue=request(key)).enqueue_ok.results
    assert result.job_id, result
    return result.job_id


@pytest.mark.parametrize("key", ["", "key"])
def test_its_ids_are_not_used(awa_proxy, own_database, proxy, client, key):
    before = enqueue(client)
    client.open_more(proxy)
    remake(awa_proxy, own_database)
    started = time.monotonic()
    assert before < STRANGERS < enqueue(client, key)
    assert time.monotonic() - started < PROMPT_S
    assert available(own_database) == 1


def test_what_it_says_of_an_enqueue_in_doubt_proves_nothing(awa_proxy, own_database, relay, proxy, client):
    """The ids exist in the schema that is there now: they are somebody else's."""
    enqueue(client)
    client.open_more(proxy)
    remake(awa_proxy, own_database)
    relay.inject("before_sent", "awa_ENQUEUE_BATCH")
    result, = client.call(enqueue=request()).enqueue_ok.results
    assert result.job_id > STRANGERS or result.error.code == pb.DEADLINE_EXCEEDED, result
    assert available(own_database) == (result.job_id > 0)


def test_a_claim_in_doubt_is_found(awa_proxy, own_database, relay, proxy, client):
    """The numbers of its batches begin anew, too."""
    for _ in range(20):
        enqueue(client)
        client.complete(*client.claim("q"))
    remake(awa_proxy, own_database)
    with connected(own_database) as cursor:
        cursor.execute("SELECT awa.enqueue('q', 'k')")
    relay.inject("after_commit", "awa_CLAIM", rows=1)
    job, = client.claim("q", wait_ms=20_000)
    result, = client.complete(job)
    assert result.status == pb.DONE
    assert "event=outcome_resolved" in proxy.log()


@pytest.mark.parametrize("connections", ["one", "several"])
def test_who_asks_is_answered_by_the_new_one(awa_proxy, own_database, proxy, client, connections):
    """Although nobody repeats such a call, and nothing that waits behind another one on the same connection is in doubt."""
    if connections == "several":
        client.open_more(proxy)
    remake(awa_proxy, own_database)
    asked = client.ask_counts(100)
    sent = [client.send(enqueue=request()) for _ in range(200)]
    asked += client.ask_counts(100)
    assert all(client.answer(s).enqueue_ok.results[0].job_id > STRANGERS for s in sent)
    assert all(client.answer(a).HasField("queue_counts_ok") for a in asked)
    assert available(own_database) == 200
    assert "outcome_unknown" not in proxy.log()


def test_who_lives_and_leads_is_known_in_the_new_one(awa_proxy, own_database, proxy):
    """A proxy that nobody sees there would lose its jobs to a rescue."""
    wait_for(lambda: fetch(own_database, LEADERS) == (1,))
    remake(awa_proxy, own_database)
    wait_for(lambda: fetch(own_database, LEADERS) == (1,))
    assert "event=pg_schema_replaced" in proxy.log()
