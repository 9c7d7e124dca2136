"""Several proxies on one database: one leads, whoever stops or dies is replaced and its jobs run
again, and each job has one accepted outcome whatever is stopped, killed or cut meanwhile."""
import collections
import contextlib
import os
import pathlib
import select
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pytest

from postgres import Cluster, connected
from proxy_process import Proxy, wait_for
from wire_client import Client, pb

MISSING_MS = 3000
OPTIONS = ("--drain-timeout-ms", "50", "--instance-missing-ms", str(MISSING_MS))
LEADER = """SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock'
               AND classid::bigint << 32 | objid::bigint = awa.advisory_key('leader', 0)
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


@pytest.fixture
def start(awa_proxy, own_database, tmp_path):
    """Starts one more proxy on the test's own database, or another; in the end all are killed."""
    started = []

    def run(*options, url=own_database):
        folder = tmp_path / f"p{len(started)}"
        folder.mkdir()
        started.append(Proxy(awa_proxy, folder, url, *OPTIONS, *options))
        running = started[-1].wait_ready()
        wait_for(lambda: running.backends("control"))  # without it claims are refused once half of MISSING_MS is over
        return running

    yield run
    for running in started:
        with contextlib.suppress(ProcessLookupError):
            running.process.send_signal(signal.SIGCONT)
        running.end()
        assert "level=fatal" not in running.log() and "Sanitizer" not in running.log(), running.log()


# ---- what the database and the logs say

def ask(url, sql, *parameters):
    with connected(url) as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def leaders(url):
    """The backends that hold the leader's key."""
    return [pid for pid, in ask(url, LEADER)]


def leader_of(url, proxies):
    """The proxy that leads now, if one of these does."""
    pids = leaders(url)
    assert len(pids) <= 1, "two leaders"
    return next((p for p in proxies for pid in pids if p.backends("control")[-1:] == [pid]), None)


def wait_leader(url, proxies):
    return wait_for(lambda: leader_of(url, proxies))


def end_backends(url, pids):
    with connected(url) as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) pid", (pids,))


# ---- load

class Load:
    """Threads that enqueue, claim and complete, each at one proxy, and come back when it fails.

    Knows which jobs were acknowledged and how many outcomes were accepted for each.
    """

    def __init__(self, proxies, queue="q", pace_s=0.005):
        self.queue = queue
        self.pace_s = pace_s
        self.lock = threading.Lock()
        self.stored = set()
        self.accepted = collections.Counter()
        self.stale = 0
        self.bad = []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(proxy,), daemon=True)
                        for proxy in proxies for _ in range(2)]
        for thread in self.threads:
            thread.start()

    def run(self, proxy):
        while not self.stopping.is_set():
            try:
                client = Client(proxy.socket)
                client.socket.settimeout(2)
                while not self.stopping.is_set():
                    self.step(client)
            except (OSError, AssertionError):
                self.stopping.wait(0.05)  # the proxy is gone or stopped: try again
            except Exception as error:  # pylint: disable=broad-except
                self.bad.append(repr(error))
                return

    def step(self, client):
        results = client.enqueue(self.queue, *[b"{}"] * 5)
        with self.lock:
            self.stored |= {r.job_id for r in results if r.job_id}
        answer = client.call(claim=pb.Claim(queues=[self.queue], max_jobs=10, wait_ms=100))
        jobs = answer.claim_ok.jobs
        self.stopping.wait(self.pace_s)
        if not jobs:
            return
        for job, result in zip(jobs, client.complete(*jobs)):
            with self.lock:
                if result.status in (pb.DONE, pb.ALREADY_DONE):
                    self.accepted[job.job_id] += 1
                else:
                    self.stale += 1

    def progress(self):
        with self.lock:
            return len(self.accepted)

    def goes_on(self, jobs=50):
        before = self.progress()
        wait_for(lambda: self.progress() > before + jobs)

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()
        assert self.bad == []

    def finish_all(self, proxy, url):
        """Works off what is left; then every acknowledged job is completed, and none twice."""
        self.stop()
        client = Client(proxy.socket)

        def is_over():
            jobs = client.claim(self.queue, jobs=100, wait_ms=200)
            for job, result in zip(jobs, client.complete(*jobs) if jobs else []):
                if result.status in (pb.DONE, pb.ALREADY_DONE):
                    self.accepted[job.job_id] += 1
            counts = client.counts(self.queue)
            return counts.available + counts.running + counts.retryable == 0

        wait_for(is_over)
        client.close()
        assert [job for job, times in self.accepted.items() if times > 1] == [], "accepted twice"
        untold = list(self.stored - self.accepted.keys())  # the answer to its completion was lost
        assert ask(url, "SELECT id FROM unnest(%s::bigint[]) id WHERE NOT EXISTS"
                        " (SELECT FROM awa.get_job(id) WHERE state = 'completed')", untold) == [], "acknowledged and lost"
        completed, = ask(url, f"SELECT completed FROM awa.queue_counts_exact('{self.queue}')")[0]
        unacknowledged = completed - len(self.stored)
        assert 0 <= unacknowledged <= 5 * len(self.threads) * 10, (completed, len(self.stored))


