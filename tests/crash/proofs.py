"""What must be true in the end, told job by job from the journals and from the database.

The history of a job is what the claim ring kept: each of its attempts (run_lease 1, 2, …) with the number it had, the proxy that
claimed it and how it ended. Nothing is pruned in this command, so it is all there. `Evidence` reads it, each proof compares it
with what producers and workers were told. A proof is a function that yields one sentence for each thing that is wrong.
"""
import collections
import contextlib
import dataclasses
import re

import psycopg2

from postgres import ROOT, connected

import journal
from journal import OUTCOMES, PROXY_LOST, RELEASED, WORKER_LOST
from world import Trouble, wait_for

NAMES = {number: name for name, number in OUTCOMES.items()} | {RELEASED: "release", WORKER_LOST: "worker lost", PROXY_LOST: "proxy lost"}
FAILED_ATTEMPT = (OUTCOMES["retry"], WORKER_LOST, PROXY_LOST)
UNCOUNTED = (OUTCOMES["snooze"], RELEASED)
CRASH_LIMIT = 3
ERRORS_KEPT = 20
C_LINE = re.compile(r'attempt (\d+) of job (\d+): .*"l":"([^"]+)"')

HISTORY = """
    SELECT a.job_id, coalesce(a.run_lease, 1), coalesce(a.attempt, 1), b.instance,
           CASE WHEN get_bit(c.members, a.idx::int - 1) = 1 THEN 1 ELSE o.outcome END
      FROM awa.lease_claim_batches b
     CROSS JOIN LATERAL unnest(b.job_ids, b.run_leases, b.attempts) WITH ORDINALITY a(job_id, run_lease, attempt, idx)
      LEFT JOIN (SELECT claim_slot, batch_id, bit_or(members) AS members FROM awa.lease_claim_closure_batches GROUP BY 1, 2) c USING (claim_slot, batch_id)
      LEFT JOIN awa.lease_claim_closures o ON o.claim_slot = b.claim_slot AND o.batch_id = b.batch_id AND o.idx = a.idx"""
ENDED = "SELECT job_id, queue, state, run_lease, attempt, max_attempts, args ->> 'l', payload -> 'errors' FROM awa.terminal_jobs"


@dataclasses.dataclass(frozen=True)
class Attempt:
    number: int
    instance: int
    outcome: int    # None: open


@dataclasses.dataclass(frozen=True)
class Ended:
    queue: str
    state: str
    lease: int
    attempt: int
    max_attempts: int
    label: str
    errors: list


@dataclasses.dataclass
class Execution:
    worker: str
    attempt: int
    killed: bool        # the worker was killed


class Evidence:
    def __init__(self, world):
        self.world = world
        self.history = collections.defaultdict(dict)    # job → run_lease → Attempt
        self.twice_claimed = []
        for job, lease, number, instance, outcome in world.ask(HISTORY):
            if lease in self.history[job]:
                self.twice_claimed.append((job, lease))
            self.history[job][lease] = Attempt(number, instance, outcome)
        self.ended = collections.defaultdict(list)
        for job, *rest in world.ask(ENDED):
            self.ended[job].append(Ended(*rest))
        self.stored, self.sent, self.unknown = {}, set(), set()     # label → job; labels
        self.executions = collections.defaultdict(list)             # (job, run_lease) → Execution
        self.c_executions = collections.defaultdict(list)           # (job, attempt) → Execution
        self.said = collections.defaultdict(set)                    # (job, run_lease) → outcomes that workers decided
        self.answers = []                                           # ((job, run_lease), outcome, status)
        for process in world.started:
            self.read(process.journal, process.lost)
        self.read(world.folder / "harness.journal", True)

    def read(self, path, killed):
        if path.suffix == ".out":
            for attempt, job, _ in C_LINE.findall(path.read_text()):
                self.c_executions[int(job), int(attempt)].append(Execution(path.stem, int(attempt), killed))
            return
        for line in journal.read(path):
            fields = line.fields
            if line.letter == "Q":
                self.sent.update(fields)
            elif line.letter == "A":
                self.stored[fields[0]] = int(fields[1])
            elif line.letter == "U":
                self.unknown.update(fields)
            elif line.letter == "B":
                self.executions[journal.attempt_of(fields[0])].append(Execution(path.stem, int(fields[1]), killed))
            elif line.letter == "E":
                self.said[journal.attempt_of(fields[0])].add(int(fields[1]))
            elif line.letter == "F":
                self.answers.append((journal.attempt_of(fields[0]), int(fields[1]), fields[2]))

    def errors(self, job):
        """The newest of a job that has ended."""
        return next((end.errors or [] for end in self.ended.get(job, [])), [])

    def replayed(self, job):
        """(state, attempt number of the last one) that the history leads to; or a sentence that says why it cannot be."""
        attempts = self.history.get(job, {})
        number = crashes = 0
        state = "available"
        max_attempts = self.ended[job][0].max_attempts
        for lease in range(1, len(attempts) + 1):
            if lease not in attempts:
                return f"its attempts are {sorted(attempts)}"
            if state != "available":
                return f"it was claimed again, run_lease {lease}, after it had {state}"
            attempt = attempts[lease]
            number += 1
            if attempt.number != number:
                return f"run_lease {lease} is attempt {attempt.number}, not {number}"
            crashes = crashes + 1 if attempt.outcome == WORKER_LOST else crashes if attempt.outcome in (RELEASED, PROXY_LOST) else 0
            if attempt.outcome is None:
                return f"run_lease {lease} is open"
            if attempt.outcome == OUTCOMES["complete"]:
                state = "completed"
            elif attempt.outcome == OUTCOMES["fail"] or attempt.outcome in FAILED_ATTEMPT and (number >= max_attempts or crashes >= CRASH_LIMIT):
                state = "failed"
            number -= attempt.outcome in UNCOUNTED
        return state, number


