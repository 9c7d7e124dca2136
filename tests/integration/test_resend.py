"""An outcome that is sent again because its answer was lost, over another proxy of the same database: every first outcome
against every second one, before and after the rescue of the proxy that dealt the job, and after the resend window."""
import contextlib
import signal
import threading
import time

import pytest

from postgres import connected
from proxy_process import Proxy, wait_for
from wire_client import Client, pb

DELAY_MS = 3_600_000  # what is put aside does not come back meanwhile
OPTIONS = ("--drain-timeout-ms", "50")
MISSING_MS = 2000
RETENTION_MS = 3000
SHORT_WINDOW = ("--completed-retention-ms", str(RETENTION_MS), "--queue-lap-ms", "1000", "--claim-lap-ms", "1000", "--closed-ms", "100")
ITEMS = {
    "complete": {"complete": pb.Complete()},
    "retry": {"retry": pb.Retry(delay_ms=DELAY_MS, error="no")},
    "snooze": {"snooze": pb.Snooze(delay_ms=DELAY_MS)},
    "fail": {"fail": pb.Fail(error="no")},
    "cancel": {"cancel": pb.Cancel(error="no")},
}
OUTCOMES = (*ITEMS, "release")


@pytest.fixture
def start(awa_proxy, own_database, tmp_path):
    """Starts one more proxy on the test's database; in the end all are killed."""
    started = []

    def run(*options):
        folder = tmp_path / f"p{len(started)}"
        folder.mkdir()
        started.append(Proxy(awa_proxy, folder, own_database, *OPTIONS, *options))
        return started[-1].wait_ready()

    yield run
    for running in started:
        running.end()
        assert "level=fatal" not in running.log() and "Sanitizer" not in running.log(), running.log()


def ask(url, sql):
    with connected(url) as cursor:
        cursor.execute("SET search_path = awa, pg_temp")
        cursor.execute(sql)
        return cursor.fetchall()


def request(outcome, jobs):
    """The request that ends these jobs with one outcome."""
    if outcome == "release":
        return {"release": pb.Release(receipts=[job.receipt for job in jobs])}
    return {"finish": pb.Finish(items=[pb.FinishItem(receipt=job.receipt, **ITEMS[outcome]) for job in jobs])}


def results(answer):
    assert answer.WhichOneof("answer") in ("finish_ok", "release_ok"), answer
    return [r.status for r in getattr(answer, answer.WhichOneof("answer")).results]


def end(client, outcome, *jobs):
    return results(client.call(**request(outcome, jobs)))


def hold(proxy, count, queue="q"):
    """A client that holds so many jobs of its own, in one claim batch."""
    client = Client(proxy.socket)
    client.enqueue(queue, *[b"{}"] * count)
    jobs = client.claim(queue, jobs=count, wait_ms=5000)
    assert len(jobs) == count
    return client, jobs


def end_without_an_answer(client, first, jobs, url):
    """The outcome of these jobs is durable, and its answer has gone to nobody."""
    open_before = open_attempts(url)
    client.send(**request(first, jobs))
    client.close()
    wait_for(lambda: open_attempts(url) == open_before - len(jobs))


def open_attempts(url):
    return ask(url, "SELECT open_attempts::int FROM status()")[0][0]


@contextlib.contextmanager
def no_absence_is_noted(url):
    """Nobody is rescued meanwhile: of instances whose rows are locked the leader writes down nothing."""
    with connected(url) as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT FROM awa.runtime_instances FOR UPDATE")
        yield


def test_first_outcome_against_every_second(start, own_database):
    here, there = start(), start()
    other, same_proxy = Client(there.socket), Client(here.socket)
    for first in OUTCOMES:
        client, jobs = hold(here, len(OUTCOMES), queue=first)
        end_without_an_answer(client, first, jobs, own_database)
        counts = f"SELECT queue_counts_exact('{first}')"
        before = ask(own_database, counts)
        for second, job in zip(OUTCOMES, jobs):
            expected = pb.ALREADY_DONE if first == second else pb.STALE
            assert end(other, second, job) == [expected], f"{first}, then {second}, over the other proxy"
            assert end(same_proxy, second, job) == [expected], f"{first}, then {second}, over the same proxy"
            assert end(other, first, job) == [pb.ALREADY_DONE], "a refused outcome changed what is remembered"
        assert ask(own_database, counts) == before, "a refused outcome changed a job"


