"""`awa-proxy serve`, over raw frames: the life of a job, the protocol's refusals, sessions that
leave in every way, and the database going away under load."""
import json
import os
import signal
import socket
import stat
import subprocess
import threading
import time

import pytest

from postgres import connected
from proxy_process import Proxy, is_healthy, wait_for
from wire_client import Client, pb, statuses, varint

DRAIN_OPTION = ("--drain-timeout-ms", "50")
GRACE_OPTION = ("--session-grace-ms", "100")


@pytest.fixture(scope="module")
def shared_database(cluster, migrated):
    cluster.execute(f"CREATE DATABASE serve_shared OWNER awa_owner TEMPLATE {migrated}")
    yield cluster.url("serve_shared")
    cluster.execute("DROP DATABASE serve_shared WITH (FORCE)")


@pytest.fixture(scope="module")
def proxy(awa_proxy, shared_database, tmp_path_factory):
    """One proxy for all tests that leave it alone; in the end it must stop cleanly."""
    running = Proxy(awa_proxy, tmp_path_factory.mktemp("proxy"), shared_database, *DRAIN_OPTION,
                    *GRACE_OPTION)
    try:
        yield running.wait_ready()
        assert running.stop() == 0, running.log()
        assert "event=stopped clean=yes" in running.log() and is_healthy(running), running.log()
    finally:
        running.end()


@pytest.fixture
def client(proxy):
    made = Client(proxy.socket)
    yield made
    made.close()


@pytest.fixture
def queue(database_numbers):
    """A queue of the test's own."""
    return f"q{next(database_numbers)}"


# ---- the life of a job

def test_enqueue_claim_complete(client, queue):
    metadata = b'{"k": "v"}'
    first, second = client.enqueue(queue, b'{"n": 1.0}', b'{"n":  2}', metadata=metadata, traceparent="00-ab")
    assert 0 < first.job_id < second.job_id
    jobs = client.claim(queue, jobs=10, wait_ms=5000)
    assert [(j.job_id, j.args, j.metadata, j.traceparent) for j in jobs] == [
        (first.job_id, b'{"n": 1.0}', metadata, "00-ab"), (second.job_id, b'{"n":  2}', metadata, "00-ab")]
    assert [(j.queue, j.kind, j.priority, j.attempt, j.max_attempts) for j in jobs] == [(queue, "test", 2, 1, 25)] * 2
    assert client.counts(queue).running == 2
    assert statuses(client.complete(*jobs)) == ["DONE", "DONE"]
    assert statuses(client.complete(*jobs)) == ["ALREADY_DONE", "ALREADY_DONE"]
    counts = client.counts(queue)
    assert (counts.completed, counts.running, counts.available) == (2, 0, 0)


def test_every_outcome(client, queue):
    client.enqueue(queue, *[b"{}"] * 6)
    jobs = client.claim(queue, jobs=6, wait_ms=5000)
    assert len(jobs) == 6
    items = [pb.FinishItem(receipt=jobs[0].receipt, complete=pb.Complete()),
             pb.FinishItem(receipt=jobs[1].receipt, retry=pb.Retry(delay_ms=3600000, error="later")),
             pb.FinishItem(receipt=jobs[2].receipt, snooze=pb.Snooze(delay_ms=3600000)),
             pb.FinishItem(receipt=jobs[3].receipt, fail=pb.Fail(error="no")),
             pb.FinishItem(receipt=jobs[4].receipt, cancel=pb.Cancel(error="stop"))]
    assert statuses(client.finish(*items)) == ["DONE"] * 5
    released = client.call(release=pb.Release(receipts=[jobs[5].receipt])).release_ok.results
    assert statuses(released) == ["DONE"]
    counts = client.counts(queue)
    assert (counts.completed, counts.retryable, counts.scheduled, counts.failed, counts.cancelled,
            counts.available) == (1, 1, 1, 1, 1, 1)
    again, = client.claim(queue, wait_ms=5000)
    assert (again.job_id, again.attempt) == (jobs[5].job_id, 1)


