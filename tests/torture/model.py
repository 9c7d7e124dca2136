"""What the engine promised, told from what the workers were told, job by job."""
import collections
import dataclasses

from workers import ALREADY_DONE, DONE, INVALID, NOT_FOUND, STALE

MAX_REPORTED = 20
CRASH_LIMIT = 3
TO_RETRY = ("retry", "worker lost", "proxy lost")  # failed attempts: the job goes on unless it may not


@dataclasses.dataclass
class Job:
    label: str
    queue: str
    max_attempts: int
    producer: str
    place: tuple            # (transaction number, number within it): the producer's order
    lane: tuple             # (queue, priority, ordering key): what the order is promised within
    in_order: bool = True   # False: deferred, or once touched by a cancel
    leases: dict = dataclasses.field(default_factory=dict)   # run_lease → attempt number it was claimed with
    ends: dict = dataclasses.field(default_factory=dict)     # run_lease → outcome that was accepted
    unsure: dict = dataclasses.field(default_factory=dict)   # run_lease → outcomes whose first answer was lost
    cancels: int = 0
    maybe_cancelled: bool = False


class Model:
    def __init__(self):
        self.jobs = {}
        self.problems = []
        self.counts = collections.Counter()
        self.doomed = set()      # (job id, run_lease) left to the rescue
        self.hand_outs = []      # ((batch id, place), job id) of fresh jobs, in claims whose order is known
        self.answers = []        # (job id, run_lease, outcome, status) that are judged once everything is known

    def problem(self, text):
        self.counts["problems"] += 1
        if len(self.problems) < MAX_REPORTED:
            self.problems.append(text)

    def learn(self, records):
        """Enqueues first: a job may be claimed by the time its producer hears of its commit."""
        for record in records:
            if record[0] == "enqueue":
                self.enqueue(*record[1:])
        for record in records:
            if record[0] != "enqueue":
                getattr(self, "learn_" + record[0])(*record[1:])

    def enqueue(self, producer, number, jobs):
        for i, (job, label, queue, priority, key, deferred, max_attempts) in enumerate(jobs):
            if job in self.jobs:
                self.problem(f"job id {job} was given out twice")
            self.jobs[job] = Job(label, queue, max_attempts, producer, (number, i), (queue, priority, key), not deferred)
            self.counts["enqueued"] += 1

    def learn_claim(self, rows):
        first = {}
        for place, (job, lease, attempt, queue, priority, label, batch) in enumerate(rows):
            known = self.jobs.get(job)
            if known is None:
                self.problem(f"job {job} was claimed, but never committed")
                continue
            if known.label != label or known.lane[:2] != (queue, priority):
                self.problem(f"I6 job {job} came as {label} of {queue}/{priority}, it is {known.label} of {known.lane}")
            first[known.lane] = min(first.get(known.lane, batch), batch)
            self.lease(job, known, lease, attempt)
        for place, (job, lease, *_) in enumerate(rows):
            if lease == 1 and job in self.jobs:
                self.hand_outs.append(((first[self.jobs[job].lane], place), job))

    def learn_adopted(self, rows):
        for job, lease, attempt in rows:
            if job in self.jobs:
                self.lease(job, self.jobs[job], lease, attempt)
            else:
                self.problem(f"job {job} was claimed, but never committed")

    def lease(self, job, known, lease, attempt):
        self.counts["claimed"] += 1
        if lease in known.leases:
            self.counts["twice"] += 1
            self.problem(f"attempt ({job}, {lease}) was claimed twice")
        known.leases[lease] = attempt

    def learn_end(self, job, lease, outcome, status, answered):
        self.counts["answers"] += 1
        if job not in self.jobs:
            return self.problem(f"attempt ({job}, {lease}) of no job was answered {status}")
        known = self.jobs[job]
        if not answered and status in (DONE, ALREADY_DONE):
            known.unsure.setdefault(lease, set()).add(outcome)
        if status == DONE:
            self.counts["accepted"] += 1
            if lease in known.ends:
                self.counts["twice"] += 1
                self.problem(f"attempt ({job}, {lease}) was accepted twice: {known.ends[lease]}, {outcome}")
            known.ends[lease] = outcome
        elif status in (ALREADY_DONE, STALE, NOT_FOUND):
            self.answers.append((job, lease, outcome, status))
        elif status == INVALID:
            self.problem(f"a good receipt of ({job}, {lease}) was called invalid")
        return None

    def learn_cancel(self, job, status, committed, answered):
        known = self.jobs.get(job)
        if known is None:
            return
        known.in_order = False
        if not committed:
            return
        if not answered:
            known.maybe_cancelled = True
        elif status == DONE:
            self.counts["cancelled"] += 1
            known.cancels += 1
            if known.cancels > 1:
                self.problem(f"job {job} was cancelled twice")

    def learn_doomed(self, attempts):
        """Its owner died: it ended as lost with its proxy, or will, unless somebody was quicker."""
        for job, lease in attempts:
            if job in self.jobs:  # else its claim was reported
                self.doomed.add((job, lease))
                self.jobs[job].unsure.setdefault(lease, set()).add("proxy lost")

    def learn_held(self, receipts):
        pass

    def learn_problem(self, text):
        self.problem(text)

    def learn_maintenance(self, counted):
        self.counts.update(counted)

    def learn_counted(self):
        self.counts["counted"] += 1

    def learn_killed(self):
        self.counts["killed"] += 1

    def judge_answers(self):
        """ALREADY_DONE: the same outcome was accepted; STALE: another; NOT_FOUND: some was, long ago."""
        for job, lease, outcome, status in self.answers:
            known = self.jobs[job]
            ends = ({known.ends[lease]} if lease in known.ends else known.unsure.get(lease, set())) | (
                {"cancel"} if known.cancels else set())
            right = {ALREADY_DONE: outcome in ends, STALE: bool(ends - {outcome}), NOT_FOUND: bool(ends)}[status]
            if not right:
                self.problem(f"outcome {outcome} of ({job}, {lease}) was answered {status}, accepted was {ends or 'nothing'}")
        self.answers.clear()

    def settle_unsure(self, evidence):
        """Outcomes of lost answers, from durable evidence: {(job, run_lease): outcome name}."""
        for (job, lease), outcome in evidence.items():
            known = self.jobs.get(job)
            if known is None:
                self.problem(f"the evidence knows job {job}, nobody else does")
            elif lease not in known.ends:
                if outcome in known.unsure.get(lease, ()):
                    known.ends[lease] = outcome
                    self.counts["accepted"] += 1
                elif not (outcome == "cancel" and known.cancels):
                    self.problem(f"attempt ({job}, {lease}) ended as {outcome}, but nobody was told so")
            elif known.ends[lease] != outcome:
                self.problem(f"attempt ({job}, {lease}) ended as {outcome}, accepted was {known.ends[lease]}")

    def settle_doomed(self, open_attempts):
        """Those whose evidence was pruned: they ended, and nobody but the rescue can have done it, or a cancel."""
        for job, lease in self.doomed - open_attempts:
            known = self.jobs[job]
            if lease not in known.ends and (lease < max(known.leases) or not known.cancels):
                known.ends[lease] = "proxy lost"
        self.doomed &= open_attempts

    @staticmethod
    def crashes(known):
        """How many in a row, up to the last attempt."""
        count = 0
        for lease in sorted(known.leases):
            outcome = known.ends.get(lease)
            count = 0 if outcome in ("retry", "snooze") else count + (outcome == "worker lost")
        return count

    def state(self, known):
        """completed, failed, cancelled, running or waiting (available or deferred)."""
        last = max(known.leases, default=0)
        outcome = known.ends.get(last)
        if outcome in ("complete", "fail"):
            return {"complete": "completed", "fail": "failed"}[outcome]
        if outcome in TO_RETRY and (known.leases[last] >= known.max_attempts or self.crashes(known) >= CRASH_LIMIT):
            return "failed"
        if outcome == "cancel" or known.cancels:
            return "cancelled"
        return "running" if last and outcome is None else "waiting"

    def judge_jobs(self):
        """I7 and the number of each attempt, for every job."""
        for job, known in self.jobs.items():
            if sorted(known.leases) != list(range(1, len(known.leases) + 1)):
                self.problem(f"I7 job {job} was claimed with run_leases {sorted(known.leases)}")
                continue
            attempt = 0
            for lease in sorted(known.leases):
                attempt += 1
                if known.leases[lease] != attempt:
                    self.problem(f"attempt ({job}, {lease}) is numbered {known.leases[lease]}, not {attempt}")
                outcome = known.ends.get(lease)
                if lease < len(known.leases) and outcome not in (*TO_RETRY, "snooze", "release"):
                    self.problem(f"job {job} was claimed again although attempt {lease} ended as {outcome}")
                attempt -= outcome in ("snooze", "release")
            terminal = self.state(known) in ("completed", "failed")
            if known.cancels and terminal:
                self.problem(f"job {job} was cancelled and {self.state(known)}")

    def judge_order(self):
        """I9: what one producer put into one lane comes out in its order."""
        newest = {}
        for key, job in sorted(self.hand_outs):
            known = self.jobs[job]
            if not known.in_order:
                continue
            stream = (known.producer, known.lane)
            before = newest.get(stream)
            if before and before[0] > known.place:
                self.problem(f"I9 job {job} of {stream}, place {known.place}, came out after {before[0]}, claims {before[1]} and {key}")
            newest[stream] = (known.place, key)

    def lost(self):
        """Jobs that have not ended. At the end of everything they are lost."""
        return {job for job, known in self.jobs.items() if self.state(known) not in ("completed", "failed", "cancelled")}

    def describe_lost(self):
        return [f"job {job} of {known.producer}, place {known.place}, is still {self.state(known)} in {known.lane}"
                for job, known in ((job, self.jobs[job]) for job in sorted(self.lost())[:MAX_REPORTED])]

    def tally(self):
        """{queue: {state: number}}"""
        found = collections.defaultdict(collections.Counter)
        for known in self.jobs.values():
            found[known.queue][self.state(known)] += 1
        return found
