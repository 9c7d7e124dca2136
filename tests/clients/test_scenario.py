"""The scenario script: what every client must be able to do with a real proxy."""
import itertools
import threading
import time

import pytest

import drivers

numbers = itertools.count(1)
WAIT_MS = 20_000
HOUR_MS = 3_600_000


@pytest.fixture(params=["unix", "tcp"])
def proxy(request, addresses):
    return next(address for address in addresses if address.startswith(request.param))


@pytest.fixture
def queue(driver):
    """A queue of this test's own."""
    return f"scenario-{driver.name}-{next(numbers)}"


@pytest.fixture
def connected(driver, proxy):
    driver.connect(proxy, "scenario")
    return driver


def store(driver, queue, count=1, **fields):
    results = driver.enqueue(*[{"queue": queue, "kind": "complete", **fields}] * count)
    assert all(code == "OK" and job_id > 0 for job_id, code, _ in results)
    return [job_id for job_id, _, _ in results]


def claim_one(driver, queue):
    jobs = driver.claim(queue, max_jobs=1, wait_ms=WAIT_MS)
    assert len(jobs) == 1
    return jobs[0]


def claim_all(driver, queue, count):
    """Claims until `count` jobs have come; a claim may bring fewer than there are."""
    jobs = []
    while len(jobs) < count:
        part = driver.claim(queue, max_jobs=count - len(jobs), wait_ms=WAIT_MS)
        assert part, f"{len(jobs)} of {count} came"
        jobs += part
    return jobs


def finish(driver, job, outcome, delay_ms=0, error=""):
    [(status, code, message)] = driver.finish((job.receipt, outcome, delay_ms, error))
    assert (code == "OK") == (message == "")
    return status


def counts(driver, queue):
    return {state: number for state, number in driver.counts(queue).items() if number}


def wait_for_counts(driver, queue, expected):
    deadline = time.monotonic() + drivers.DEADLINE_S
    while (seen := counts(driver, queue)) != expected:
        assert time.monotonic() < deadline, seen
        time.sleep(0.02)


def test_enqueue_claim_complete(connected, queue):
    args = '{"z": 1, "a":  [1e3, "Zoë"]}'
    metadata = '{"tenant": "a"}'
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    [(job_id, code, _)] = connected.enqueue(
        {"queue": queue, "kind": "email.send", "args": args, "priority": 3, "max_attempts": 7,
         "ordering_key": "customer 7", "metadata": metadata, "traceparent": trace})
    assert code == "OK"
    job = claim_one(connected, queue)
    assert job == drivers.Claimed(job_id, job.receipt, queue, "email.send", args, 3, 1, 7,
                                  job.created_at_us, metadata, trace)
    assert abs(job.created_at_us / 1e6 - time.time()) < 60
    assert counts(connected, queue) == {"running": 1}
    assert finish(connected, job, "complete") == "DONE"
    assert counts(connected, queue) == {"completed": 1}


def test_defaults(connected, queue):
    store(connected, queue)
    job = claim_one(connected, queue)
    assert (job.args, job.priority, job.max_attempts) == ("{}", 2, 25)
    assert (job.metadata, job.traceparent) == ("", "")


def test_one_bad_job_does_not_fail_its_batch(connected, queue):
    results = connected.enqueue(
        {"queue": queue, "kind": "k"}, {"queue": queue, "kind": "k", "args": "{nonsense"},
        {"queue": "no spaces allowed", "kind": "k"}, {"queue": queue, "kind": ""},
        {"queue": queue, "kind": "k", "priority": 5}, {"queue": queue, "kind": "k"})
    assert [code for _, code, _ in results] == ["OK", *["INVALID_ARGUMENT"] * 4, "OK"]
    assert all(message for _, code, message in results if code != "OK")
    assert counts(connected, queue) == {"available": 2}


def test_finishing_again(connected, queue):
    store(connected, queue)
    job = claim_one(connected, queue)
    assert finish(connected, job, "complete") == "DONE"
    assert finish(connected, job, "complete") == "ALREADY_DONE"
    assert finish(connected, job, "fail", error="too late") == "STALE"
    assert counts(connected, queue) == {"completed": 1}


def test_retry_uses_up_an_attempt(connected, queue):
    store(connected, queue)
    job = claim_one(connected, queue)
    assert finish(connected, job, "retry", 300, "smtp said 421") == "DONE"
    again = claim_one(connected, queue)
    assert (again.id, again.attempt) == (job.id, 2)
    assert finish(connected, again, "complete") == "DONE"
    assert finish(connected, job, "complete") == "STALE"


def test_the_last_attempt_fails(connected, queue):
    store(connected, queue, max_attempts=1)
    assert finish(connected, claim_one(connected, queue), "retry", 100, "again?") == "DONE"
    assert counts(connected, queue) == {"failed": 1}


def test_snooze_uses_up_none(connected, queue):
    store(connected, queue, max_attempts=1)
    job = claim_one(connected, queue)
    assert finish(connected, job, "snooze", 300) == "DONE"
    again = claim_one(connected, queue)
    assert (again.id, again.attempt) == (job.id, 1)


@pytest.mark.parametrize("outcome,state", [("retry", "retryable"), ("snooze", "scheduled")])
def test_what_waits_for_its_next_run_is_counted_as_that(connected, queue, outcome, state):
    store(connected, queue)
    assert finish(connected, claim_one(connected, queue), outcome, HOUR_MS) == "DONE"
    assert counts(connected, queue) == {state: 1}


