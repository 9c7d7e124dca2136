#!/usr/bin/python3
"""A producer process of the crash command: enqueues until SIGTERM whatever happens, and keeps a journal.

usage: producer.py ADDRESS JOURNAL NAME SEED

Request number i is drawn from (seed, name, i) alone. Of its requests half have an idempotency key of their
own and are repeated until they are answered; the others rely on safe=True, which may end without knowing.
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
        self.client = None
        self.stopping = False

    def draw_job(self, rng, queue, label):
        plan = "complete" if queue == "mail" else rng.choice(PLANS)
        later = datetime.timedelta(milliseconds=rng.randrange(100, 1500)) if rng.random() < 0.1 else None
        return awa.NewJob(queue, "crash", {"l": label, "plan": plan, "ms": rng.choice((0, 0, 5, 20, 120)), "times": rng.choice((1, 1, 2))},
                          max_attempts=2 if plan == "exhaust" else 25, priority=rng.choice((1, 2, 2, 3)),
                          run_at=later and datetime.datetime.now(datetime.timezone.utc) + later)

    def send(self, jobs, key):
        """The results; None when nobody will ever know."""
        while True:
            try:
                if self.client is None:
                    self.client = awa.Client(self.address, safe=True, timeout=TIMEOUT)
                return self.client.enqueue_many(jobs, idempotency_key=key)
            except awa.Error as error:
                if not error.retryable:
                    raise
                if error.code == awa.Code.DEADLINE_EXCEEDED and self.client is not None and not key:
                    return None
                time.sleep(PAUSE_S)

    def step(self, number):
        rng = random.Random(f"{self.seed}/{self.name}/{number}")
        labels = [f"{self.name}.{number}.{i}" for i in range(rng.choice((1, 2, 5, 12)))]
        jobs = [self.draw_job(rng, rng.choice(QUEUES), label) for label in labels]
        self.journal.write("Q", *labels)
        results = self.send(jobs, rng.choice((f"{self.seed}.{self.name}.{number}", "")))
        if results is None:
            self.journal.write("U", *labels)
            return
        for label, result in zip(labels, results):
            if result.error is not None:
                raise result.error
            self.journal.write("A", label, result.job_id)

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
