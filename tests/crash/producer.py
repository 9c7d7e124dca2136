#!/usr/bin/python3
"""A producer process of the crash command: enqueues until SIGTERM whatever happens, and keeps a journal.

usage: producer.py ADDRESS JOURNAL NAME SEED

Request number i is drawn from (seed, name, i) alone. A third of the requests have an idempotency key of their own and are repeated
until they are answered; a third rely on safe=True; a third have no key. The latter two may end without knowing.
"""
import datetime
import random
import signal
import sys
import time

import awa

from journal import Journal

QUEUES = ("q0", "q1", "q2", "mail")  # mail: for the C worker, which completes whatever it gets
PAUSE_S = 0.04
TIMEOUT = datetime.timedelta(seconds=20)
PLANS = ("complete",) * 8 + ("retry", "retry", "fail", "exhaust")


class Producer:
    def __init__(self, address, journal, name, seed):
        self.address, self.journal, self.name, self.seed = address, journal, name, seed
        self.clients = {}   # by whether it is safe
        self.stopping = False

    def draw_job(self, rng, queue, label):
        plan = "complete" if queue == "mail" else rng.choice(PLANS)
        later = datetime.timedelta(milliseconds=rng.randrange(100, 1500)) if rng.random() < 0.1 else None
        return awa.NewJob(queue, "crash", {"l": label, "plan": plan, "ms": rng.choice((0, 0, 5, 20, 120)), "times": rng.choice((1, 1, 2))},
                          max_attempts=2 if plan == "exhaust" else 25, priority=rng.choice((1, 2, 2, 3)),
                          run_at=later and datetime.datetime.now(datetime.timezone.utc) + later)

    def ask(self, jobs, key, safe):
        """For each job its id or an error; one that comes before anything was sent says that it is not done."""
        try:
            if safe not in self.clients:
                self.clients[safe] = awa.Client(self.address, safe=safe, timeout=TIMEOUT)
        except awa.Error as error:
            return [awa.Error(awa.Code.UNAVAILABLE, error.message, retryable=error.retryable)] * len(jobs)
        try:
            return [result.job_id or result.error for result in self.clients[safe].enqueue_many(jobs, idempotency_key=key)]
        except awa.Error as error:
            return [error] * len(jobs)

    def send(self, jobs, key, safe):
        """For each job its id; None when nobody will ever know."""
        ids = {}
        while left := [i for i in range(len(jobs)) if i not in ids]:
            for i, answer in zip(left, self.ask([jobs[i] for i in left], key, safe)):
                if not isinstance(answer, awa.Error):
                    ids[i] = answer
                elif not answer.retryable:
                    raise answer
                elif answer.code == awa.Code.DEADLINE_EXCEEDED and not key:
                    ids[i] = None
            if len(ids) < len(jobs):
                time.sleep(PAUSE_S)
        return [ids[i] for i in range(len(jobs))]

    def step(self, number):
        rng = random.Random(f"{self.seed}/{self.name}/{number}")
        labels = [f"{self.name}.{number}.{i}" for i in range(rng.choice((1, 2, 5, 12)))]
        jobs = [self.draw_job(rng, rng.choice(QUEUES), label) for label in labels]
        self.journal.write("Q", *labels)
        ids = self.send(jobs, *rng.choice(((f"{self.seed}.{self.name}.{number}", True), ("", True), ("", False))))
        for label, job_id in zip(labels, ids):
            self.journal.write(*(("U", label) if job_id is None else ("A", label, job_id)))

    def run(self):
        number = 0
        while not self.stopping:
            self.step(number)
            number += 1
            time.sleep(PAUSE_S)


def main():
    address, path, name, seed = sys.argv[1:]
    producer = Producer(address, Journal(path), name, seed)

    def stop(*_):
        producer.stopping = True

    signal.signal(signal.SIGTERM, stop)
    producer.run()


if __name__ == "__main__":
    main()