def test_one_bad_job_fails_alone(client, queue):
    results = client.call(enqueue=pb.Enqueue(jobs=[
        pb.NewJob(queue=queue, kind="k"), pb.NewJob(queue="no spaces", kind="k"),
        pb.NewJob(queue=queue, kind="k", args=b"{"), pb.NewJob(queue=queue, kind="k", args=b"[1]")])).enqueue_ok.results
    assert [bool(r.job_id) for r in results] == [True, False, False, True]
    assert [r.error.code for r in results] == [0, pb.INVALID_ARGUMENT, pb.INVALID_ARGUMENT, 0]
    assert [j.args for j in client.claim(queue, jobs=9, wait_ms=5000)] == [b"{}", b"[1]"]


def test_one_bad_receipt_fails_alone(client, queue):
    client.enqueue(queue, b"{}", b"{}")
    one, two = client.claim(queue, jobs=2, wait_ms=5000)
    forged = bytearray(one.receipt)
    forged[12] ^= 1  # in the nonce
    results = client.finish(*[pb.FinishItem(receipt=r, complete=pb.Complete())
                              for r in (one.receipt, b"junk", bytes(forged), two.receipt, two.receipt)])
    assert statuses(results)[0:2] == ["DONE", "INVALID"]
    assert statuses(results)[2] in ("STALE", "STATUS_NOT_FOUND")
    assert sorted(statuses(results)[3:]) == ["ALREADY_DONE", "DONE"]


def test_snooze_without_delay_is_invalid(client, queue):
    client.enqueue(queue, b"{}")
    job, = client.claim(queue, wait_ms=5000)
    result, = client.finish(pb.FinishItem(receipt=job.receipt, snooze=pb.Snooze()))
    assert (statuses([result]), result.error.code) == (["INVALID"], pb.INVALID_ARGUMENT)
    assert statuses(client.complete(job)) == ["DONE"]


def test_large_args_are_kept_byte_for_byte(client, queue):
    args = json.dumps({"x": "y" * (client.limits.max_args_bytes - 20)}).encode()
    assert client.enqueue(queue, *[args] * 3)[2].job_id > 0
    got = []
    while len(got) < 3:  # cut by bytes: more than one answer is allowed, too large a one is not
        jobs = client.claim(queue, jobs=8, wait_ms=5000)
        got += [job.args == args for job in jobs]
    assert got == [True] * 3


# ---- claims

def test_waiting_claim_is_woken_by_an_enqueue(proxy, client, queue):
    waiting = client.send(claim=pb.Claim(queues=[queue], max_jobs=1, wait_ms=30000))
    other = Client(proxy.socket)
    assert client.counts(queue).available == 0
    started = time.monotonic()
    other.enqueue(queue, b"{}")
    assert len(client.answer(waiting).claim_ok.jobs) == 1
    assert time.monotonic() - started < 15  # half of wait_ms


def test_claim_ends_empty_after_its_wait(client, queue):
    started = time.monotonic()
    assert len(client.claim(queue, wait_ms=300)) == 0
    assert 0.25 < time.monotonic() - started < 15
    assert len(client.claim(queue, wait_ms=0)) == 0


def test_queues_are_in_order_of_preference(client):
    client.enqueue("low", b"{}")
    client.enqueue("high", b"{}", b"{}")
    jobs = client.claim("high", "low", jobs=2, wait_ms=5000)
    assert [job.queue for job in jobs] == ["high", "high"]


def test_jobs_are_dealt_among_sessions(proxy, client, queue):
    others = [client, Client(proxy.socket), Client(proxy.socket)]
    waiting = [(c, c.send(claim=pb.Claim(queues=[queue], max_jobs=100, wait_ms=30000))) for c in others]
    for each in others:
        assert each.call(ping=pb.Ping()).HasField("pong")  # its claim has come in
    Client(proxy.socket).enqueue(queue, *[b"{}"] * 30)
    dealt = [len(c.answer(r).claim_ok.jobs) for c, r in waiting]
    assert sum(dealt) == 30 and min(dealt) >= 9, dealt


