"""`awa-proxy status`, `queue counts` and `job get`: what they say, to people and to programs, and what they refuse."""
import datetime
import json
import os
import subprocess

import pytest

from postgres import connected
from wire_client import Client, pb

COMMANDS = [("status",), ("queue", "counts"), ("job", "get", "1")]
IDS = [" ".join(words) for words in COMMANDS]
PASSWORD = "hunter2"


@pytest.fixture
def command(awa_proxy, own_database):
    def run(*words, env=(), stdout=subprocess.PIPE):
        plain = {name: value for name, value in os.environ.items() if not name.startswith("AWA_")}
        return subprocess.run([awa_proxy, *words], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60,
                              check=False, env=plain | {"AWA_DATABASE_URL": own_database} | dict(env))
    return run


@pytest.fixture
def told(command):
    """Runs a command with --json, which must succeed."""
    def run(*words):
        done = command(*words, "--json")
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.count("\n") == 1
        return json.loads(done.stdout)
    return run


def execute(url, sql):
    with connected(url) as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else None


def rows_of(table):
    names, *lines = [line.split() for line in table.splitlines()]
    return [dict(zip(names, line)) for line in lines]


# ---- queue counts

def test_queue_counts_of_all_and_of_some(command, told, own_database):
    execute(own_database, "SELECT awa.enqueue('mail', 'k'), awa.enqueue('mail', 'k'), awa.enqueue('bills/2026', 'k')")
    execute(own_database, "SELECT * FROM awa.claim(1, 2, ARRAY['mail'], 1, 1000)")
    nothing = dict.fromkeys(("scheduled", "waiting_external", "retryable", "completed", "failed", "cancelled"), 0)
    mail = {"queue": "mail", "available": 1, "running": 1} | nothing
    bills = {"queue": "bills/2026", "available": 1, "running": 0} | nothing
    unused = {"queue": "unused", "available": 0, "running": 0} | nothing
    assert told("queue", "counts") == {"queues": [bills, mail]}
    assert told("queue", "counts", "mail", "unused") == {"queues": [mail, unused]}
    done = command("queue", "counts", "mail", "unused")
    assert done.returncode == 0
    assert rows_of(done.stdout) == [{name: str(value) for name, value in row.items()} for row in (mail, unused)]


def test_queue_counts_without_any_queue(command, told):
    assert told("queue", "counts") == {"queues": []}
    assert rows_of(command("queue", "counts").stdout) == []


@pytest.mark.parametrize("name", ["no spaces", 'a","b', "a\\", "{}", "", "x" * 201, "ü"])
def test_queue_counts_of_a_name_that_cannot_be(command, name):
    done = command("queue", "counts", "mail", name)
    assert (done.returncode, done.stdout) == (1, "")
    assert "awa-proxy queue counts: queue must be 1 to 200 bytes of [A-Za-z0-9_.:/-]" in done.stderr


# ---- job get

def test_job_get(command, told, own_database):
    execute(own_database, """SELECT awa.enqueue('mail', 'email.send', '{"to":\n "Zoë \\"Z\\""}')""")
    before = datetime.datetime.now(datetime.timezone.utc)
    job = told("job", "get", "1")
    assert (job["job_id"], job["queue"], job["kind"], job["state"]) == (1, "mail", "email.send", "available")
    assert (job["args"], job["attempt"], job["max_attempts"], job["due_at"]) == ({"to": 'Zoë "Z"'}, 0, 25, None)
    assert abs(datetime.datetime.fromisoformat(job["created_at"]) - before) < datetime.timedelta(minutes=1)
    lines = dict(line.split(None, 1) for line in command("job", "get", "1").stdout.splitlines())
    assert (lines["job_id"], lines["state"], lines["args"]) == ("1", "available", '{"to":  "Zoë \\"Z\\""}')
    assert "due_at" not in lines


def test_job_get_cannot_steer_the_terminal(command, told, own_database):
    key = "\x1b[31mred\x07\x7f"
    with connected(own_database) as cursor:
        cursor.execute("SELECT awa.enqueue('q', 'k', ordering_key => %s)", (key,))
    assert "?[31mred??" in command("job", "get", "1").stdout
    assert told("job", "get", "1")["ordering_key"] == key


