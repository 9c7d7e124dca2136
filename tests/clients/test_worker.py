"""Worker loops against a proxy played by the test."""
import datetime
import time

import pytest

import awa
import awa_pb2 as pb
import drivers
import fake_proxy
from awa.worker import run_handler


def receipts(finish):
    return [item.receipt for item in finish.finish.items]


def expect_finish(session, count):
    """Collects Finish frames until `count` items have come; a Claim in between is let wait."""
    items = []
    frames = []
    while len(items) < count:
        frame = session.receive()
        kind = frame.WhichOneof("request")
        assert kind in ("finish", "claim"), frame
        if kind == "finish":
            frames.append(frame)
            items += receipts(frame)
    return frames, items


def receive_after_cancel(session):
    """The next frame that is no CancelRequest, nor the Claim that it names."""
    while (frame := session.receive()).WhichOneof("request") in ("cancel_request", "claim"):
        pass
    return frame


def expect_release(session, *receipts):
    """Collects released receipts until these have come, in whatever order."""
    released = []
    while len(released) < len(receipts):
        frame = receive_after_cancel(session)
        assert frame.WhichOneof("request") == "release", frame
        released += frame.release.receipts
    assert sorted(released) == sorted(receipts)


def part(session):
    """Answers Goodbye, letting pass what was on its way."""
    while (frame := receive_after_cancel(session)).WhichOneof("request") != "goodbye":
        assert frame.WhichOneof("request") == "release", frame
        session.answer(frame, release_ok=pb.FinishOk(
            results=[pb.FinishResult(status=pb.DONE)] * len(frame.release.receipts)))
    session.answer(frame, goodbye_ok=pb.GoodbyeOk())


def begin(fake, start_worker, concurrency=1, prefetch=0, **limits):
    """A worker and its session."""
    worker = start_worker(fake.address, "q", concurrency, prefetch)
    session = fake.accept()
    session.greet(**limits)
    return worker, session


def settle(session, count, status):
    """Answers so many outcomes, and returns their receipts."""
    frames, items = expect_finish(session, count)
    for frame in frames:
        session.settle(frame, status)
    return items


def leave(worker, session):
    """Stops a worker that has nothing left to do; returns its statistics."""
    worker.stop()
    part(session)
    return worker.join()


def test_asks_for_concurrency_and_prefetch(fake, start_worker):
    start_worker(fake.address, "q", concurrency=3, prefetch=4)
    session = fake.accept()
    assert session.greet().worker_name == "conformance"
    claim = session.expect("claim")
    assert (list(claim.claim.queues), claim.claim.max_jobs) == (["q"], 7)
    assert 0 < claim.claim.wait_ms <= 60_000


def test_never_holds_more(fake, start_worker):
    worker, session = begin(fake, start_worker, concurrency=1, prefetch=2)
    claim = session.expect("claim")
    assert claim.claim.max_jobs == 3
    session.give_jobs(claim, 1, 2, kind="wait")
    assert worker.started() == (1, 1)
    claim = session.expect("claim")
    assert claim.claim.max_jobs == 1
    session.give_jobs(claim, 3, kind="wait")
    worker.let_end()
    assert settle(session, 3, pb.DONE) == [b"1", b"2", b"3"]
    stats = leave(worker, session)
    assert (stats.executed, stats.done) == (3, 3)


def test_stop_releases_what_has_not_started_and_waits_for_the_rest(fake, start_worker):
    worker, session = begin(fake, start_worker, concurrency=1, prefetch=2)
    session.give_jobs(session.expect("claim"), 1, 2, 3, kind="wait")
    worker.started()
    worker.stop()
    expect_release(session, b"2", b"3")
    worker.let_end()
    session.settle(session.expect("finish"), pb.DONE)
    session.answer(session.expect("goodbye"), goodbye_ok=pb.GoodbyeOk())
    assert worker.join().executed == 1


def test_stop_while_a_claim_waits(fake, start_worker):
    worker, session = begin(fake, start_worker)
    claim = session.expect("claim")
    worker.stop()
    assert session.expect("cancel_request").cancel_request.request_id == claim.request_id
    goodbye = session.expect("goodbye")
    session.give_jobs(claim, 1)     # was on its way; never starts
    session.answer(goodbye, goodbye_ok=pb.GoodbyeOk(released=1))
    assert worker.join().executed == 0
    assert worker.starts == []