def test_delayed_job_comes_when_it_is_due(client, queue):
    now_us = int(time.time() * 1e6)
    client.enqueue(queue, b"{}", run_at_us=now_us + 3600_000_000)
    assert client.counts(queue).scheduled == 1
    assert len(client.claim(queue, wait_ms=0)) == 0
    soon, = client.enqueue(queue, b"{}", run_at_us=now_us + 600_000)
    assert [job.job_id for job in client.claim(queue, wait_ms=15000)] == [soon.job_id]
    assert time.time() * 1e6 >= now_us + 600_000


# ---- what the protocol refuses

def only_error(frames):
    assert [frame.request_id for frame in frames] == [0]
    return frames[0].error


def test_first_frame_must_be_hello(proxy):
    client = Client(proxy.socket, hello=False)
    client.send(ping=pb.Ping())
    error = only_error(client.rest())
    assert error.code == pb.FAILED_PRECONDITION and "Hello" in error.message


def test_unknown_major_is_unimplemented(proxy):
    client = Client(proxy.socket, hello=False)
    client.send(hello=pb.Hello(major=2))
    error, = [frame.error for frame in client.rest()]
    assert error.code == pb.UNIMPLEMENTED


@pytest.mark.parametrize("garbage, words", [
    (b"\x80\x80\x80\x80\x80\x80", "length"),
    (varint(5 * 1024 * 1024), "limit"),
    (varint(4) + b"\xff\xff\xff\xff", ""),
    (varint(0), ""),
])
@pytest.mark.parametrize("hello", [False, ()], ids=["before_hello", "after_hello"])
def test_garbage_is_answered_once_and_closed(proxy, garbage, words, hello, queue):
    client = Client(proxy.socket, hello=hello)
    client.send_raw(garbage)
    error = only_error(client.rest())
    assert (error.code, error.retryable) == (pb.INVALID_ARGUMENT, False) and words in error.message
    assert len(Client(proxy.socket).enqueue(queue, b"{}")) == 1  # nobody else noticed


def test_unknown_request_is_unimplemented_and_goes_on(client):
    body = b"\x08\x07" + bytes([0xA2, 0x06, 0x00])  # request_id 7, field 100
    client.send_raw(varint(len(body)) + body)
    assert client.answer(7).error.code == pb.UNIMPLEMENTED
    assert client.call(ping=pb.Ping()).HasField("pong")


def test_request_id_in_use(client, queue):
    waiting = client.send(claim=pb.Claim(queues=[queue], max_jobs=1, wait_ms=60000))
    client.send(request_id=waiting, queue_counts=pb.QueueCounts(queue=queue))
    assert client.answer(waiting).error.code == pb.INVALID_ARGUMENT
    client.enqueue(queue, b"{}")
    assert len(client.answer(waiting).claim_ok.jobs) == 1


@pytest.mark.parametrize("body, words", [
    (b"\x08\x07\x1a\x00\x1a\x00", "two requests"),
    (b"\x08\x00\x1a\x00", "request_id"),
    (b"\x08\x87" + b"\x80" * 9 + b"\x00\x1a\x00", "malformed"),  # a varint of 11 bytes
    (b"\x08\x07\x1a\x00" + b"\xa0\x06\x01" * 32000, "too many"),
])
def test_stricter_than_protobuf(proxy, body, words):
    client = Client(proxy.socket)
    client.send_raw(varint(len(body)) + body)
    error = only_error(client.rest())
    assert error.code == pb.INVALID_ARGUMENT and words in error.message


def test_second_hello_and_bad_claim(client, queue):
    assert client.call(hello=pb.Hello(major=1)).error.code == pb.FAILED_PRECONDITION
    assert client.call(claim=pb.Claim(queues=[], max_jobs=1)).error.code == pb.INVALID_ARGUMENT
    assert client.call(claim=pb.Claim(queues=[queue], max_jobs=0)).error.code == pb.INVALID_ARGUMENT