def test_job_get_of_none(command):
    done = command("job", "get", "7", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no job 7: it never existed, or is no longer retained" in done.stderr


@pytest.mark.parametrize("job_id", ["0", "x", "1x", "", "1.5", str(2**53), "9" * 30])
def test_job_get_of_what_is_no_id(command, job_id):
    done = command("job", "get", job_id)
    assert done.returncode == 2 and "is not a job id: a number from 1 to 9007199254740991" in done.stderr


# ---- status

def test_status(told, command, start, own_database):
    day_ms, day_s = "86400000", 86400   # the rings are as old as this run of the tests: they do not move on meanwhile
    proxy = start("--drain-timeout-ms", "50", "--queue-lap-ms", day_ms, "--claim-lap-ms", day_ms)
    client = Client(proxy.socket)
    client.enqueue("q", *[b"{}"] * 5)
    jobs = client.claim("q", jobs=4, wait_ms=5000)
    client.complete(jobs[0])
    client.finish(pb.FinishItem(receipt=jobs[1].receipt, retry=pb.Retry(delay_ms=3600000)))
    status = told("status")
    assert (status["schema_version"], status["open_attempts"]) == (newest_version(own_database), 2)
    assert (status["scheduled"], status["retryable"], status["overdue"]) == (0, 1, 0)
    assert status["oldest_claim_at"].endswith("Z")
    assert [(s["ring"], s["state"]) for s in status["ring_slots"]] == [("queue", "current"), ("claim", "current")]
    assert all(0 <= s["age_s"] < day_s for s in status["ring_slots"])
    instance, = status["instances"]
    assert str(proxy.process.pid) in instance["proxy"] and instance["missing_since"] is None
    text = command("status").stdout
    assert "open_attempts    2\n" in text and "retryable        1\n" in text
    client.complete(*jobs[2:])
    client.close()
    after = told("status")
    assert (after["open_attempts"], after["oldest_claim_at"]) == (0, None)
    assert proxy.stop() == 0


def newest_version(url):
    return execute(url, "SELECT max(version) FROM awa.schema_migrations")[0][0]


def test_status_of_slots_that_were_left(told, own_database):
    execute(own_database, "SELECT awa.enqueue('q', 'k')")
    execute(own_database, "SELECT * FROM awa.claim(1, 2, ARRAY['q'], 1, 1000)")
    execute(own_database, "SELECT awa.rotate_rings(0, 0)")
    execute(own_database, "SELECT awa.sync_ring_pointers()")
    states = [(s["ring"], s["generation"], s["state"]) for s in told("status")["ring_slots"]]
    assert states == [("queue", 1, "left"), ("queue", 2, "current"), ("claim", 1, "left"), ("claim", 2, "current")]
    execute(own_database, "SELECT awa.close_slots()")
    assert told("status")["ring_slots"][0]["state"] == "sealed"


# ---- all of them

@pytest.mark.parametrize("words", COMMANDS, ids=IDS)
def test_schema_is_judged(command, awa_proxy, database, own_database, words):
    missing = command(*words, env={"AWA_DATABASE_URL": database})
    assert (missing.returncode, missing.stdout) == (1, "")
    assert f"awa-proxy {' '.join(words[:2])}: schema awa does not exist; run awa-proxy migrate" in missing.stderr.replace(
        "job get 1", "job get")
    other = command(*words, "--schema", "other")
    assert other.returncode == 1 and "schema other does not exist" in other.stderr
    execute(own_database, "INSERT INTO awa.schema_migrations VALUES (99, 'future')")
    newer = command(*words)
    assert newer.returncode == 1 and "schema awa is at version 99, this binary knows up to" in newer.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=IDS)
def test_misuse(command, words):
    url = f"postgresql://ann:{PASSWORD}@h/db"
    for wrong in (("--nonsense",), ("-n",), ("--database",), (url,), (f"--databaze={url}",), (f"--json={url}",)):
        done = command(*words, *wrong)
        if words[0] == "queue" and wrong[0].startswith("postgresql"):
            assert done.returncode == 1  # the name of a queue, which it cannot be
        else:
            assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert PASSWORD not in done.stderr
    nowhere = command(*words, env={"AWA_DATABASE_URL": ""})
    assert nowhere.returncode == 2 and "no database: give --database or AWA_DATABASE_URL" in nowhere.stderr
    helped = command(*words, "--help")
    assert helped.returncode == 0 and "--json" in helped.stdout


@pytest.mark.parametrize("url", [f"postgresql://ann:{PASSWORD}@[::1", f"host=/nonexistent password={PASSWORD}"])
@pytest.mark.parametrize("words", COMMANDS, ids=IDS)
def test_password_is_never_printed(command, words, url):
    done = command(*words, "--database", url)
    assert done.returncode == 1 and done.stderr.startswith("awa-proxy ")
    assert PASSWORD not in done.stdout + done.stderr


def test_job_get_needs_its_id(command):
    done = command("job", "get")
    assert done.returncode == 2 and "needs ID" in done.stderr


@pytest.mark.parametrize("words, complaint", [
    (("queue",), "awa-proxy queue: needs a second word"), (("queue", "count"), 'awa-proxy queue: no command "count"'),
    (("nothing",), 'awa-proxy: no command "nothing"')])
def test_no_such_command(command, words, complaint):
    done = command(*words)
    assert done.returncode == 2 and complaint in done.stderr and "queue counts" in done.stderr


@pytest.mark.parametrize("words", [("status",), ("--version",), ("--help",), ("serve", "--help-markdown")])
def test_lost_output_is_a_failure(command, words):
    with open("/dev/full", "w") as full:
        assert command(*words, stdout=full).returncode == 1