def acknowledged(evidence):
    """Every job whose enqueue was acknowledged has ended once, and nothing was stored twice or by nobody."""
    labels = collections.Counter()
    for job, ends in evidence.ended.items():
        labels[ends[0].label] += 1
        if len(ends) > 1:
            yield f"job {job} has ended {len(ends)} times"
        if evidence.stored.get(ends[0].label, job) != job:
            yield f"{ends[0].label} is job {job}, its producer was told {evidence.stored[ends[0].label]}"
        if ends[0].label not in evidence.sent:
            yield f"job {job} is {ends[0].label}, which nobody has sent"
    for label, count in labels.items():
        if count > 1:
            yield f"{label} was stored {count} times"
    for label, job in evidence.stored.items():
        if job not in evidence.ended:
            yield f"job {job} ({label}) was acknowledged and never ended"
    for label in evidence.sent - evidence.stored.keys() - evidence.unknown:
        yield f"{label} was sent and never answered"
    if not evidence.stored:
        yield "no job was acknowledged at all"


def outcomes(evidence):
    """Each end of a job is the one that a worker had decided, and follows from its history; each answer to a worker was true."""
    for job, ends in evidence.ended.items():
        end = ends[0]
        replayed = evidence.replayed(job)
        if replayed != (end.state, end.attempt):
            yield f"job {job} ({end.label}) is {end.state} at attempt {end.attempt}, its history says {replayed}"
        for lease, attempt in evidence.history.get(job, {}).items():
            own_word = attempt.outcome in OUTCOMES.values()
            said = evidence.said[job, lease] | ({OUTCOMES["complete"]} if (job, attempt.number) in evidence.c_executions else set())
            if own_word and attempt.outcome not in said:
                yield f"attempt ({job}, {lease}) ended as {NAMES[attempt.outcome]}, which no worker said"
    done = collections.Counter()
    for (job, lease), outcome, status in evidence.answers:
        attempt = evidence.history.get(job, {}).get(lease)
        accepted = attempt.outcome if attempt else None
        done[job, lease] += status == "DONE"
        right = {"DONE": accepted == outcome, "ALREADY_DONE": accepted == outcome,
                 "STALE": accepted not in (None, outcome), "STATUS_ABORTED": True}.get(status, False)
        if not right:
            yield f"outcome {NAMES[outcome]} of ({job}, {lease}) was answered {status}, the database says {NAMES.get(accepted)}"
    for (job, lease), count in done.items():
        if count > 1:
            yield f"attempt ({job}, {lease}) was answered DONE {count} times"


def why_again(evidence, job, lease, executions):
    """How the database explains that a job ran again after this attempt, which was executed; None when it does not."""
    attempt = evidence.history[job][lease]
    if attempt.outcome == OUTCOMES["retry"]:
        good, error = attempt.outcome in evidence.said[job, lease], "planned"
    elif attempt.outcome == WORKER_LOST:
        good, error = all(e.killed for e in executions), "worker lost"
    elif attempt.outcome == PROXY_LOST:
        good, error = evidence.world.instances.get(attempt.instance) in evidence.world.lost_proxies, "proxy lost"
    else:
        return None     # completed, failed; or released, but nobody hands back what he has begun
    kept = evidence.errors(job)
    recorded = len(kept) >= ERRORS_KEPT or any((e["attempt"], e["error"]) == (attempt.number, error) for e in kept)
    return NAMES[attempt.outcome] if good and recorded else None