def soon_us():
    return int((time.time() + 0.2) * 1e6)


def said(capsys, text):
    with capsys.disabled():
        print(f"\n    {text}", flush=True)


# ---- one leader

def test_exactly_one_of_three_leads(start, own_database):
    proxies = [start() for _ in range(3)]
    first = wait_leader(own_database, proxies)
    for _ in range(50):
        assert leader_of(own_database, proxies) is first  # it stays, and there is no second
    assert sum("event=leading" in p.log() for p in proxies) == 1
    assert first.stop() == 0, first.log()
    rest = [p for p in proxies if p is not first]
    began = time.monotonic()
    second = wait_leader(own_database, rest)
    assert time.monotonic() - began < 14  # tried for every 2 to 4 s; a key that was left behind would go after 15
    assert second.stop() == 0
    wait_leader(own_database, [p for p in rest if p is not second])


# Polls become rare. With one connection, what a claim asked of Postgres is answered before what is asked after it.
POLL_MIN_S = 1
RARE_POLLS = ("--pool-size", "1", "--poll-min-ms", str(POLL_MIN_S * 1000), "--poll-max-ms", "60000")
TOLD_S = 10  # far below a pause between rare polls


def latency_s(producer, worker, **fields):
    """Of a job that comes after a claim at a proxy with RARE_POLLS has found nothing."""
    began = time.monotonic()
    claim = worker.send(claim=pb.Claim(queues=["q"], max_jobs=1, wait_ms=19000))
    for _ in range(2):  # one may still overtake the claim
        worker.counts("q")
    producer.enqueue("q", b"{}", **fields)
    job, = worker.answer(claim).claim_ok.jobs
    took = time.monotonic() - began
    assert [r.status for r in worker.complete(job)] == [pb.DONE]
    return took


def make_polls_rare(producer, worker):
    """Each claim that finds nothing doubles the pause, and a poll that finds something ends that: five in a row, each told of its
    job before it could poll, make it 32 s."""
    was_told = []

    def is_rare():
        was_told.append(latency_s(producer, worker) < POLL_MIN_S)
        return was_told[-5:] == [True] * 5
    wait_for(is_rare)


def test_other_proxies_are_told_of_new_work(start):
    here, there = start(), start(*RARE_POLLS)
    producer, worker = Client(here.socket), Client(there.socket)
    make_polls_rare(producer, worker)
    assert latency_s(producer, worker) < TOLD_S
    assert latency_s(producer, worker, run_at_us=soon_us()) < TOLD_S  # promoted by the leader


def test_ptrap_10_leader_that_can_not_do_a_duty(start, own_database):
    with connected(own_database) as cursor:
        cursor.execute("""ALTER FUNCTION awa.prune_slots RENAME TO prune_slots_kept;
                          CREATE FUNCTION awa.prune_slots(bigint, int, OUT pruned int, OUT again boolean) LANGUAGE plpgsql AS
                          $$ BEGIN RAISE 'broken by the test'; END $$""")
        proxies = [start() for _ in range(2)]
        for proxy in proxies:
            wait_for(lambda p=proxy: "event=resigned task=prune_slots" in p.log())
        cursor.execute("""DROP FUNCTION awa.prune_slots(bigint, int);
                          ALTER FUNCTION awa.prune_slots_kept RENAME TO prune_slots""")
    leader = wait_leader(own_database, proxies)
    client = Client(leader.socket)
    began = leader.log().count("event=resigned")
    client.enqueue("q", b"{}", run_at_us=soon_us())
    assert len(client.claim("q", wait_ms=19000)) == 1  # both may just have resigned: 10 s, and 4 to the next try
    assert leader.log().count("event=resigned") <= began + 1