def test_frames_in_single_bytes_and_many_at_once(client, queue):
    body = pb.ClientFrame(request_id=91, ping=pb.Ping()).SerializeToString()
    for byte in varint(len(body)) + body:
        client.send_raw(bytes([byte]))
    assert client.answer(91).HasField("pong")
    frames = b""
    for request_id in range(100, 1100):
        body = pb.ClientFrame(request_id=request_id, queue_counts=pb.QueueCounts(queue=queue)).SerializeToString()
        frames += varint(len(body)) + body
    client.send_raw(frames)
    for request_id in range(100, 1100):
        assert client.answer(request_id).HasField("queue_counts_ok")


def test_more_enqueues_than_credit_are_all_answered(client, queue):
    count = client.limits.credit_requests * 3

    def send():
        for _ in range(count):
            client.send(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue=queue, kind="k")]))

    first = client.next_id
    sender = threading.Thread(target=send)
    sender.start()
    ids = {client.answer(first + i).enqueue_ok.results[0].job_id for i in range(count)}
    sender.join()
    assert len(ids) == count


def test_truncated_frame_then_gone(proxy, client):
    other = Client(proxy.socket)
    other.send_raw(varint(1000) + b"\x08")
    other.close()
    assert client.call(ping=pb.Ping()).HasField("pong")


# ---- sessions that leave

def test_goodbye_releases_and_closes(proxy, client, queue):
    other = Client(proxy.socket)
    other.enqueue(queue, b"{}", b"{}")
    assert len(other.claim(queue, jobs=2, wait_ms=5000)) == 2
    waiting = other.send(claim=pb.Claim(queues=["empty"], max_jobs=1, wait_ms=60000))
    assert other.call(goodbye=pb.Goodbye()).goodbye_ok.released == 2
    assert len(other.answer(waiting).claim_ok.jobs) == 0
    assert other.rest() == []
    assert [job.attempt for job in client.claim(queue, jobs=2, wait_ms=5000)] == [1, 1]


def test_vanishing_ends_the_attempts(proxy, client, queue):
    """As lost with their worker; how they are kept for one that comes back: test_sessions.py."""
    other = Client(proxy.socket)
    other.enqueue(queue, *[b"{}"] * 100)
    held = other.claim(queue, jobs=100, wait_ms=5000)
    assert len(held) == 100
    other.close()
    got = []
    while len(got) < 100:
        got += client.claim(queue, jobs=100, wait_ms=20000)
    assert {job.attempt for job in got} == {2} and {job.job_id for job in got} == {job.job_id for job in held}


def test_vanishing_while_claiming_loses_nothing(proxy, client, queue):
    client.enqueue(queue, *[b"{}"] * 200)
    for _ in range(40):
        other = Client(proxy.socket)
        other.send(claim=pb.Claim(queues=[queue], max_jobs=5, wait_ms=1000))
        other.close()
    got = set()
    while len(got) < 200:
        jobs = client.claim(queue, jobs=200, wait_ms=20000)
        assert jobs, f"only {len(got)} came back"
        got |= {job.job_id for job in jobs}
        assert statuses(client.complete(*jobs)) == ["DONE"] * len(jobs)


