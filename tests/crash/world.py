"""What the crash command runs: one private cluster, two proxies on it, workers and producers, all of them real processes.

Each process writes a journal into the folder; a process that is replaced gets a new one. The second proxy reaches Postgres
through a relay. Here is also what the harness itself asks, enqueues and claims. What goes wrong and is nobody's plan (a
process that ends by itself) is a problem; proofs.py looks for the others.
"""
import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psycopg2

from postgres import ROOT, Cluster, connected
from proxy_process import Proxy
from relay import Relay
from stallable import Stallable
from wire_client import Client, pb

import journal
from journal import Journal

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("AWA_BUILD", ROOT / "build/release"))
LOAD_QUEUES = ("q0", "q1", "q2", "mail")

GRACE_MS = 1000
MISSING_MS = 6000           # more than a living proxy takes at most to connect again (4.8 s)
RETAINED_MS = 24 * 3600 * 1000  # nothing is pruned: every fact is there in the end
OPTIONS = ("--drain-timeout-ms", "2000", "--session-grace-ms", str(GRACE_MS), "--instance-missing-ms", str(MISSING_MS),
           "--completed-retention-ms", str(RETAINED_MS))
PATIENCE_S = 100    # for what should come in any case; the bounds of kinds.py are tighter
ASK_TIMEOUT_S = 2   # of one try of a probe
LAST_LINES = 8      # of a log
# The session with the leader's lock, and the proxy whose instance it is; what the log says of it may have been left out there.
LEADER = """WITH held AS (SELECT pid, mode, classid::bigint << 32 | objid::bigint AS key FROM pg_locks WHERE locktype = 'advisory' AND granted
                             AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
            SELECT l.pid, (SELECT i.proxy FROM awa.runtime_instances i JOIN held h ON h.key = awa.advisory_key('instance', i.instance)
                            WHERE h.pid = l.pid AND h.mode = 'ShareLock')
              FROM held l WHERE l.mode = 'ExclusiveLock' AND l.key = awa.advisory_key('leader', 0)"""
LIVING = """SELECT count(*) FROM awa.runtime_instances
            WHERE missing_since IS NULL AND awa.advisory_key('instance', instance) IN (SELECT key FROM awa.held_keys('ShareLock'))"""


class Trouble(Exception):
    """Something did not come about in time, or in another way than promised."""