def test_what_a_claim_brings_after_the_stop_is_released(fake, start_worker):
    worker, session = begin(fake, start_worker, concurrency=1, prefetch=2)
    session.give_jobs(session.expect("claim"), 1, kind="wait")
    worker.started()
    claim = session.expect("claim")
    worker.stop()
    cancel = session.expect("cancel_request")
    session.give_jobs(claim, 2, 3)      # while job 1 runs, for who knows how long
    session.answer(cancel, cancel_request_ok=pb.CancelRequestOk())
    expect_release(session, b"2", b"3")
    worker.let_end()
    session.settle(session.expect("finish"), pb.DONE)
    session.answer(session.expect("goodbye"), goodbye_ok=pb.GoodbyeOk())
    assert worker.join().executed == 1
    assert worker.starts == []


def test_stop_while_there_is_no_proxy(fake, start_worker):
    """It has nothing to tell, so nothing is wrong."""
    worker, session = begin(fake, start_worker)
    session.expect("claim")
    fake.close()
    session.close()
    worker.stop()
    assert worker.join().executed == 0


def test_stop_while_an_outcome_can_not_be_told(fake, start_worker):
    worker, session = begin(fake, start_worker)
    session.give_jobs(session.expect("claim"), 1)
    expect_finish(session, 1)
    fake.close()
    session.close()
    worker.stop()
    with pytest.raises(drivers.CallError) as ended:
        worker.join()
    assert ended.value.code == "UNAVAILABLE"


@pytest.mark.parametrize("status,stats", [
    (pb.DONE, (1, 1, 0)), (pb.ALREADY_DONE, (1, 1, 0)), (pb.STALE, (1, 0, 1)),
    (pb.STATUS_NOT_FOUND, (1, 0, 1))])
def test_statuses_are_final(fake, start_worker, status, stats):
    worker, session = begin(fake, start_worker)
    session.give_jobs(session.expect("claim"), 1)
    settle(session, 1, status)
    got = leave(worker, session)
    assert (got.executed, got.done, got.not_accepted) == stats


def test_aborted_and_refused_outcomes_are_sent_again(fake, start_worker):
    worker, session = begin(fake, start_worker)
    session.give_jobs(session.expect("claim"), 1)
    settle(session, 1, pb.STATUS_ABORTED)
    frames, items = expect_finish(session, 1)
    assert items == [b"1"]
    session.answer(frames[0], error=pb.Error(code=pb.UNAVAILABLE, retryable=True, message="m"))
    assert settle(session, 1, pb.DONE) == [b"1"]
    assert leave(worker, session).done == 1


REFUSALS = {"invalid": pb.FinishResult(status=pb.INVALID, error=pb.Error(code=pb.INVALID_ARGUMENT, message="no such day")),
            "damaged": pb.FinishResult(status=pb.STATUS_ABORTED, error=pb.Error(code=pb.INTERNAL, message="no such day"))}


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_outcome_becomes_a_retry_once(fake, start_worker, refusal, accepted):
    worker = start_worker(fake.address, "q")
    session = fake.accept()
    session.greet()
    session.give_jobs(session.expect("claim"), 1)
    frames, _ = expect_finish(session, 1)
    session.answer(frames[0], finish_ok=pb.FinishOk(results=[REFUSALS[refusal]]))
    frames, items = expect_finish(session, 1)
    assert items == [b"1"]
    assert frames[0].finish.items[0].retry == pb.Retry(error="the outcome was refused: no such day")
    result = pb.FinishResult(status=pb.DONE) if accepted else REFUSALS[refusal]
    session.answer(frames[0], finish_ok=pb.FinishOk(results=[result]))
    worker.stop()
    part(session)
    got = worker.join()
    assert (got.executed, got.done, got.not_accepted) == ((1, 1, 0) if accepted else (1, 0, 1))


def test_an_error_is_sent_as_text(fake, start_worker):
    start_worker(fake.address, "q")
    session = fake.accept()
    session.greet()
    session.give_jobs(session.expect("claim"), 1, kind="odd")
    frames, _ = expect_finish(session, 1)       # else it could not be read
    error = frames[0].finish.items[0].fail.error
    assert "\0" not in error
    assert error.endswith("é") and 500 < len(error.encode()) <= 4096