def test_socket_mode_and_second_proxy(awa_proxy, proxy, shared_database):
    assert stat.S_IMODE(os.stat(proxy.socket).st_mode) == 0o660
    second = subprocess.run([awa_proxy, "serve", "--listen", f"unix:{proxy.socket}", "--database", shared_database],
                            capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1 and "another process listens" in second.stderr
    Client(proxy.socket)


# ---- the process

def test_sigterm_lets_workers_finish(start):
    proxy = start("--drain-timeout-ms", "60000")
    client = Client(proxy.socket)
    client.enqueue("q", b"{}")
    job, = client.claim("q", wait_ms=5000)
    waiting = client.send(claim=pb.Claim(queues=["q"], max_jobs=1, wait_ms=60000))
    proxy.process.send_signal(signal.SIGTERM)
    assert len(client.answer(waiting).claim_ok.jobs) == 0
    refused = client.call(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k")]))
    assert (refused.error.code, refused.error.retryable) == (pb.UNAVAILABLE, True)
    assert statuses(client.complete(job)) == ["DONE"]
    assert only_error(client.rest()).code == pb.UNAVAILABLE
    assert proxy.process.wait(30) == 0
    assert not proxy.socket.exists()


def test_sigterm_hands_back_at_the_end(start, own_database):
    proxy = start("--drain-timeout-ms", "300")
    client = Client(proxy.socket)
    client.enqueue("q", b"{}")
    client.claim("q", wait_ms=5000)
    proxy.process.send_signal(signal.SIGTERM)
    assert proxy.process.wait(30) == 0
    with connected(own_database) as cursor:
        cursor.execute("SELECT available, running FROM awa.queue_counts_exact('q')")
        assert cursor.fetchone() == (1, 0)


def listens(path):
    with socket.socket(socket.AF_UNIX) as tried:
        return tried.connect_ex(str(path)) == 0


def test_sigterm_while_the_database_says_nothing(awa_proxy, tmp_path):
    """What is under way can not end: the process ends with it, and that is no failure."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / ".s.PGSQL.5432"))
        silent.listen(20)
        proxy = Proxy(awa_proxy, tmp_path, f"postgresql://awa@/awa?host={tmp_path}", *DRAIN_OPTION)
        try:
            wait_for(lambda: listens(proxy.socket))
            client = Client(proxy.socket)
            client.send(claim=pb.Claim(queues=["q"], max_jobs=5, wait_ms=60000))
            client.send(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k", args=b"{}")]))
            client.send(enqueue=pb.Enqueue(idempotency_key="k", jobs=[pb.NewJob(queue="q", kind="k", args=b"{}")]))
            client.call(ping=pb.Ping())
            assert proxy.stop() == 0, proxy.log()
            assert "event=stopped clean=no" in proxy.log() and is_healthy(proxy), proxy.log()
            client.close()
        finally:
            proxy.end()


def test_stale_socket_file_is_replaced(start):
    proxy = start()
    proxy.process.kill()
    proxy.process.wait()
    assert proxy.socket.exists()
    again = start(*DRAIN_OPTION)
    Client(again.socket).call(ping=pb.Ping())
    assert again.stop() == 0


def name_of(url):
    return url.split("/")[3].split("?")[0]


def terminate_backends(url, database):
    with connected(url) as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                       " WHERE application_name = 'awa-proxy' AND datname = %s", (name_of(database),))


def work(client, stop, done, lost):
    """Enqueues, claims and completes until told to stop; done gets the ids whose completion was acknowledged."""
    while not stop.is_set():
        answer = client.call(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k")] * 10))
        lost += [r.error.code for r in answer.enqueue_ok.results if not r.job_id]
        answer = client.call(claim=pb.Claim(queues=["q"], max_jobs=20, wait_ms=100))
        if answer.HasField("error"):
            assert answer.error.code == pb.UNAVAILABLE, answer.error
            continue
        jobs = answer.claim_ok.jobs
        if not jobs:
            continue
        results = client.complete(*jobs)
        assert len(results) == len(jobs)
        for job, status in zip(jobs, statuses(results)):
            assert status in ("DONE", "ALREADY_DONE"), status
            done.append(job.job_id)


def test_backends_terminated_under_load(start, own_database):
    proxy = start(*DRAIN_OPTION)
    stop = threading.Event()
    done, lost, threads = [], [], []
    for _ in range(3):
        threads.append(threading.Thread(target=work, args=(Client(proxy.socket), stop, done, lost), daemon=True))
        threads[-1].start()
    for _ in range(10):
        before = len(done)
        wait_for(lambda: len(done) > before + 30)
        terminate_backends(own_database, own_database)
    stop.set()
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive()
    assert len(set(done)) == len(done), "a job was completed twice"
    assert set(lost) <= {pb.DEADLINE_EXCEEDED, pb.UNAVAILABLE}
    assert proxy.log().count("pg_lost") >= 10
    with connected(own_database) as cursor:
        cursor.execute("SELECT completed FROM awa.queue_counts_exact('q')")
        assert cursor.fetchone()[0] == len(done)
    assert proxy.stop() == 0, proxy.log()


def alter(cluster, database, what):
    cluster.execute(f"ALTER DATABASE {name_of(database)} {what}")


def test_enqueue_is_answered_when_the_database_is_gone_for_long(start, cluster, own_database):
    proxy = start(*DRAIN_OPTION)
    client = Client(proxy.socket)
    client.socket.settimeout(60)
    client.enqueue("q", b"{}")
    alter(cluster, own_database, "ALLOW_CONNECTIONS false")
    try:
        terminate_backends(cluster.superuser_url(), own_database)
        wait_for(lambda: proxy.log().count("pg_connect_failed") == 2)
        started = time.monotonic()
        answer = client.call(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k")]))
        assert answer.enqueue_ok.results[0].error.code == pb.UNAVAILABLE
        assert time.monotonic() - started < 45
    finally:
        alter(cluster, own_database, "ALLOW_CONNECTIONS true")
    wait_for(lambda: client.enqueue("q", b"{}")[0].job_id)
    client.close()
    assert proxy.stop() == 0


def test_failed_hand_back_is_repeated(start, own_database):
    proxy = start(*DRAIN_OPTION, *GRACE_OPTION)
    client = Client(proxy.socket)
    client.enqueue("q", *[b"{}"] * 3)
    assert len(client.claim("q", jobs=3, wait_ms=5000)) == 3
    with connected(own_database) as cursor:
        cursor.execute("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA awa FROM PUBLIC, awa_owner")
        client.close()
        wait_for(lambda: "to_repeat=3" in proxy.log())
        cursor.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA awa TO PUBLIC")
        other = Client(proxy.socket)
        got = []
        wait_for(lambda: got.extend(other.claim("q", jobs=3, wait_ms=5000)) or len(got) == 3)
        assert {job.attempt for job in got} == {2}
        other.close()
    assert proxy.stop() == 0


def log_ins(cluster, database):
    with connected(cluster.superuser_url()) as cursor:
        cursor.execute("SELECT sessions FROM pg_stat_database WHERE datname = %s", (name_of(database),))
        return cursor.fetchone()[0]


def test_read_only_database_is_not_hammered(start, cluster, own_database):
    proxy = start(*DRAIN_OPTION)
    client = Client(proxy.socket)
    alter(cluster, own_database, "SET default_transaction_read_only = on")
    terminate_backends(cluster.superuser_url(), own_database)
    waiting = client.send(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k")]))
    wait_for(lambda: "session is read-only" in proxy.log())
    connected_before = log_ins(cluster, own_database)
    time.sleep(2)
    assert log_ins(cluster, own_database) < connected_before + 30
    alter(cluster, own_database, "RESET default_transaction_read_only")
    assert client.answer(waiting).enqueue_ok.results[0].job_id > 0
    client.close()
    assert proxy.stop() == 0


def wrapped(awa_proxy, folder, line):
    """A program that runs awa-proxy by this line of shell."""
    script = folder / "wrapped"
    script.write_text(f'#!/bin/bash\n{line.format(awa_proxy)}\n')
    script.chmod(0o755)
    return script


def test_clients_leave_descriptors_for_the_database(awa_proxy, cluster, own_database, tmp_path):
    program = wrapped(awa_proxy, tmp_path, 'ulimit -n 64; exec {} "$@"')
    proxy = Proxy(program, tmp_path, own_database, *DRAIN_OPTION)
    try:
        client = Client(proxy.wait_ready().socket)
        alter(cluster, own_database, "ALLOW_CONNECTIONS false")
        terminate_backends(cluster.superuser_url(), own_database)
        wait_for(lambda: proxy.log().count("pg_connect_failed") == 2)
        others = []
        for _ in range(100):
            others.append(socket.socket(socket.AF_UNIX))
            others[-1].connect(str(proxy.socket))
        wait_for(lambda: "connections_refused" in proxy.log())
        alter(cluster, own_database, "ALLOW_CONNECTIONS true")
        assert client.enqueue("q", b"{}")[0].job_id > 0
        assert "accept_paused" not in proxy.log()
        for other in [*others, client]:
            other.close()
        assert proxy.stop() == 0
    finally:
        proxy.end()


def is_listening(path):
    """The socket's file is there a moment before it takes connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def test_closed_standard_descriptors(awa_proxy, own_database, tmp_path):
    program = wrapped(awa_proxy, tmp_path, 'exec {} "$@" <&- >&- 2>&-')
    proxy = Proxy(program, tmp_path, own_database, *DRAIN_OPTION)
    try:
        wait_for(lambda: is_listening(proxy.socket))
        assert [os.readlink(f"/proc/{proxy.process.pid}/fd/{fd}") for fd in range(3)] == ["/dev/null"] * 3
        client = Client(proxy.socket)
        assert client.enqueue("q", b"{}")[0].job_id > 0
        client.close()
        assert proxy.stop() == 0
    finally:
        proxy.end()


def test_other_encoding_is_refused(awa_proxy, cluster, tmp_path):
    cluster.execute("CREATE DATABASE serve_latin1 OWNER awa_owner TEMPLATE template0 ENCODING 'LATIN1'"
                    " LC_COLLATE 'C' LC_CTYPE 'C'")
    url = cluster.url("serve_latin1")
    migrate = subprocess.run([awa_proxy, "migrate", "--database", url], capture_output=True, text=True,
                             timeout=60, check=False)
    assert migrate.returncode == 1 and "LATIN1: it must be UTF8" in migrate.stderr
    proxy = Proxy(awa_proxy, tmp_path, url, *DRAIN_OPTION)
    try:
        wait_for(lambda: "LATIN1: it must be UTF8" in proxy.log())
        assert proxy.stop() == 0
    finally:
        proxy.end()
        cluster.execute("DROP DATABASE serve_latin1 WITH (FORCE)")


def test_starts_before_its_schema(awa_proxy, database, tmp_path):
    proxy = Proxy(awa_proxy, tmp_path, database, *DRAIN_OPTION)
    try:
        wait_for(lambda: "pg_connect_failed" in proxy.log())
        assert proxy.log().count("pg_connect_failed") <= 2  # once a pool, not once a try
        assert "schema awa does not exist; run awa-proxy migrate" in proxy.log()
        client = Client(proxy.socket)
        client.socket.settimeout(60)
        waiting = client.send(enqueue=pb.Enqueue(jobs=[pb.NewJob(queue="q", kind="k")]))
        began = time.monotonic()
        subprocess.run([awa_proxy, "migrate", "--database", database], check=True, stdout=subprocess.DEVNULL, timeout=120)
        took = time.monotonic() - began
        result, = client.answer(waiting).enqueue_ok.results
        assert result.job_id or took > 10, (took, result)  # it waits 30 s, and the proxy tries again every 5 s: a busy machine may need more
        wait_for(lambda: client.enqueue("q", b"{}")[0].job_id)
        client.close()
        assert proxy.stop() == 0
    finally:
        proxy.end()


def test_misuse_is_told(awa_proxy):
    def run(*options):
        env = {k: v for k, v in os.environ.items() if not k.startswith("AWA_")}
        return subprocess.run([awa_proxy, "serve", *options], capture_output=True, text=True, timeout=30,
                              check=False, env=env)

    assert run().returncode == 2 and "AWA_DATABASE_URL" in run().stderr
    assert "pool-size" in run("--pool-size", "x", "--database", "d").stderr
    homeless = run("--database", "dbname=d", "--listen", "unix:/nowhere/at/all.sock")
    assert homeless.returncode == 1 and "folder does not exist" in homeless.stderr
    assert "AWA_LISTEN" in run("--help").stdout
    assert run("-h").stdout == run("--help").stdout


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("help",), ("queue", "--help"), ("job", "-h")])
def test_help_of_the_program(awa_proxy, words):
    done = subprocess.run([awa_proxy, *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0 and "migrate" in done.stdout