# ---- stopped, killed, cut

def test_trap_20_trap_47_stopped_leader(start, own_database, new_database, capsys):
    """On a busy database, where its session stays blocked with notifications that it does not read, and on a
    quiet one, where it idles out."""
    quiet_database = new_database()
    quiet_proxies = [start(url=quiet_database) for _ in range(2)]
    quiet_leader = wait_leader(quiet_database, quiet_proxies)
    laps = ("--queue-lap-ms", "1000", "--claim-lap-ms", "1000", "--closed-ms", "100")
    proxies = [start(*laps) for _ in range(2)]
    leader = wait_leader(own_database, proxies)
    other = next(p for p in proxies if p is not leader)
    load = Load(proxies)
    load.goes_on()
    held_by = Client(leader.socket)
    held_by.enqueue("held", *[b"{}"] * 20)
    held = held_by.claim("held", jobs=20, wait_ms=5000)
    assert len(held) == 20
    quiet_leader.process.send_signal(signal.SIGSTOP)
    leader.process.send_signal(signal.SIGSTOP)
    stopped = time.monotonic()
    assert wait_leader(own_database, [other]) is other
    took_over = time.monotonic() - stopped
    rest = [p for p in quiet_proxies if p is not quiet_leader]
    assert wait_leader(quiet_database, rest) is rest[0]
    assert time.monotonic() - stopped < 30  # both
    again = Client(other.socket)
    redone = []
    wait_for(lambda: redone.extend(again.claim("held", jobs=20, wait_ms=500)) or len(redone) == 20)
    said(capsys, f"stopped leader: another led after {took_over:.1f} s, its jobs ran again after {time.monotonic() - stopped:.1f} s")
    assert sorted(j.job_id for j in redone) == sorted(j.job_id for j in held)
    assert {j.attempt for j in redone} == {2}, "rescued once"
    assert {r.status for r in again.complete(*redone)} == {pb.DONE}
    load.goes_on()
    leader.process.send_signal(signal.SIGCONT)
    assert {r.status for r in held_by.complete(*held)} == {pb.STALE}
    wait_for(lambda: "event=leadership_lost" in leader.log())
    load.goes_on()
    assert leader_of(own_database, proxies) is other
    load.finish_all(leader, own_database)
    # No lap was opened twice, and no pointer moved back.
    for ring, slots in ("queue", 16), ("claim", 8):
        (newest, count, lowest), = ask(own_database, f"SELECT max(generation), count(*), min(generation) FROM awa.{ring}_ring_slots")
        (pointer,), = ask(own_database, f"SELECT last_value FROM awa.{ring}_ring_pointer")
        assert newest - lowest + 1 == count and count <= slots and pointer // 16 <= newest


def test_killed_proxy(start, own_database, capsys):
    proxies = [start() for _ in range(3)]
    leader = wait_leader(own_database, proxies)
    load = Load(proxies)
    load.goes_on()
    for victim in (next(p for p in proxies if p is not leader), leader):
        rest = [p for p in proxies if p.process.poll() is None and p is not victim]
        holder = Client(victim.socket)
        holder.enqueue("held", *[b"{}"] * 10)
        held = {j.job_id for j in holder.claim("held", jobs=10, wait_ms=5000)}
        assert len(held) == 10
        victim.process.kill()
        killed = time.monotonic()
        again = Client(rest[0].socket)
        redone = []
        wait_for(lambda: redone.extend(again.claim("held", jobs=10, wait_ms=500)) or len(redone) == 10)
        took = time.monotonic() - killed
        role = "leader" if victim is leader else "follower"
        said(capsys, f"killed {role}: its jobs ran again after {took:.1f} s (missing after {MISSING_MS / 1000:.0f} s, retry after 2 s)")
        assert took < 25  # 10 by design; who did not know MISSING_MS would wait 30 s
        assert {j.job_id for j in redone} == held and {j.attempt for j in redone} == {2}
        assert {r.status for r in again.complete(*redone)} == {pb.DONE}
        again.close()
        load.goes_on()
    load.finish_all(rest[0], own_database)


