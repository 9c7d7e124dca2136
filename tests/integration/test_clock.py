"""Proxies whose wall clock is five minutes off: what the database keeps, and for how long, goes by the database's clock.

The clock is shifted under the proxy alone, by a library loaded before the C library. The kernel's own clocks and the monotonic
one stay, as on a machine whose time was set wrong."""
import contextlib
import datetime
import re
import subprocess
import time

import pytest

from postgres import connected
from proxy_process import Proxy, wait_for
from wire_client import Client, pb

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *now)
{
    int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    if (failed == 0 && id == CLOCK_REALTIME)
        now->tv_sec += atol(getenv("TEST_CLOCK_OFFSET_S"));
    return failed;
}
time_t time(time_t *out)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}
"""
OFFSET_S = 300
RETENTION_MS = 2000
SLACK_S = 15  # laps, closing, and the leader's ticks
OPTIONS = ("--drain-timeout-ms", "50", "--completed-retention-ms", str(RETENTION_MS), "--queue-lap-ms", "1000", "--claim-lap-ms", "1000",
           "--closed-ms", "100")
LOGGED_AT = re.compile(r"ts=(\d+-\d+-\d+T\d+:\d+:\d+)")


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    library = tmp_path_factory.mktemp("shim") / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", library, "-ldl"], input=SHIM, text=True, check=True)
    return library


@pytest.fixture
def start(awa_proxy, own_database, shim, tmp_path):
    """Starts the only proxy of the test, with its clock so many seconds off."""
    with contextlib.ExitStack() as stack:
        def run(offset_s):
            env = {"LD_PRELOAD": str(shim), "TEST_CLOCK_OFFSET_S": str(offset_s)}
            proxy = Proxy(awa_proxy, tmp_path, own_database, *OPTIONS, env=env)
            stack.callback(proxy.end)
            return proxy.wait_ready()
        yield run


def ask(url, sql):
    with connected(url) as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def log_offset_s(proxy):
    """How far the proxy's clock is ahead of ours, by its log."""
    logged = datetime.datetime.fromisoformat(LOGGED_AT.search(proxy.log())[1]).replace(tzinfo=datetime.timezone.utc)
    return logged.timestamp() - time.time()


@pytest.mark.parametrize("offset_s", [-OFFSET_S, OFFSET_S])
def test_trap_32_retention_goes_by_the_clock_of_the_database(start, own_database, offset_s):
    """Also of a job whose client believes that it is five minutes earlier: its run_at has passed, which is all that a client's
    clock has a say in."""
    proxy = start(offset_s)
    assert abs(log_offset_s(proxy) - offset_s) < 30, "the proxy's clock is not off"
    client = Client(proxy.socket)
    client.enqueue("q", b"{}", b"{}")
    jobs = list(client.claim("q", jobs=2, wait_ms=5000))
    client.enqueue("q", b"{}", run_at_us=int((time.time() - OFFSET_S) * 1e6))
    wait_for(lambda: jobs.extend(client.claim("q", wait_ms=500)) or len(jobs) == 3)
    assert all(abs(job.created_at_us / 1e6 - time.time()) < 30 for job in jobs)
    assert {r.status for r in client.complete(*jobs[1:])} == {pb.DONE}
    (ended_at, oldest_s), = ask(own_database, "SELECT max(finalized_at), extract(epoch FROM clock_timestamp() - min(finalized_at))::float"
                                              " FROM awa.receipt_completion_batches")
    assert oldest_s < 30
    assert [r.status for r in client.complete(jobs[0])] == [pb.DONE]  # until then its slot was kept, with what is asked for above

    def is_forgotten():
        return {r.status for r in client.complete(*jobs)} == {pb.STATUS_NOT_FOUND}

    wait_for(is_forgotten)
    (age_s,), = ask(own_database, f"SELECT extract(epoch FROM clock_timestamp() - '{ended_at}'::timestamptz)::float")
    assert RETENTION_MS / 1000 <= age_s < RETENTION_MS / 1000 + SLACK_S
    wait_for(lambda: ask(own_database, "SELECT count(*) FROM awa.terminal_jobs") == [(0,)])


@pytest.mark.parametrize("offset_s", [-OFFSET_S, OFFSET_S])
def test_delays_go_by_the_clock_of_the_database(start, own_database, offset_s):
    proxy = start(offset_s)
    client = Client(proxy.socket)
    client.enqueue("q", b"{}", b"{}")
    retried, snoozed = client.claim("q", jobs=2, wait_ms=5000)
    began = time.monotonic()
    answers = client.finish(pb.FinishItem(receipt=retried.receipt, retry=pb.Retry(delay_ms=1500)),
                            pb.FinishItem(receipt=snoozed.receipt, snooze=pb.Snooze(delay_ms=1500)))
    assert {r.status for r in answers} == {pb.DONE}
    again = []
    wait_for(lambda: again.extend(client.claim("q", jobs=2, wait_ms=500)) or len(again) == 2)
    assert 1.5 <= time.monotonic() - began < 1.5 + SLACK_S
    assert {job.job_id for job in again} == {retried.job_id, snoozed.job_id}
