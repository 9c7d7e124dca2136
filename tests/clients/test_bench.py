"""The load generator notices when a proxy lies. It talks to one played by the test."""
import importlib
import json
import subprocess
import threading

import pytest

import awa_pb2 as pb

JOBS = 3


def claimed(new_job, job_id):
    return pb.Job(job_id=job_id, receipt=str(job_id).encode(), queue=new_job.queue,
                  kind=new_job.kind, args=new_job.args, priority=2, attempt=1, max_attempts=25)


def serve(fake, ids, change_claim, status):
    """One producer, one worker: all jobs in one Enqueue, as many Claims as it takes."""
    producer = fake.accept()
    producer.greet()
    worker = fake.accept()
    worker.greet()
    enqueue = producer.expect("enqueue")
    producer.answer(enqueue, enqueue_ok=pb.EnqueueOk(
        results=[pb.EnqueueResult(job_id=job_id) for job_id in ids]))
    to_give = [claimed(*pair) for pair in zip(enqueue.enqueue.jobs, ids)]
    change_claim(to_give)
    try:
        while True:
            frame = worker.receive()
            if frame.WhichOneof("request") == "claim" and to_give:
                count = frame.claim.max_jobs
                worker.answer(frame, claim_ok=pb.ClaimOk(jobs=to_give[:count]))
                del to_give[:count]
            elif frame.WhichOneof("request") == "finish":
                worker.settle(frame, status)
    except (EOFError, ConnectionError):
        pass


def run(build, fake, ids=(11, 12, 13), change_claim=lambda jobs: None, status=pb.DONE, deadline_s=30):
    thread = threading.Thread(target=serve, args=(fake, ids, change_claim, status), daemon=True)
    thread.start()
    return subprocess.run(
        [build / "bench/awa-bench", "both", "--socket", fake.address.removeprefix("unix:"),
         "--jobs", str(JOBS), "--batch", str(JOBS), "--workers", "1", "--inflight", "2",
         "--deadline-s", str(deadline_s)], stdin=subprocess.DEVNULL, text=True, capture_output=True,
        check=False)


def test_an_honest_proxy_passes(build, fake):
    done = run(build, fake)
    assert done.returncode == 0, done.stderr
    ready, result = done.stdout.splitlines()
    assert ready == "ready"
    figures = json.loads(result)
    assert (figures["jobs"], figures["violations"]) == (JOBS, 0)


def again(jobs):
    jobs[2] = jobs[0]


def other_id(jobs):
    jobs[0].job_id = 99


def other_args(jobs):
    jobs[0].args = jobs[0].args.replace(b"welcome", b"goodbye")


def lost(jobs):
    del jobs[2]


@pytest.mark.parametrize("options,complaint", [
    ({"change_claim": again}, "executed again"),
    ({"change_claim": other_id}, "enqueued as 11 and claimed as 99"),
    ({"change_claim": other_args}, "other args"),
    ({"change_claim": lost, "deadline_s": 5}, "not over after 5 s: 3 of 3 acknowledged, 2 executed, 2 finished"),
    ({"status": pb.ALREADY_DONE}, "was not answered DONE"),
    ({"ids": (11, 11, 13)}, "id 11 was given twice"),
], ids=["again", "other-id", "other-args", "lost", "not-done", "same-id"])
def test_a_lie_is_exit_code_1(build, fake, options, complaint):
    done = run(build, fake, **options)
    assert done.returncode == 1
    assert complaint in done.stderr


STAT = "{reads} 0 9 9 {writes} 0 9 9 {under_way} 9 9 0 0 0 0 0 0\n"


@pytest.mark.parametrize("before, now, expected", [
    ({"under_way": 1}, {"under_way": 2}, 0.5),
    ({"under_way": 1}, {"under_way": 0}, 0),
    ({"under_way": 0}, {"under_way": 1}, 0),
    ({"under_way": 1}, {"under_way": 1, "writes": 6}, 0),
    ({"under_way": 1}, {"under_way": 1, "reads": 8}, 0),
], ids=["stands-still", "ended", "began", "a-write-ended", "a-read-ended"])
def test_a_disk_stands_still_when_it_has_requests_and_ends_none(build, monkeypatch, tmp_path, before, now, expected):
    monkeypatch.syspath_prepend(str(build.parents[1] / "bench"))
    observe = importlib.import_module("observe")
    watch = observe.DiskWatch(tmp_path)
    watch.file = tmp_path / "stat"
    looks = []
    for at_s, look in ((1.0, before), (1.5, now)):
        watch.file.write_text(STAT.format(**({"reads": 7, "writes": 5} | look)))
        looks.append((at_s, *watch.look()[1:]))
    assert watch.standstill_s(*looks) == expected


def test_a_file_system_without_a_device_has_no_standstill_to_tell(build, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(build.parents[1] / "bench"))
    watch = importlib.import_module("observe").DiskWatch(tmp_path)
    watch.file = tmp_path / "missing"
    watch.start()
    assert watch.stop() is None


@pytest.fixture
def ledger(build, monkeypatch):
    """The ledger of `bench restart`, with two jobs that are acknowledged as 11 and 12."""
    monkeypatch.syspath_prepend(str(build.parents[1] / "bench"))
    restart = importlib.import_module("restart")
    monkeypatch.setattr(restart, "pb", pb)
    made = restart.Ledger(2)
    made.acknowledge(0, [pb.EnqueueResult(job_id=11), pb.EnqueueResult(job_id=12)])
    return made


def work(ledger, seq, job_id, args=None, status=pb.DONE, resent=False):
    text = b'{"seq":"%010d","to":"somebody@example.org","template":"welcome","try":true}'
    ledger.execute(pb.Job(job_id=job_id, args=(args or text) % seq, attempt=1), 1.0)
    ledger.finish(seq, status, resent)


def test_the_ledger_of_restarts_is_content_when_all_is_well(ledger):
    work(ledger, 0, 11)
    work(ledger, 1, 12, status=pb.ALREADY_DONE, resent=True)
    ledger.acknowledge(0, [pb.EnqueueResult(job_id=11)])  # its first answer was lost
    assert ledger.audit() == 0


@pytest.mark.parametrize("lie, complaint", [
    (lambda it: (work(it, 0, 11), work(it, 0, 11)), "job 0 (id 11) executed again"),
    (lambda it: (work(it, 0, 11), it.finish(0, pb.DONE, False)), "job 0 was done twice"),
    (lambda it: work(it, 0, 11, status=pb.STALE), "the finish of job 0 was answered STALE"),
    (lambda it: work(it, 0, 11, status=pb.ALREADY_DONE), "the finish of job 0 was answered ALREADY_DONE"),
    (lambda it: work(it, 0, 13), "job 0: id 11, claimed as 13, done"),
    (lambda it: work(it, 0, 11, args=b'{"seq":"%010d"}'), "job 11 has other args than were enqueued"),
    (lambda it: it.acknowledge(0, [pb.EnqueueResult(job_id=14)]), "job 0 was enqueued twice, as 11 and 14"),
    (lambda it: it.acknowledge(0, [pb.EnqueueResult(job_id=12)]), "an id was given twice"),
    (lambda it: None, "job 1: id 12, claimed as 0, not done"),
], ids=["executed-twice", "done-twice", "stale", "already-done", "other-id", "other-args", "enqueued-twice", "same-id", "never-done"])
def test_the_ledger_of_restarts_notices(ledger, capsys, lie, complaint):
    lie(ledger)
    assert ledger.audit() > 0
    assert complaint in capsys.readouterr().err
