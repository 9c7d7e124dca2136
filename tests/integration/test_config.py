"""The settings of `awa-proxy serve`: where they come from, what is refused, and SIGHUP."""
import json
import os
import signal
import subprocess
import threading

import pytest

from postgres import connected
from proxy_process import wait_for
from wire_client import Client, pb

PASSWORD = "hunter2"
URL = f"postgresql://ann:{PASSWORD}@db.example.org/app?sslmode=require"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "awa.conf"


@pytest.fixture
def check(awa_proxy):
    """Runs serve --check-config with no environment but `env`."""
    def run(*options, env=()):
        plain = {name: value for name, value in os.environ.items() if not name.startswith("AWA_")}
        return subprocess.run([awa_proxy, "serve", "--check-config", *options], capture_output=True, text=True,
                              timeout=30, check=False, env=plain | dict(env))
    return run


# ---- where they come from

def test_effective_settings_with_their_origin(check, file):
    file.write_text(f"database_url = {URL}\npool_size = 5\nclosed_ms = 1\nqueue_lap_ms = 3000\ninsecure = yes\n")
    done = check("--queue-lap-ms", "2000", "--listen", "unix:/a", "--listen=tcp:0.0.0.0:0",
                 env={"AWA_CONFIG": str(file), "AWA_CLOSED_MS": "2", "AWA_QUEUE_LAP_MS": "2500", "AWA_SCHEMA": ""})
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert f"config = {file}  # AWA_CONFIG" in lines
    assert f"pool_size = 5  # {file}, line 2" in lines
    assert "closed_ms = 2  # AWA_CLOSED_MS" in lines
    assert "queue_lap_ms = 2000  # --queue-lap-ms" in lines
    assert "listen = unix:/a,tcp:0.0.0.0:0  # --listen" in lines
    assert f"insecure = yes  # {file}, line 5" in lines
    assert "schema = awa  # default" in lines
    url, = [line for line in lines if line.startswith("database_url = ")]
    value, _, origin = url.removeprefix("database_url = ").partition("  # ")
    assert sorted(value.split()) == ["dbname=app", "host=db.example.org", "sslmode=require", "user=ann"]
    assert origin == f"{file}, line 1"


def test_flag_beats_environment_for_the_file_too(check, file, tmp_path):
    other = tmp_path / "other.conf"
    file.write_text("pool_size = 6")
    other.write_text("pool_size = 7")
    done = check("--config", str(file), "--database", "dbname=d", env={"AWA_CONFIG": str(other)})
    assert f"pool_size = 6  # {file}, line 1" in done.stdout


# ---- what is refused

@pytest.mark.parametrize("text, words", [
    ("pool_sise = 4", 'line 1: there is no setting "pool_sise"; did you mean pool_size?'),
    ("\npool_size = 0", 'line 2: pool_size: "0" is not a number from 1 to 64'),
    ("schema = a\nschema = b", "line 2: schema was set in line 1 already"),
    ("log_level = noisy", '"noisy" is not one of debug|info|warn|error'),
    (f"{URL}", "line 1: what stands before = is not a name"),
    (f"postgresql://ann:{PASSWORD}@h/db", "line 1: not of the form name = value"),
])
def test_bad_file(check, file, text, words):
    file.write_text(text)
    done = check("--config", str(file), "--database", "dbname=d")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"awa-proxy serve: {file}, line" in done.stderr and words in done.stderr
    assert PASSWORD not in done.stderr


def test_a_bad_address_is_told_with_its_origin(check, file):
    file.write_text(f"\ndatabase_url = postgresql://ann:{PASSWORD}@[::1\n")
    done = check("--config", str(file))
    assert f"serve: {file}, line 2: the database URL is malformed" in done.stderr and PASSWORD not in done.stderr
    done = check("--database", "dbname=d", env={"AWA_LISTEN": "unix:/a, 127.0.0.1:7433"})
    assert 'serve: AWA_LISTEN: "127.0.0.1:7433" is not unix:/path' in done.stderr
    far = file.parent / ("f" * 120)
    far.write_text("listen = tcp:0.0.0.0:7433\n")
    done = check("--config", str(far), "--database", "dbname=d")  # both would be too long
    assert "serve: tcp:0.0.0.0:7433 can be reached" in done.stderr and "without --insecure" in done.stderr