def test_ptrap_12_control_connection_killed_every_two_seconds(start, own_database, capsys):
    """Polls are rare: what finds a job is that it is announced, or that who could not hear it asks at once when he hears again."""
    proxies = [start("--instance-missing-ms", "6000", *RARE_POLLS) for _ in range(2)]
    wait_leader(own_database, proxies)
    holder = Client(proxies[0].socket)
    holder.enqueue("held", *[b"{}"] * 5)
    held = holder.claim("held", jobs=5, wait_ms=5000)
    producer, worker = Client(proxies[0].socket), Client(proxies[1].socket)
    make_polls_rare(producer, worker)
    slowest = 0.0
    for cut in (proxies, proxies[1:], proxies, proxies[1:], proxies):
        time.sleep(0.1)  # the producer's proxy announces 20 times a second: now at once, so that a worker's proxy cut alone can not hear it
        next_s = time.monotonic() + 2
        pids = [p.backends("control")[-1] for p in cut]
        end_backends(own_database, pids)
        while time.monotonic() < next_s:
            slowest = max(slowest, latency_s(producer, worker))
        wait_for(lambda: all(p.backends("control")[-1] not in pids for p in proxies))
    said(capsys, f"control connections killed: slowest job waited {slowest * 1000:.0f} ms")
    assert slowest < TOLD_S
    wait_leader(own_database, proxies)
    assert {r.status for r in holder.complete(*held)} == {pb.DONE}, "a living claim was rescued"


def stop_backends(pids, number):
    for pid in pids:
        os.kill(pid, number)