def test_fail_and_cancel(connected, queue):
    store(connected, queue, 2)
    first, second = claim_all(connected, queue, 2)
    results = connected.finish((first.receipt, "fail", 0, "no such user"),
                               (second.receipt, "cancel", 0, "not wanted"))
    assert [status for status, _, _ in results] == ["DONE", "DONE"]
    assert counts(connected, queue) == {"failed": 1, "cancelled": 1}


def test_release_hands_back_untouched(connected, queue):
    store(connected, queue, max_attempts=1)
    job = claim_one(connected, queue)
    assert [status for status, _, _ in connected.release(job.receipt)] == ["DONE"]
    assert counts(connected, queue) == {"available": 1}
    again = claim_one(connected, queue)
    assert (again.id, again.attempt) == (job.id, 1)
    assert finish(connected, job, "complete") == "STALE"
    assert finish(connected, again, "complete") == "DONE"


def test_one_bad_receipt_does_not_fail_its_batch(connected, queue):
    store(connected, queue)
    job = claim_one(connected, queue)
    results = connected.finish((b"nonsense", "complete", 0, ""), (job.receipt, "complete", 0, ""))
    assert [(status, code) for status, code, _ in results] == [
        ("INVALID", "INVALID_ARGUMENT"), ("DONE", "OK")]


def test_not_before_its_time(connected, queue):
    now_us = int(time.time() * 1e6)
    store(connected, queue, run_at_us=now_us + HOUR_MS * 1000)
    assert counts(connected, queue) == {"scheduled": 1}
    assert connected.claim(queue) == []
    [soon] = store(connected, queue, run_at_us=now_us + 700_000)
    assert claim_one(connected, queue).id == soon
    assert time.time() * 1e6 >= now_us + 700_000


def test_priorities_and_queues_in_order(connected, queue):
    [low] = store(connected, queue, priority=4)
    [high] = store(connected, queue, priority=1)
    [other] = store(connected, f"{queue}/first")
    order = []
    while len(order) < 3:
        jobs = connected.claim(f"{queue}/first", queue, max_jobs=1, wait_ms=WAIT_MS)
        order += [job.id for job in jobs]
    assert order == [other, high, low]


def test_a_claim_waits_and_comes_back_empty(connected, queue):
    start = time.monotonic()
    assert connected.claim(queue, wait_ms=300) == []
    assert time.monotonic() - start >= 0.29


def test_a_waiting_claim_is_woken(connected, queue, proxy, build):
    other = drivers.PythonDriver(build)
    other.connect(proxy)
    timer = threading.Timer(0.3, store, (other, queue))
    timer.start()
    claim_one(connected, queue)
    timer.join()
    other.end()


def test_goodbye_hands_back(connected, queue, proxy):
    store(connected, queue, 3)
    jobs = claim_all(connected, queue, 3)
    assert finish(connected, jobs[0], "complete") == "DONE"
    assert connected.goodbye() == 2
    connected.connect(proxy)
    assert counts(connected, queue) == {"available": 2, "completed": 1}
    assert {job.attempt for job in claim_all(connected, queue, 2)} == {1}


def test_a_lost_session_loses_its_jobs_to_others(connected, queue, proxy):
    store(connected, queue)
    lost = claim_one(connected, queue)
    connected.connect(proxy)        # closes the old connection without a word
    again = claim_one(connected, queue)
    assert again.id == lost.id
    assert finish(connected, lost, "complete") == "STALE"
    assert finish(connected, again, "complete") == "DONE"


def test_requests_that_cannot_be(connected):
    for queues in ([], [f"q{number}" for number in range(17)], ["no spaces allowed"]):
        with pytest.raises(drivers.CallError) as refused:
            connected.claim(*queues)
        assert refused.value.code == "INVALID_ARGUMENT"
        assert not refused.value.retryable
    connected.ping()                # the connection is as good as before


def test_many(connected, queue):
    stored = [job_id for _ in range(20) for job_id in store(connected, queue, 20)]
    claimed = claim_all(connected, queue, 400)
    assert sorted(job.id for job in claimed) == sorted(stored)
    for start in range(0, 400, 40):
        statuses = connected.finish(*((job.receipt, "complete", 0, "")
                                      for job in reversed(claimed[start:start + 40])))
        assert {status for status, _, _ in statuses} == {"DONE"}
    assert counts(connected, queue) == {"completed": 400}


def test_worker_outcomes(connected, queue, proxy, start_worker):
    worker = start_worker(proxy, queue, concurrency=2, prefetch=2)
    for kind in ("complete", "retry", "snooze", "fail", "cancel"):
        store(connected, queue, kind=kind)
    wait_for_counts(connected, queue, {"completed": 3, "failed": 1, "cancelled": 1})
    worker.stop()
    stats = worker.join()
    assert (stats.executed, stats.done, stats.not_accepted) == (7, 7, 0)


def test_an_outcome_that_cannot_be_leaves_no_job_behind(connected, queue, proxy, start_worker):
    """A text that is none is mended, a refused outcome becomes a retry: not a job that runs for as long as the worker lives."""
    worker = start_worker(proxy, queue)
    store(connected, queue, kind="odd")
    store(connected, queue, kind="far")
    wait_for_counts(connected, queue, {"completed": 1, "failed": 1})
    worker.stop()
    assert worker.join().not_accepted == 0


def test_stopped_worker_leaves_nothing_running(connected, queue, proxy, start_worker):
    worker = start_worker(proxy, queue, concurrency=1, prefetch=10)
    store(connected, queue, 8, kind="wait")
    worker.started()
    worker.stop()
    wait_for_counts(connected, queue, {"available": 7, "running": 1})
    worker.let_end()
    assert worker.join().executed == 1
    assert counts(connected, queue) == {"available": 7, "completed": 1}
