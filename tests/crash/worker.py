#!/usr/bin/python3
"""A worker process of the crash command: does what each job's args ask for, and keeps a journal.

usage: worker.py ADDRESS JOURNAL QUEUE[,QUEUE…] CONCURRENCY PREFETCH

args of a job: {"l": label, "plan": …, "ms": how long it takes, "times": how often it is retried}. Some
outcomes are sent twice, although they were answered. SIGTERM: it stops. SIGUSR1: jobs with plan "hold" end.
"""
import datetime
import signal
import sys
import threading
import time

import awa
import awa_pb2 as pb

from journal import OUTCOMES, Journal

TOLD_AGAIN = 8  # of so many outcomes one is sent again


def decide(job):
    args = job.args
    short = datetime.timedelta(milliseconds=50)
    if args["plan"] == "retry" and job.attempt <= args["times"]:
        return awa.Retry("planned", delay=short)
    if args["plan"] == "exhaust":
        return awa.Retry("planned", delay=short)
    if args["plan"] == "fail":
        return awa.Fail("planned")
    return awa.Complete()


class Recorder(awa.Worker):
    """Writes down every answer to a Finish, and repeats some of them."""

    def __init__(self, journal, *arguments, **options):
        super().__init__(*arguments, **options)
        self.journal = journal
        self.repeated = set()

    def _on_finish_ok(self, request_id, finish_ok):
        answered = list(zip(self._sent.get(request_id, []), finish_ok.results))
        super()._on_finish_ok(request_id, finish_ok)
        for done, result in answered:
            receipt = done.job.receipt
            self.journal.write("F", receipt.hex(), OUTCOMES[done.outcome.field], pb.FinishStatus.Name(result.status))
            if result.status == pb.DONE and done.job.id % TOLD_AGAIN == 0 and receipt not in self.repeated:
                self.repeated.add(receipt)
                self._finished.append(done)


def main():
    address, path, queues, concurrency, prefetch = sys.argv[1:]
    journal = Journal(path)
    let_go = threading.Event()

    def handle(job):
        journal.write("B", job.receipt.hex(), job.attempt, job.args["l"])
        while job.args["plan"] == "hold" and not (let_go.is_set() or job.lost.is_set()):
            let_go.wait(0.05)
        time.sleep(job.args["ms"] / 1000)
        outcome = decide(job)
        journal.write("E", job.receipt.hex(), OUTCOMES[outcome.field])
        return outcome

    signal.signal(signal.SIGUSR1, lambda *_: let_go.set())
    worker = Recorder(journal, address, queues.split(","), handle, concurrency=int(concurrency), prefetch=int(prefetch))
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()


if __name__ == "__main__":
    main()