def duplicates(evidence, found=None):
    """Whatever ran more than once did so for a reason that the database holds. Fills `found` with the reasons."""
    found = collections.Counter() if found is None else found
    for job, lease in evidence.twice_claimed:
        yield f"attempt ({job}, {lease}) was claimed twice"
    executed = dict(evidence.executions)
    for (job, number), executions in evidence.c_executions.items():
        # A release does not count, so the next attempt has the same number; released is what nobody has begun.
        leases = [lease for lease, attempt in evidence.history.get(job, {}).items() if attempt.number == number and attempt.outcome != RELEASED]
        if len(executions) > len(leases):
            yield f"attempt {number} of job {job} was executed by {executions} and claimed {len(leases)} times, apart from releases"
        executed |= {(job, lease): executions for lease in leases[:1]}
    for (job, lease), executions in executed.items():
        attempt = evidence.history.get(job, {}).get(lease)
        if len(executions) > 1:
            yield f"attempt ({job}, {lease}) was executed by {executions}"
        if attempt is None or attempt.number != executions[0].attempt:
            yield f"attempt ({job}, {lease}) was executed as number {executions[0].attempt}, the database has {attempt}"
        elif lease < max(evidence.history[job]):
            why = why_again(evidence, job, lease, executions)
            found[why or "unexplained"] += 1
            if why is None:
                yield f"job {job} ran again after attempt ({job}, {lease}), {attempt}, executed by {executions}: unexplained, errors {evidence.errors(job)}"


def counts(evidence):
    """The exact counts of each queue are the ends of its jobs, and nothing else is counted."""
    truth = collections.defaultdict(collections.Counter)
    for ends in evidence.ended.values():
        truth[ends[0].queue][ends[0].state] += 1
    for queue, in evidence.world.ask("SELECT DISTINCT queue FROM awa.queue_lanes"):
        columns = ("scheduled", "available", "running", "waiting_external", "retryable", "completed", "failed", "cancelled")
        counted = dict(zip(columns, evidence.world.ask("SELECT * FROM awa.queue_counts_exact(%s)", queue)[0]))
        expected = {column: truth[queue][column] for column in columns}
        if counted != expected:
            yield f"queue {queue}: counted {counted}, there are {expected}"


def invariants(evidence):
    """What must hold of the stored facts, whoever wrote them (tests/isolation/invariants.sql)."""
    connection = psycopg2.connect(evidence.world.url)
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA iso; SET LOCAL search_path = awa, iso, pg_temp; SET LOCAL jit = off")
        cursor.execute((ROOT / "tests/isolation/invariants.sql").read_text(encoding="utf-8"))
        cursor.execute("SELECT * FROM iso.problems()")
        yield from (text for text, in cursor.fetchall())
    connection.close()


def left_in(cursor, query):
    """What stays: the server ends a session some time after its client has closed it, our own before this one too."""
    def rows():
        cursor.execute(query)
        return cursor.fetchall()

    with contextlib.suppress(Trouble):
        wait_for(lambda: not rows(), "the end of all sessions")
    return rows()


def nothing_left(evidence):
    """No job waits, no session and no lock is left, and every process ended as it was told."""
    world = evidence.world
    yield from world.problems
    (rows,), = world.ask("SELECT count(*) FROM awa.deferred_jobs")
    if rows:
        yield f"{rows} jobs are left in deferred_jobs"
    with connected(world.cluster.superuser_url()) as cursor:
        sessions = "SELECT pid, application_name, state, query FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        yield from (f"a session is left: {row}" for row in left_in(cursor, sessions))
        yield from (f"a lock is left: {row}" for row in left_in(cursor, "SELECT pid, mode, objid FROM pg_locks WHERE locktype = 'advisory'"))
    for process in world.started:
        if process.popen.poll() is None:
            yield f"{process.journal.stem} still runs"
    for place in world.proxies:
        for number, proxy in enumerate(place.runs):
            if "level=fatal" in proxy.log() or "Sanitizer" in proxy.log():
                yield f"proxy {place.name}{number}: {proxy.log()[-1000:]}"


PROOFS = {"acknowledged": acknowledged, "outcomes": outcomes, "duplicates": duplicates, "counts": counts, "invariants": invariants, "nothing_left": nothing_left}