def test_refused_claims_are_repeated(fake, start_worker):
    _, session = begin(fake, start_worker)
    session.answer(session.expect("claim"),
                   error=pb.Error(code=pb.UNAVAILABLE, retryable=True, message="m"))
    session.expect("claim")


def test_a_claim_that_can_never_work_ends_the_worker(fake, start_worker):
    worker, session = begin(fake, start_worker)
    session.answer(session.expect("claim"),
                   error=pb.Error(code=pb.INVALID_ARGUMENT, message="no such queue name"))
    with pytest.raises(drivers.CallError) as ended:
        worker.join()
    assert (ended.value.code, ended.value.message) == ("INVALID_ARGUMENT", "no such queue name")


def test_outcomes_survive_a_lost_connection(fake, start_worker):
    worker, session = begin(fake, start_worker, concurrency=1, prefetch=1)
    session.give_jobs(session.expect("claim"), 1)
    expect_finish(session, 1)
    session.close()                 # the outcome may be stored or not
    session = fake.accept()
    assert list(session.greet(resumed=True).held.receipts) == [b"1"]
    assert settle(session, 1, pb.ALREADY_DONE) == [b"1"]
    stats = leave(worker, session)
    assert (stats.done, stats.reconnects, stats.resumed) == (1, 1, 1)


def hold_two(fake, worker):
    """A session with job 1 running and job 2 ready, on a connection that is gone."""
    session = fake.accept()
    session.greet()
    session.give_jobs(session.expect("claim"), 1, 2, kind="wait")
    worker.started()
    session.close()


def test_resumes_its_session(fake, start_worker):
    worker = start_worker(fake.address, "q", concurrency=1, prefetch=1)
    hold_two(fake, worker)
    session = fake.accept()
    hello = session.greet(resumed=True)
    assert hello.session_id == b"0" * 16
    assert sorted(hello.held.receipts) == [b"1", b"2"]
    worker.let_end()
    assert settle(session, 2, pb.DONE) == [b"1", b"2"]   # both: what had not started runs now
    stats = leave(worker, session)
    assert (stats.executed, stats.done, stats.resumed) == (2, 2, 1)


def test_what_is_lost_meanwhile_never_starts(fake, start_worker):
    worker = start_worker(fake.address, "q", concurrency=1, prefetch=1)
    hold_two(fake, worker)
    session = fake.accept()
    hello = session.expect("hello")
    both = fake_proxy.encode(hello, hello_ok=pb.HelloOk(**fake_proxy.LIMITS | {"resumed": True}))
    both += fake_proxy.encode(pb.ClientFrame(), notice=pb.Notice(kind=pb.ATTEMPT_LOST, receipt=b"2"))
    session.send(both)      # at once, as the proxy does
    assert session.expect("claim").claim.max_jobs == 1
    worker.let_end()
    assert settle(session, 1, pb.DONE) == [b"1"]
    assert leave(worker, session).executed == 1


def test_nothing_starts_without_a_connection(fake, start_worker):
    worker = start_worker(fake.address, "q", concurrency=1, prefetch=1)
    hold_two(fake, worker)
    session = fake.accept()     # the worker waits for HelloOk
    worker.let_end()
    hello = session.expect("hello")
    assert sorted(hello.hello.held.receipts) == [b"1", b"2"]
    session.answer(hello, hello_ok=pb.HelloOk(**fake_proxy.LIMITS))
    expect_release(session, b"2")               # not resumed: it goes back, and never ran
    assert settle(session, 1, pb.STALE) == [b"1"]
    assert leave(worker, session).executed == 1
    assert worker.starts == []


def test_what_had_not_started_is_released_when_the_session_is_gone(fake, start_worker):
    worker = start_worker(fake.address, "q", concurrency=1, prefetch=1)
    hold_two(fake, worker)
    session = fake.accept()
    session.greet()
    assert session.expect("release").release.receipts == [b"2"]
    claim = session.expect("claim")
    assert claim.claim.max_jobs == 1            # job 1 still runs
    worker.let_end()
    assert settle(session, 1, pb.STALE) == [b"1"]
    stats = leave(worker, session)
    assert (stats.executed, stats.not_accepted) == (1, 1)


# A worker says something after a third of the idle timeout and leaves after another: a test has
# that long to answer.
IDLE_MS = 6000