def test_before_and_after_the_rescue_of_its_proxy(start, own_database):
    """What had ended stays so, also what ended over another proxy once its own was dead. What was still open then is
    rescued: STALE, whatever its worker says."""
    there = start("--instance-missing-ms", str(MISSING_MS))
    wait_for(lambda: "event=leading" in there.log())
    here = start("--instance-missing-ms", str(MISSING_MS))
    wait_for(lambda: ask(own_database, "SELECT count(*) FROM runtime_instances") == [(2,)])  # it claims nothing for long before
    held = {name: hold(here, len(OUTCOMES), queue=name)[1] for name in ("answered", "orphaned", "rescued")}
    client = Client(here.socket)
    for first, job in zip(OUTCOMES, held["answered"]):
        assert end(client, first, job) == [pb.DONE]
    with no_absence_is_noted(own_database):
        here.stop(signal.SIGKILL)
        other = Client(there.socket)
        for first, job in zip(OUTCOMES, held["orphaned"]):
            assert end(other, first, job) == [pb.DONE]
        assert open_attempts(own_database) == len(held["rescued"])
        began = time.monotonic()
    wait_for(lambda: open_attempts(own_database) == 0)
    assert time.monotonic() - began > MISSING_MS / 1000, "rescue came before its time"
    for second in OUTCOMES:
        expected = [pb.ALREADY_DONE if first == second else pb.STALE for first in OUTCOMES]
        assert end(other, second, *held["answered"]) == expected, f"then {second}"
        assert end(other, second, *held["orphaned"]) == expected, f"then {second}"
        assert set(end(other, second, *held["rescued"])) == {pb.STALE}, f"rescued, then {second}"
    again = []
    wait_for(lambda: again.extend(other.claim("rescued", jobs=10, wait_ms=500)) or len(again) == len(OUTCOMES))
    assert {job.job_id for job in again} == {job.job_id for job in held["rescued"]}
    assert set(end(other, "complete", *again)) == {pb.DONE}


def test_after_the_resend_window(start, own_database):
    """ALREADY_DONE as long as the slot is there, NOT_FOUND from then on, and never anything else in between."""
    here, there = start(*SHORT_WINDOW), start(*SHORT_WINDOW)
    other = Client(there.socket)
    client, (open_job, *jobs) = hold(here, 1 + len(OUTCOMES))
    for first, job in zip(OUTCOMES, jobs):
        assert end(client, first, job) == [pb.DONE]
    seen = {first: end(other, first, job) for first, job in zip(OUTCOMES, jobs)}
    began = time.monotonic()
    assert end(client, "complete", open_job) == [pb.DONE]  # the slot was kept for it

    def all_gone():
        for first, job in zip(OUTCOMES, jobs):
            seen[first] += end(other, first, job)
        return all(statuses[-1] == pb.STATUS_NOT_FOUND for statuses in seen.values())

    wait_for(all_gone)
    assert time.monotonic() - began > RETENTION_MS / 1000
    for first, statuses in seen.items():
        assert statuses[0] == pb.ALREADY_DONE and statuses == sorted(statuses), f"{first}: {statuses}"
        assert set(statuses) <= {pb.ALREADY_DONE, pb.STATUS_NOT_FOUND}, f"{first}: {statuses}"
    for second in OUTCOMES:
        for proxy_client in client, other:
            assert set(end(proxy_client, second, *jobs)) == {pb.STATUS_NOT_FOUND}, second


def test_two_outcomes_at_once_over_two_proxies(start):
    """Of two different outcomes that meet, one is DONE and the other STALE, for every single job."""
    here, there = start(), start()
    client, jobs = hold(here, 300)
    other = Client(there.socket)
    answers = {}
    meet = threading.Barrier(2)

    def send(name, sender, outcome, step):
        answers[name] = []
        for at in range(0, len(jobs), step):
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(20)
            answers[name] += end(sender, outcome, *jobs[at:at + step])

    threads = [threading.Thread(target=send, args=args)
               for args in (("here", client, "complete", 10), ("there", other, "cancel", 10))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    pairs = set(zip(answers["here"], answers["there"], strict=True))
    assert len(answers["here"]) == len(jobs)
    assert pairs <= {(pb.DONE, pb.STALE), (pb.STALE, pb.DONE)}
    counts = client.counts("q")
    assert (counts.completed, counts.cancelled) == (answers["here"].count(pb.DONE), answers["there"].count(pb.DONE))
    assert counts.completed + counts.cancelled == len(jobs)
