"""awa: the Python client of awa-proxy (synchronous, typed).

    with awa.Client("unix:/run/awa-proxy/awa.sock") as client:
        client.enqueue("mail", "email.send", {"to": "ada@example.org"})

    awa.Worker("unix:/run/awa-proxy/awa.sock", ["mail"], handler).run()

Delays and waits are datetime.timedelta, times are aware datetime.datetime, args
are JSON values. A failure is an awa.Error with a code; a value that cannot be sent
at all (args that are no JSON, a number out of range) is a TypeError or a ValueError.
"""
from .client import Client
from .errors import Code, Error
from .types import (Cancel, Complete, EnqueueResult, Fail, FinishResult, FinishStatus, Job, NewJob,
                    Outcome, QueueCounts, Retry, Snooze)
from .worker import Worker, WorkerStats

__all__ = ["Cancel", "Client", "Code", "Complete", "EnqueueResult", "Error", "Fail",
           "FinishResult", "FinishStatus", "Job", "NewJob", "Outcome", "QueueCounts", "Retry",
           "Snooze", "Worker", "WorkerStats"]