def wait_for(condition, what, seconds=PATIENCE_S):
    """Polls until the condition holds; what it gave. Errors of a server that is away are no answer."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(psycopg2.OperationalError, psycopg2.InterfaceError):
            if result := condition():
                return result
        if time.monotonic() > deadline:
            raise Trouble(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.01)


@dataclasses.dataclass
class Process:
    """A worker or a producer; `start` makes another one in its place."""
    popen: subprocess.Popen
    journal: pathlib.Path
    start: object = None
    lost: bool = False      # killed by us with kill -9
    over: bool = False      # ended, and that was looked at

    def lines(self, letter):
        return [line for line in journal.read(self.journal) if line.letter == letter]

    def kill(self):
        self.lost = self.over = True
        self.popen.kill()
        self.popen.wait()


class ProxyPlace:
    """An address and whatever proxy serves it."""

    def __init__(self, world, name, url):
        self.world, self.name, self.url = world, name, url
        self.socket = world.folder / f"{name}.sock"
        self.address = f"unix:{self.socket}"
        self.runs = []

    @property
    def proxy(self):
        return self.runs[-1]

    def start(self, *options):
        folder = self.world.folder / f"{self.name}{len(self.runs)}"
        folder.mkdir()
        self.runs.append(Proxy(BUILD / "src/app/awa-proxy", folder, self.url, *self.world.options, *options, listen=self.address))
        self.proxy.socket = self.socket
        self.proxy.wait_ready()

    def kill(self):
        """With kill -9; what it held is lost with it."""
        self.world.lost_proxies.add(self.proxy.process.pid)
        self.proxy.process.kill()
        self.proxy.process.wait()


class World:
    def __init__(self, seed, lap_ms, keep=None):
        self.seed, self.keep = seed, keep
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="awa-crash-"))
        self.folder.chmod(0o755)  # the server is another user
        self.options = (*OPTIONS, "--queue-lap-ms", str(lap_ms), "--claim-lap-ms", str(2 * lap_ms))
        self.cluster = Cluster(self.folder / "pg")
        self.url = self.cluster.url()
        self.started = []       # every worker and producer that ever ran
        self.workers = []       # those of the load that run
        self.producers = []
        self.lost_proxies = set()   # pids of proxies that were killed, or stopped for longer than they may be missing
        self.instances = {}         # number → pid of its proxy, as seen on the way
        self.problems = []
        self.journal = Journal(self.folder / "harness.journal")
        self.numbers = itertools.count(1)   # of what must have a name of its own; faults run beside each other
        self.held = []          # every Held
        self.relay = None
        self.relays = []        # in front of proxies

    # life

    def __enter__(self):
        try:
            self.cluster.tool("start", "--set", "shared_buffers=128MB")
            subprocess.run([BUILD / "src/app/awa-proxy", "migrate", "--database", self.url], check=True,
                           capture_output=True, timeout=60)
            self.relay = Relay(self.cluster, self.url)
            self.relay.__enter__()
            self.proxies = [ProxyPlace(self, "a", self.url), ProxyPlace(self, "b", self.relay.url)]
            for place in self.proxies:
                place.start()
            self.start_load()
            self.wait_working()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.started:
            if process.popen.poll() is None:
                process.kill()
        for place in getattr(self, "proxies", []):
            for proxy in place.runs:
                with contextlib.suppress(ProcessLookupError):
                    proxy.process.send_signal(signal.SIGCONT)
                proxy.end()
        for relay in self.relays:
            relay.close()
        if self.relay is not None:
            self.relay.__exit__()
        if self.keep is not None:
            shutil.copytree(self.folder, self.keep, ignore=shutil.ignore_patterns("data", "socket", "*.sock"), dirs_exist_ok=True)
        self.cluster.tool("destroy")
        shutil.rmtree(self.folder)

    def run(self, name, *arguments, command=None):
        path = self.folder / f"{name}.journal"
        env = os.environ | {"PYTHONPATH": f"{ROOT}/clients/python/src:{BUILD}/python", "PYTHONDONTWRITEBYTECODE": "1"}
        with open(self.folder / f"{name}.out", "ab") as out, open(self.folder / f"{name}.err", "ab") as err:
            popen = subprocess.Popen(command or [sys.executable, HERE / arguments[0], arguments[1], path, *arguments[2:]],
                                     stdout=out, stderr=err, stdin=subprocess.DEVNULL, env=env)
        self.started.append(Process(popen, path))
        return self.started[-1]

    def start_worker(self, place):
        """Two Python workers and a C worker a proxy: this is one of the former."""
        process = self.run(f"worker{next(self.numbers)}", "worker.py", place.address, ",".join(LOAD_QUEUES[:3]), "8", "8")
        process.start = lambda: self.start_worker(place)
        self.workers.append(process)
        return process

    def start_c_worker(self, place):
        """It works on "mail", completes everything, and writes a line for each job to its standard output."""
        process = self.run(f"c{next(self.numbers)}", command=[BUILD / "clients/c/example-worker", place.address])
        process.journal = process.journal.with_suffix(".out")
        process.start = lambda: self.start_c_worker(place)
        self.workers.append(process)
        return process

    def start_load(self):
        for place in self.proxies:
            self.start_worker(place)
            self.start_worker(place)
            self.start_c_worker(place)
            self.producers.append(self.run(f"producer-{place.name}", "producer.py", place.address, f"p{place.name}", str(self.seed)))

    def replace(self, worker):
        self.workers.remove(worker)
        return worker.start()

    def wait_working(self):
        """Until every worker of the load has begun a job: it does not repeat a first connection that fails."""
        wait_for(lambda: all(process.journal.exists() and process.journal.stat().st_size > 0 for process in self.workers), "work for every worker")

    def look_after(self):
        """Nobody ends by himself; remembers which proxy is which instance."""
        for process in self.started:
            if not process.over and process.popen.poll() not in (None, 0):
                process.over = True
                error = process.journal.with_suffix(".err").read_text(errors="replace")[-1500:]
                self.problems.append(f"{process.journal.stem} ended by itself, code {process.popen.returncode}:\n{error}")
                if process in self.workers:
                    self.replace(process)
        for instance, name in self.ask("SELECT instance, proxy FROM awa.runtime_instances"):
            self.instances[instance] = int(name.rsplit("/", 1)[1])

    # the database

    def ask(self, sql, *parameters):
        with connected(self.url) as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall()

    def live_backends(self, place, pool):
        live = {pid for pid, in self.ask("SELECT pid FROM pg_stat_activity WHERE application_name = 'awa-proxy'")}
        return [pid for pid in place.proxy.backends(pool) if pid in live]

    def leaders(self):
        """(server process, pid of the proxy or None while it is not registered) of each session that leads."""
        return [(pid, proxy and int(proxy.rsplit("/", 1)[1])) for pid, proxy in self.ask(LEADER)]

    def leader(self):
        """The place that leads now; None when nobody does."""
        leaders = self.leaders()
        if len(leaders) > 1:
            raise Trouble(f"{len(leaders)} sessions lead")
        return next((place for place in self.proxies if [place.proxy.process.pid] == [proxy for _, proxy in leaders]), None)

    def wait_leader(self, *places):
        """Until one of these leads, or any."""
        return wait_for(lambda: next((p for p in [self.leader()] if p is not None and p in (places or self.proxies)), None), "a leader")

    def wait_living(self):
        """Until every proxy is registered: whose absence was noted before a fault is rescued sooner after it."""
        wait_for(lambda: self.ask(LIVING) == [(len(self.proxies),)], "the registration of every proxy")

    def move_lead_from(self, place):
        """It is stopped for as long as it takes another one to lead, or it would be the first to do so again."""
        if self.wait_leader() is not place:
            return
        place.proxy.process.send_signal(signal.SIGSTOP)
        try:
            for pid, _ in self.leaders():
                self.ask("SELECT pg_terminate_backend(%s)", pid)
            self.wait_leader(*(other for other in self.proxies if other is not place))
        finally:
            place.proxy.process.send_signal(signal.SIGCONT)
        self.wait_living()

    def state(self):
        """For people who ask why something did not come about: what the database and the logs say now."""
        try:
            sessions = self.ask("SELECT pid, application_name, state, wait_event, left(query, 60) FROM pg_stat_activity WHERE backend_type = 'client backend'")
            facts = ["leaders:", *self.leaders(), "instances:", *self.ask("SELECT * FROM awa.runtime_instances"), "sessions:", *sessions]
        except psycopg2.Error as error:
            facts = [f"the database: {error}"]
        for place in self.proxies:
            facts += [f"proxy {place.name}, pid {place.proxy.process.pid}:", *place.proxy.log().splitlines()[-LAST_LINES:]]
        return "\n   ".join(map(str, [*facts, "the server:", *self.cluster.log_tail().splitlines()[-LAST_LINES:]]))

    # the harness as a client

    def accepted(self, place, began, seconds=PATIENCE_S):
        """Enqueues through this proxy until it is acknowledged; seconds since `began`."""
        label = f"probe.{next(self.numbers)}"
        job = pb.NewJob(queue="q0", kind="crash", args=f'{{"l":"{label}","plan":"complete","ms":0}}'.encode())
        self.journal.write("Q", label)

        def stored():
            with client_of(place) as client:
                result, = client.call(enqueue=pb.Enqueue(jobs=[job], idempotency_key=f"{self.seed}.{label}")).enqueue_ok.results or [None]
                return result and result.job_id

        job_id = wait_for(lambda: quietly(stored), f"a job accepted by proxy {place.name}", seconds)
        self.journal.write("A", label, job_id)
        return time.monotonic() - began

    def hold(self, place, address=None, count=4):
        """A worker process that has begun to execute `count` jobs of a queue of its own and waits."""
        held = Held(self, f"held.{next(self.numbers)}", count)
        self.held.append(held)
        jobs = [pb.NewJob(queue=held.queue, kind="crash", args=f'{{"l":"{label}","plan":"hold","ms":0}}'.encode()) for label in held.labels]
        self.journal.write("Q", *held.labels)

        def stored():
            with client_of(place) as client:
                results = client.call(enqueue=pb.Enqueue(jobs=jobs, idempotency_key=f"{self.seed}.{held.queue}")).enqueue_ok.results
                return [r.job_id for r in results if r.job_id] if len(results) == count else None

        for label, job_id in zip(held.labels, wait_for(lambda: quietly(stored), "jobs to hold")):
            self.journal.write("A", label, job_id)
        held.process = self.run(f"holder-{held.queue}", "worker.py", address or place.address, held.queue, str(count), "0")
        wait_for(lambda: len(held.process.lines("B")) >= count, "a worker that holds")
        return held

    def front(self, place):
        """A stallable relay in front of a proxy."""
        path = self.folder / f"front{next(self.numbers)}.sock"
        self.relays.append(Stallable(path, place.socket))
        return self.relays[-1], f"unix:{path}"

    # the end

    def finish(self):
        """No more jobs come, all are worked off, everybody stops; what is left of it is told by proofs.py."""
        self.stop(self.producers)
        for held in self.held:
            held.leave()    # a fault that was not overcome has left them
        queues = [*LOAD_QUEUES, *(held.queue for held in self.held)]
        try:
            wait_for(lambda: all(sum(counts) == 0 for counts in self.ask(
                "SELECT c.scheduled, c.available, c.running, c.retryable FROM unnest(%s) q, awa.queue_counts_exact(q) c", queues)), "the end of all jobs")
        except Trouble as trouble:
            self.problems.append(str(trouble))
        self.look_after()
        self.stop([process for process in self.started if not process.over])
        for place in self.proxies:
            try:
                code = place.proxy.stop()
            except subprocess.TimeoutExpired:
                code = "none: it did not stop"
            if code != 0 or "event=stopped clean=yes" not in place.proxy.log():
                self.problems.append(f"proxy {place.name} stopped with code {code}: {place.proxy.log()[-500:]}")

    def stop(self, processes):
        for process in processes:
            process.popen.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                code = process.popen.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                code = "none: it did not stop"
                process.kill()
            process.over = True
            if code != 0:
                error = process.journal.with_suffix(".err").read_text(errors="replace")[-1500:]
                self.problems.append(f"{process.journal.stem} stopped with code {code}:\n{error}")


class Held:
    """Jobs that a worker process executes until it is told to end them, or they are lost to it."""

    def __init__(self, world, queue, count):
        self.world, self.queue = world, queue
        self.labels = [f"{queue}.{i}" for i in range(count)]
        self.process = None

    def end(self, began, seconds=PATIENCE_S):
        """They must not have been lost: the worker ends them, first attempt. Seconds until all are durable."""
        self.process.popen.send_signal(signal.SIGUSR1)
        wait_for(lambda: len(self.answers()) == len(self.labels), f"{self.queue}: ended by who held them", seconds)
        took = time.monotonic() - began
        self.expect([b.fields[1] for b in self.process.lines("B")] == ["1"] * len(self.labels), "they were executed again")
        self.expect(set(self.answers().values()) <= {"DONE", "ALREADY_DONE"}, f"answers {self.answers()}")
        self.world.stop([self.process])
        return took

    def answers(self):
        return {line.fields[0]: line.fields[2] for line in self.process.lines("F")}

    def run_again(self, place, began, seconds=PATIENCE_S):
        """They are lost to their worker: claims them through this proxy. Seconds until all run again."""
        again = {}

        def claimed():
            with client_of(place) as client:
                jobs = client.claim(self.queue, jobs=len(self.labels), wait_ms=500)
                for job in jobs:
                    label = pb_args_label(job)
                    self.world.journal.write("B", job.receipt.hex(), job.attempt, label)
                    again.setdefault(label, (time.monotonic(), job.attempt))
                    self.world.journal.write("E", job.receipt.hex(), journal.OUTCOMES["complete"])
                if jobs:
                    for job, result in zip(jobs, client.complete(*jobs)):
                        self.world.journal.write("F", job.receipt.hex(), journal.OUTCOMES["complete"], pb.FinishStatus.Name(result.status))
            return len(again) == len(self.labels)

        wait_for(lambda: quietly(claimed), f"{self.queue}: run again", seconds)
        self.expect(all(attempt == 2 for _, attempt in again.values()), f"attempts {again}")
        return max(at for at, _ in again.values()) - began

    def leave(self):
        """The worker, if it lives, ends what it executes in vain."""
        if self.process is not None and not self.process.over:
            self.process.popen.send_signal(signal.SIGUSR1)
            self.world.stop([self.process])

    def expect(self, good, text):
        if not good:
            raise Trouble(f"{self.queue}: {text}")


def pb_args_label(job):
    return job.args.decode().split('"l":"')[1].split('"')[0]


@contextlib.contextmanager
def client_of(place):
    client = Client(place.socket)
    client.socket.settimeout(ASK_TIMEOUT_S)
    try:
        yield client
    finally:
        client.close()


def quietly(ask):
    """None when the proxy is not there, or does not answer."""
    try:
        return ask()
    except (OSError, AssertionError):
        return None
