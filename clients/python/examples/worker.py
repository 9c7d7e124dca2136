"""Works on queue "mail" until Ctrl-C: worker.py unix:/run/awa-proxy/awa.sock"""
import signal
import sys

import awa


def handle(job: awa.Job) -> None:
    print(f"attempt {job.attempt} of job {job.id}: {job.args['to']}", flush=True)


worker = awa.Worker(sys.argv[1], ["mail"], handle, concurrency=10)
signal.signal(signal.SIGINT, lambda *_: worker.stop())
signal.signal(signal.SIGTERM, lambda *_: worker.stop())
worker.run()