def test_a_silent_connection_is_left_before_the_proxy_gives_the_session_up(fake, start_worker):
    """After a Ping that nobody answers; with answers it stays: test_a_heartbeat_names_nothing_of_a_session_that_is_gone."""
    idle_s = 9
    start_worker(fake.address, "q")
    session = fake.accept()
    began = time.monotonic()
    session.greet(idle_timeout_ms=idle_s * 1000)
    session.expect("claim")
    session.expect("ping")
    resumed = fake.accept()
    assert 0.6 * idle_s < time.monotonic() - began < idle_s     # after two thirds
    resumed.greet()


def heartbeat(session):
    """The next frame, which must be a Heartbeat; and its receipts."""
    frame = session.expect("heartbeat")
    return frame, sorted(item.receipt for item in frame.heartbeat.items)


def heartbeat_answer(frame, **statuses):
    """HEARTBEAT_OK for all but those named, as _1=pb.HEARTBEAT_LOST."""
    return fake_proxy.encode(frame, heartbeat_ok=pb.HeartbeatOk(
        statuses=[statuses.get(f"_{item.receipt.decode()}", pb.HEARTBEAT_OK) for item in frame.heartbeat.items]))


def answer_heartbeat(session, frame, **statuses):
    session.send(heartbeat_answer(frame, **statuses))


def test_a_heartbeat_tells_what_is_lost(fake, start_worker):
    """The sign of life of a worker that holds something names that; and its answer counts like the notice."""
    worker, session = begin(fake, start_worker, concurrency=2, prefetch=2, idle_timeout_ms=IDLE_MS)
    session.give_jobs(session.expect("claim"), 1, 2, 3, 4, kind="lost")
    assert sorted(worker.started()[0] for _ in range(2)) == [1, 2]
    frame, named = heartbeat(session)
    assert named == [b"1", b"2", b"3", b"4"]
    answer_heartbeat(session, frame, _3=pb.HEARTBEAT_LOST, _4=pb.HEARTBEAT_CANCELLED)   # have not started: never will
    assert session.expect("claim").claim.max_jobs == 2
    frame, named = heartbeat(session)
    assert named == [b"1", b"2"]
    answer_heartbeat(session, frame, _1=pb.HEARTBEAT_LOST, _2=pb.HEARTBEAT_CANCELLED)
    assert sorted(settle(session, 2, pb.STALE)) == [b"1", b"2"]
    stats = leave(worker, session)
    assert (stats.executed, stats.not_accepted) == (2, 2)
    assert worker.starts == []


def test_a_heartbeat_in_parts(fake, start_worker):
    worker, session = begin(fake, start_worker, concurrency=1, prefetch=4, idle_timeout_ms=IDLE_MS, max_items_per_finish=2)
    session.give_jobs(session.expect("claim"), 1, 2, 3, 4, 5, kind="wait")
    worker.started()
    parts = [heartbeat(session) for _ in range(3)]
    assert [len(named) for _, named in parts] == [2, 2, 1]
    assert sorted(sum((named for _, named in parts), [])) == [b"1", b"2", b"3", b"4", b"5"]
    session.send(b"".join(                          # in any order, and at once: no job starts in between
        heartbeat_answer(frame, _2=pb.HEARTBEAT_LOST, _5=pb.HEARTBEAT_LOST) for frame, _ in reversed(parts)))
    assert session.expect("claim").claim.max_jobs == 2
    worker.let_end()
    assert sorted(settle(session, 3, pb.DONE)) == [b"1", b"3", b"4"]
    assert leave(worker, session).executed == 3


def test_a_heartbeat_names_nothing_of_a_session_that_is_gone(fake, start_worker):
    """The proxy would call it lost, but its Finish may be DONE: the proxy was started anew."""
    worker = start_worker(fake.address, "q", concurrency=1, prefetch=1)
    hold_two(fake, worker)
    session = fake.accept()
    session.greet(idle_timeout_ms=IDLE_MS)
    session.answer(session.expect("release"), release_ok=pb.FinishOk(results=[pb.FinishResult(status=pb.DONE)]))
    claim = session.expect("claim")
    for _ in range(2):      # job 1 runs; who did not count a Pong would be gone when the second is due
        session.answer(session.expect("ping"), pong=pb.Pong())
    session.give_jobs(claim, 3, kind="wait")
    frame, named = heartbeat(session)
    assert named == [b"3"]
    answer_heartbeat(session, frame)
    worker.let_end()
    assert settle(session, 2, pb.DONE) == [b"1", b"3"]
    assert leave(worker, session).done == 2