@pytest.mark.parametrize("options, words", [
    ((), "no database: set AWA_DATABASE_URL, --database, or database_url"),
    (("--database", f"postgresql://ann:{PASSWORD}@[::1"), "the database URL is malformed"),
    (("--database", "dbname=d", "--poll-min-ms", "300"), "poll_min_ms is 300, which is more than poll_max_ms, 250"),
    (("--database", "dbname=d", "--schema="), "schema: must not be empty"),
    (("--database", "dbname=d", "--config", "/nowhere.conf"), "cannot read /nowhere.conf: No such file"),
    (("--database", "dbname=d", "--listen", "tcp:1"), 'is not tcp:address:port'),
    (("--database", "dbname=d", "--listen", "unix:/a,"), None),
    (("--database", "dbname=d", "--listen", ","), 'is not unix:/path'),
    (("--database", "dbname=d", "--listen", ",".join(["unix:/a"] * 9)), "more than 8 addresses"),
    (("--database", "dbname=d", f"postgresql://ann:{PASSWORD}@h/db"), "unexpected argument"),
])
def test_bad_settings(check, options, words):
    done = check(*options)
    assert done.returncode == (0 if words is None else 2)
    assert words is None or words in done.stderr
    assert PASSWORD not in done.stdout + done.stderr


# ---- the log

def test_log_of_json_objects(start):
    proxy = start("--log-format", "json", "--drain-timeout-ms", "0")
    assert proxy.stop() == 0
    events = [json.loads(line) for line in proxy.log().splitlines()]
    by_name = {event["event"]: event for event in events}
    assert by_name["ready"]["listen"] == f"unix:{proxy.socket}" and by_name["ready"]["schema"] == "awa"
    assert isinstance(by_name["pg_connected"]["pid"], int)
    assert by_name["stopped"]["clean"] == "yes" and by_name["stopped"]["level"] == "info"


def test_log_level(start):
    proxy = start("--log-level", "error", "--drain-timeout-ms", "0")
    assert proxy.stop() == 0
    assert [line.split()[0] for line in proxy.log().splitlines()] == ["ready"]


# ---- SIGHUP

@pytest.fixture
def reloading(start, file):
    """Starts a proxy with this text in its file. Its reload() rewrites the file, sends SIGHUP, and returns what was
    logged about the settings."""
    def run(text, *options):
        file.write_text(text)
        proxy = start("--config", str(file), *options)

        def reload(new_text):
            file.write_text(new_text)
            before = len(setting_lines(proxy))
            proxy.process.send_signal(signal.SIGHUP)
            wait_for(lambda: any("event=settings_re" in line for line in setting_lines(proxy)[before:]))
            return "\n".join(setting_lines(proxy)[before:])
        proxy.reload = reload
        return proxy
    return run


def setting_lines(proxy):
    return [line for line in proxy.log().splitlines() if "event=setting" in line]


def claimed(client):
    """How many of five waiting jobs one claim brings: as many as one call takes."""
    return len(client.claim("q", jobs=5, wait_ms=5000))


def test_hangup_takes_what_is_reloadable(reloading):
    proxy = reloading("claim_batch_size = 1\ndrain_timeout_ms = 600000\n")
    client = Client(proxy.socket)
    client.enqueue("q", *[b"{}"] * 10)
    assert claimed(client) == 1
    said = proxy.reload("claim_batch_size = 512\ndrain_timeout_ms = 20\n")
    assert "setting=claim_batch_size from=1 to=512" in said and "setting=drain_timeout_ms from=600000 to=20" in said
    assert "event=settings_reloaded changed=2 need_restart=0" in said
    assert claimed(client) == 5
    assert proxy.stop() == 0  # although jobs are held


def test_hangup_says_what_needs_a_restart(reloading):
    proxy = reloading("pool_size = 4\n", "--drain-timeout-ms", "50")
    for _ in range(2):  # it goes on saying so, as long as it is true
        said = proxy.reload("pool_size = 5\nschema = other\n")
        assert "event=setting_needs_restart setting=schema" in said
        assert "event=setting_needs_restart setting=pool_size" in said
        assert "changed=0 need_restart=2" in said
    assert "changed=0 need_restart=0" in proxy.reload("pool_size = 4\n")
    client = Client(proxy.socket)
    assert client.counts("q").available == 0  # it still serves schema awa
    client.close()
    assert proxy.stop() == 0