@pytest.mark.skipif(os.geteuid() != 0, reason="stops processes of the server's user")
def test_ptrap_11_saturated_pool(start, own_database):
    """Every data connection of the leader hangs in a call, for much longer than instances may be missing."""
    proxies = [start("--pool-size", "2", "--instance-missing-ms", "1500") for _ in range(2)]
    leader = wait_leader(own_database, proxies)
    other = next(p for p in proxies if p is not leader)
    holder, filler = Client(leader.socket), Client(leader.socket)
    holder.enqueue("held", *[b"{}"] * 5)
    held = holder.claim("held", jobs=5, wait_ms=5000)

    def is_full():
        for _ in range(5):
            for request in [filler.send(queue_counts=pb.QueueCounts(queue="q")) for _ in range(20)]:
                filler.answer(request)
        return len(leader.backends("data")) == 2
    wait_for(is_full)
    frozen = leader.backends("data")
    stop_backends(frozen, signal.SIGSTOP)
    try:
        waiting = [filler.send(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k")])) for _ in range(200)]
        for number in range(10):  # calls of their own, each
            filler.send(queue_counts=pb.QueueCounts(queue=f"counted{number}"))
            filler.send(claim=pb.Claim(queues=[f"claimed{number}"], max_jobs=1, wait_ms=100))
        late = Client(other.socket)
        began = time.monotonic()
        while time.monotonic() < began + 5:  # after 10 s the calls are given up
            assert leader_of(own_database, proxies) is leader, "leadership starved"
            late.enqueue("promoted", b"{}", run_at_us=soon_us())  # by the leader
            job, = late.claim("promoted", wait_ms=15000)
            assert [r.status for r in late.complete(job)] == [pb.DONE]
        missing = ask(own_database, "SELECT count(*) FROM awa.runtime_instances WHERE missing_since IS NOT NULL")
        assert missing == [(0,)], "liveness starved"
        assert select.select([filler.socket], [], [], 0)[0] == [], "the pool was not saturated"
    finally:
        stop_backends(frozen, signal.SIGCONT)
    assert all(filler.answer(w).enqueue_ok.results[0].job_id for w in waiting)
    assert {r.status for r in holder.complete(*held)} == {pb.DONE}


class RawSession:
    """A session of Postgres' own protocol, which can leave out what no library leaves out."""

    def __init__(self, cluster, database):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        self.socket.connect(str(cluster.dir / "socket/.s.PGSQL.5432"))
        body = struct.pack("!i", 196608) + f"user\0awa_owner\0database\0{database}\0\0".encode()
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        self.read_until(b"Z")

    def message(self, kind, body):
        self.socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    def read_until(self, kind):
        while True:
            head = self.socket.recv(5, socket.MSG_WAITALL)
            if len(head) < 5:
                return False
            rest = self.socket.recv(struct.unpack("!i", head[1:])[0] - 4, socket.MSG_WAITALL)
            assert head[:1] != b"E", rest
            if head[:1] == kind:
                return True

    def query(self, sql):
        self.message(b"Q", sql.encode() + b"\0")
        self.read_until(b"Z")

    def execute_without_sync(self, sql):
        self.message(b"P", b"\0" + sql.encode() + b"\0\0\0")
        self.message(b"B", b"\0\0" + b"\0" * 6)
        self.message(b"E", b"\0" + b"\0" * 4)
        self.message(b"H", b"")
        self.read_until(b"C")


def test_trap_55_stopped_between_execute_and_sync(start, cluster, own_database, capsys):
    """By a session that leads as well: so only followers can end it."""
    producer = start()
    Client(producer.socket).enqueue("q", b"{}")
    assert producer.stop() == 0
    stuck = RawSession(cluster, own_database.split("/")[3].split("?")[0])
    wait_for(lambda: leaders(own_database) == [])
    stuck.query("SELECT awa.try_lead()")
    assert len(leaders(own_database)) == 1
    began = time.monotonic()
    stuck.execute_without_sync("SELECT * FROM awa.claim(1, 1, ARRAY['q'], 1, 1000000)")
    proxies = [start() for _ in range(2)]
    client = Client(proxies[0].socket)
    client.socket.settimeout(60)
    assert len(client.claim("q", wait_ms=1000)) == 0  # the lane is held
    assert len(client.claim("q", wait_ms=40000)) == 1
    took = time.monotonic() - began
    said(capsys, f"claim without its Sync: the lane was free after {took:.1f} s")
    assert took < 25  # 15 by design
    wait_leader(own_database, proxies)


# ---- the server

def set_read_only(cluster, value):
    cluster.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    cluster.execute("SELECT pg_reload_conf()")


def sessions_of(cluster, url):
    name = url.split("/")[3].split("?")[0]
    return [pid for pid, in ask(cluster.superuser_url(), "SELECT pid FROM pg_stat_activity WHERE datname = %s"
                                " AND application_name = 'awa-proxy'", name)]


def test_ptrap_09_failover_without_closed_sockets(start, cluster, own_database, new_database):
    """Also of a proxy that has nothing to write, and of connections that it does not use."""
    quiet_database = new_database()
    quiet = start(url=quiet_database)
    waiting = Client(quiet.socket)
    claim = waiting.send(claim=pb.Claim(queues=["q"], max_jobs=1, wait_ms=60000))
    proxies = [start() for _ in range(3)]
    wait_leader(own_database, proxies)
    wait_leader(quiet_database, [quiet])
    Client(proxies[2].socket).counts("q")  # opens a data connection
    load = Load(proxies[:2])
    load.goes_on()
    old = [pid for p in (*proxies, quiet) for pool in ("control", "data") for pid in p.backends(pool)]
    try:
        set_read_only(cluster, "on")
        wait_for(lambda: all("event=pg_read_only" in p.log() for p in (*proxies, quiet)))
        # Every connection of all proxies leaves, the control connections and so the leadership too.
        wait_for(lambda: not set(old) & set(sessions_of(cluster, own_database) + sessions_of(cluster, quiet_database)))
        wait_for(lambda: leaders(cluster.superuser_url(own_database.split("/")[3].split("?")[0])) == [])
    finally:
        set_read_only(cluster, "off")
    load.goes_on()
    wait_leader(own_database, proxies)
    wait_for(lambda: Client(quiet.socket).enqueue("q", b"{}")[0].job_id)
    assert len(waiting.answer(claim).claim_ok.jobs) == 1
    load.finish_all(proxies[0], own_database)


def test_server_killed_under_load(start, cluster, own_database, capsys):
    proxies = [start() for _ in range(2)]
    wait_leader(own_database, proxies)
    load = Load(proxies)
    load.goes_on()
    cluster.tool("kill9")
    cluster.tool("start")
    began = time.monotonic()
    load.goes_on()
    wait_leader(own_database, proxies)
    said(capsys, f"server killed: jobs and a leader again {time.monotonic() - began:.1f} s after it was up")
    load.finish_all(proxies[0], own_database)


def test_a_host_that_says_nothing_does_not_hide_the_next(start, cluster, own_database):
    """What a hung machine, or a dead one behind something that takes connections, looks like."""
    name = own_database.split("/")[3].split("?")[0]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"dbname={name} user=awa_owner host=127.0.0.1,{cluster.dir}/socket port={port},5432"
        client = Client(start(url=url).socket)
        assert client.enqueue("q", b"{}")[0].job_id
        assert len(client.claim("q", wait_ms=5000)) == 1


def test_a_standby_is_left_alone_until_it_is_promoted(awa_proxy, tmp_path_factory):
    """Also where the URL would have any server: a call there fails in ways that say nothing of a standby."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="awa-"))  # the server is another user
    directory.chmod(0o755)
    own = Cluster(directory / "pg")
    url = own.url() + "&target_session_attrs=any"
    proxy = None
    try:
        own.tool("start")
        subprocess.run([awa_proxy, "migrate", "--database", own.url()], check=True, stdout=subprocess.DEVNULL, timeout=60)
        own.tool("stop")
        (own.dir / "data/standby.signal").touch()
        own.tool("start")
        proxy = Proxy(awa_proxy, tmp_path_factory.mktemp("proxy"), url, *OPTIONS)
        wait_for(lambda: "event=pg_connect_failed" in proxy.log())
        client = Client(proxy.socket)
        request = client.send(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k")]))
        wait_for(lambda: 'pool=data sqlstate=25006 reason="the server is a standby: it takes no writes"' in proxy.log())
        own.execute("SELECT pg_promote()")
        assert client.answer(request).enqueue_ok.results[0].job_id > 0
        client.close()
        assert proxy.stop() == 0, proxy.log()
    finally:
        if proxy is not None:
            proxy.end()
        own.tool("destroy")
        directory.rmdir()


def test_ptrap_06_before_the_server_exists_and_restarts(awa_proxy, tmp_path_factory):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="awa-"))  # the server is another user
    directory.chmod(0o755)
    own = Cluster(directory / "pg")
    proxies = []
    try:
        for _ in range(2):
            proxies.append(Proxy(awa_proxy, tmp_path_factory.mktemp("proxy"), own.url(), *OPTIONS))
        wait_for(lambda: all("event=pg_connect_failed" in p.log() for p in proxies))
        assert Client(proxies[0].socket).call(claim=pb.Claim(queues=["q"], max_jobs=1)).error.code == pb.UNAVAILABLE
        own.tool("start")
        subprocess.run([awa_proxy, "migrate", "--database", own.url()], check=True, stdout=subprocess.DEVNULL, timeout=60)
        for proxy in proxies:
            proxy.wait_ready()
        for mode in ("fast", "immediate"):
            wait_leader(own.url(), proxies)
            own.tool("stop", "--mode", mode)
            own.tool("start")
            for proxy in proxies:
                client = Client(proxy.socket)
                wait_for(lambda c=client: c.enqueue("q", b"{}")[0].job_id)
                # Refused as long as the control connection is not there again.
                assert len(wait_for(lambda c=client: c.claim("q", wait_ms=5000))) == 1
                client.close()
        wait_leader(own.url(), proxies)
        for proxy in proxies:
            assert proxy.stop() == 0, proxy.log()
    finally:
        for proxy in proxies:
            proxy.end()
        own.tool("destroy")
        directory.rmdir()