def test_a_heartbeat_names_what_a_resumed_session_holds(fake, start_worker):
    worker = start_worker(fake.address, "q", concurrency=1, prefetch=1)
    hold_two(fake, worker)
    session = fake.accept()
    session.greet(idle_timeout_ms=IDLE_MS, resumed=True)
    frame, named = heartbeat(session)
    assert named == [b"1", b"2"]
    answer_heartbeat(session, frame)
    worker.let_end()
    settle(session, 2, pb.DONE)
    assert leave(worker, session).done == 2


def test_a_draining_proxy_is_left_and_another_found(fake, start_worker):
    worker, session = begin(fake, start_worker, concurrency=1, prefetch=2)
    session.give_jobs(session.expect("claim"), 1, 2, kind="wait")
    worker.started()
    claim = session.expect("claim")
    session.notify(pb.DRAINING)
    assert session.expect("cancel_request").cancel_request.request_id == claim.request_id
    expect_release(session, b"2")
    worker.let_end()
    session.settle(session.expect("finish"), pb.DONE)
    session.answer(session.expect("goodbye"), goodbye_ok=pb.GoodbyeOk())
    session = fake.accept()
    assert session.greet().session_id == b""    # there is nothing to resume
    session.expect("claim")
    stats = leave(worker, session)
    assert (stats.executed, stats.done, stats.reconnects) == (1, 1, 1)


def test_a_draining_proxy_that_closes_first(fake, start_worker):
    _, session = begin(fake, start_worker)
    claim = session.expect("claim")
    session.notify(pb.DRAINING)
    session.answer(claim, claim_ok=pb.ClaimOk())
    session.answer(pb.ClientFrame(), error=pb.Error(code=pb.UNAVAILABLE, retryable=True,
                                                    message="shutting down"))
    session.close()
    session = fake.accept()
    session.greet()
    session.expect("claim")


def test_a_lost_attempt_is_told_to_its_handler(fake, start_worker):
    worker, session = begin(fake, start_worker, concurrency=1, prefetch=1)
    session.give_jobs(session.expect("claim"), 1, 2, kind="lost")
    worker.started()
    session.notify(pb.ATTEMPT_LOST, b"2")       # has not started: never will
    session.notify(pb.ATTEMPT_LOST, b"unknown")
    session.notify(99)                          # from a newer proxy
    assert session.expect("claim").claim.max_jobs == 1
    session.notify(pb.ATTEMPT_LOST, b"1")
    assert settle(session, 1, pb.STALE) == [b"1"]
    stats = leave(worker, session)
    assert (stats.executed, stats.not_accepted) == (1, 1)


def test_a_session_taken_over_by_another_ends_the_worker(fake, start_worker):
    """Two with one id would take it from each other for ever."""
    worker, session = begin(fake, start_worker)
    session.answer(pb.ClientFrame(), error=pb.Error(code=pb.FAILED_PRECONDITION, message="taken"))
    with pytest.raises(drivers.CallError) as ended:
        worker.join()
    assert ended.value.code == "FAILED_PRECONDITION"


def test_the_first_connection_must_work(tmp_path, start_worker):
    worker = start_worker(f"unix:{tmp_path}/nobody", "q")
    with pytest.raises(drivers.CallError) as ended:
        worker.join()
    assert ended.value.code == "UNAVAILABLE"


def test_python_logs_what_a_handler_did_not_catch(caplog):
    """With its traceback, which the job does not keep; an Outcome that is raised is no failure."""
    job = awa.Job(id=7, receipt=b"r", queue="q", kind="mail", raw_args=b"{}", priority=2, attempt=1, max_attempts=25,
                  created_at=datetime.datetime.now(datetime.timezone.utc), raw_metadata=b"", traceparent="")

    def broken(_job):
        raise ValueError("no such address")

    def asks_for_a_retry(_job):
        raise awa.Retry("later")

    assert run_handler(broken, job).error == "ValueError: no such address"
    record, = caplog.records
    assert (record.name, record.getMessage()) == ("awa", "job 7 (mail) raised in attempt 1")
    assert record.exc_info[0] is ValueError
    assert run_handler(asks_for_a_retry, job).error == "later"
    assert len(caplog.records) == 1