@pytest.mark.parametrize("text, words", [
    ("nonsense = 1", "line 2: there is no setting 'nonsense'"),
    ("poll_min_ms = 900", "poll_min_ms is 900, which is more than poll_max_ms, 250"),
    ("schema =", "schema: must not be empty"),
    ("database_url = postgresql://ann:hunter2@[::1", None),
])
def test_bad_file_changes_nothing(reloading, file, text, words):
    proxy = reloading("claim_batch_size = 1\n", "--drain-timeout-ms", "50")
    client = Client(proxy.socket)
    client.enqueue("q", *[b"{}"] * 10)
    said = proxy.reload(f"claim_batch_size = 512\n{text}\n")
    if words is None:  # the environment's is stronger, and good
        assert "settings_reloaded" in said
    else:
        assert said.count("event=") == 1 and "level=error event=settings_refused" in said and words in said
        assert claimed(client) == 1
    assert PASSWORD not in proxy.log()
    file.unlink()
    proxy.process.send_signal(signal.SIGHUP)
    wait_for(lambda: f"cannot read {file}: No such file" in proxy.log())
    client.close()
    assert proxy.stop() == 0


def test_what_is_no_file_holds_up_nobody(reloading, file):
    proxy = reloading("drain_timeout_ms = 50\n")
    client = Client(proxy.socket)
    file.unlink()
    os.mkfifo(file)
    proxy.process.send_signal(signal.SIGHUP)
    wait_for(lambda: f"cannot read {file}: it is not a file" in proxy.log())
    assert client.enqueue("q", b"{}")[0].job_id
    client.close()
    assert proxy.stop() == 0


def test_log_level_is_reloaded(reloading):
    proxy = reloading("log_level = error\ndrain_timeout_ms = 50\n")
    said = proxy.reload("log_level = info\ndrain_timeout_ms = 50\n")
    assert "setting=log_level from=error to=info" in said
    assert "setting=log_level from=info to=error" in proxy.reload("log_level = error\ndrain_timeout_ms = 50\n")
    assert proxy.stop() == 0
    assert "event=stopped" not in proxy.log()  # while it was info, connections may have been told of


def work(socket, stop, count):
    """Stores, claims and completes until told to stop; count[0] is how many completions were acknowledged."""
    client = Client(socket)
    while not stop.is_set():
        assert all(result.job_id for result in client.enqueue("load", b"{}", b"{}", b"{}"))
        jobs = client.claim("load", jobs=3, wait_ms=5000)
        assert all(result.status == pb.DONE for result in client.complete(*jobs))
        count[0] += len(jobs)
    client.close()


def test_hangups_under_load_lose_nothing(reloading):
    proxy = reloading("poll_max_ms = 100\n", "--drain-timeout-ms", "5000")
    stop, counts = threading.Event(), [[0] for _ in range(4)]
    workers = [threading.Thread(target=work, args=(proxy.socket, stop, count)) for count in counts]
    for worker in workers:
        worker.start()
    for round_number in range(10):  # within the budget of lines that the log has a second
        name = ("claim_batch_size", "enqueue_batch_size", "completion_batch_size", "completion_flush_ms")[round_number % 4]
        good = f"{name} = {round_number + 1}\n"
        assert "event=settings_reloaded" in proxy.reload(good)
        assert "event=settings_refused" in proxy.reload(good + "pool_size = 65\n")
    stop.set()
    for worker in workers:
        worker.join(60)
    client = Client(proxy.socket)
    left = client.counts("load")
    assert left.completed == sum(count[0] for count in counts) > 0
    assert (left.running, left.failed, left.retryable, left.scheduled) == (0, 0, 0, 0)
    client.close()
    assert proxy.stop() == 0


# ---- the end

def test_second_sigterm_hands_back_at_once(start, own_database):
    proxy = start("--drain-timeout-ms", "600000")
    client, other = Client(proxy.socket), Client(proxy.socket)
    client.enqueue("q", b"{}", b"{}")
    held = client.claim("q", jobs=2, wait_ms=5000)
    proxy.process.send_signal(signal.SIGTERM)
    assert other.rest()[-1].error.code == pb.UNAVAILABLE  # it holds nothing, and is told
    assert [result.status for result in client.complete(held[0])] == [pb.DONE]
    assert proxy.stop() == 0
    assert "event=stopped clean=yes" in proxy.log()
    with connected(own_database) as cursor:
        cursor.execute("SELECT available, running, completed FROM awa.queue_counts_exact('q')")
        assert cursor.fetchone() == (1, 0, 1)


def test_hangup_while_draining(reloading):
    proxy = reloading("drain_timeout_ms = 600000\n")
    client = Client(proxy.socket)
    client.enqueue("q", b"{}")
    assert len(client.claim("q", wait_ms=5000)) == 1
    proxy.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "event=draining" in proxy.log())
    assert "setting=drain_timeout_ms" in proxy.reload("drain_timeout_ms = 10\n")
    assert proxy.process.wait(30) == 0
