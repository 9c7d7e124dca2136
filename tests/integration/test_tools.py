"""The tools the other tests stand on: a checker that never fails would check nothing."""
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import time

import pytest

from postgres import ROOT, TOOL, Cluster, connected

SUPPORT = ROOT / "tests/support"


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def source(tmp_path):
    for layer in ("base", "core", "pg", "wire"):
        (tmp_path / "src" / layer).mkdir(parents=True)
    (tmp_path / "src/core/core.c").write_text('#include "base/err.h"\n#include <string.h>\n')
    return tmp_path


def test_layers_that_are_kept(source):
    assert run(SUPPORT / "check_layers", source).returncode == 0


@pytest.mark.parametrize("layer, include", [
    ("base", '"core/job.h"'), ("core", '"wire/frame.h"'), ("core", '"../wire/frame.h"'),
    ("core", "<libpq-fe.h>"), ("core", "<event2/event.h>"), ("core", "<openssl/ssl.h>"),
    ("core", '"awa/v1/awa.pb-c.h"'), ("wire", '"net/session.h"'), ("pg", '"core/job.h"'),
    ("pg", "<event2/event.h>"), ("net", "<event2/event.h>"), ("app", "<event2/event.h>"),
    ("nowhere", '"base/err.h"'),
])
def test_layers_that_are_broken(source, layer, include):
    (source / "src" / layer).mkdir(exist_ok=True)
    (source / "src" / layer / "bad.c").write_text(f"#  include {include}\n")
    done = run(SUPPORT / "check_layers", source)
    assert done.returncode == 1
    assert f"src/{layer}" in done.stdout


ROW = "| `{}` | info | {} | what it means |\n"


@pytest.mark.parametrize("call, row, complaint", [
    ('log_event(LOG_INFO, "went", "pid=%d why=\\"a=b\\"" " n=%d", 1, 2);', ROW.format("went", "`pid` `why` `n`"), None),
    ('log_fatal("went", "pid=%d", 1);', ROW.format("went", "`pid`"), None),
    ('log_event(LOG_INFO, "went", "pid=%d", 1);', "", "no row for event went"),
    ('log_fatal("went", "pid=%d", 1);', "", "no row for event went"),
    ('log_event(LOG_INFO, "went", "pid=%d", 1);', ROW.format("went", "`pid` `n`"), "event went has the fields pid"),
    ('log_event(LOG_INFO, "went", "pid=%d", 1);', ROW.format("went", "`pid`") + ROW.format("gone", ""), "nothing logs event gone"),
    ('log_event(LOG_INFO, name, "pid=%d", 1);', "", "not a literal"),
])
def test_events_and_their_table(source, call, row, complaint):
    (source / "src/core/log.c").write_text("void log_event(int level);\n")
    (source / "src/core/core.c").write_text(call)
    (source / "docs").mkdir()
    (source / "docs/operations.md").write_text(row)
    done = run(SUPPORT / "check_events", source)
    assert done.returncode == (complaint is not None) and (complaint or "1 events") in done.stdout


@pytest.mark.parametrize("folders", [["0002_late"], ["0001_a", "0003_gap"], ["0001_a", "0001_b"],
                                     ["1_short"], ["0001_Upper"]])
def test_embedder_refuses_bad_folders(tmp_path, folders):
    for folder in folders:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.sql").touch()
    done = run(ROOT / "src/pg/embed_sql", tmp_path, tmp_path / "out.c")
    assert done.returncode == 1
    assert "expected a folder named" in done.stderr


@pytest.fixture
def tiers():
    loader = importlib.machinery.SourceFileLoader("run_tiers", str(SUPPORT / "run_tiers"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_tiers", loader))
    loader.exec_module(module)
    return module


def tier_totals(tiers, tmp_path, script, counted_by, budget_s=60):
    """What a tier with this shell script would add to the sum."""
    tier = tiers.Tier("t", budget_s, "debug", ["bash", "-c", script], counted_by)
    totals = tiers.run_tier(tier, {"debug": True}, None, tmp_path).totals
    return totals.passed, totals.failed, totals.skipped


JUNIT = '<testsuite>{}</testsuite>'
CASE = '<testcase name="x">{}</testcase>'


@pytest.mark.parametrize("script, counted_by, expected", [
    ("echo 3 passed, 1 failed, 2 skipped; exit 1", "plain", (3, 1, 2)),
    ("echo 3 passed, 0 failed", "plain", (3, 0, 0)),
    ("echo 3 passed, 0 failed; exit 1", "plain", (3, 1, 0)),
    ("echo nothing to see", "plain", (0, 1, 0)),
    ("echo 0 passed, 0 failed", "plain", (0, 1, 0)),
    ("kill -SEGV $$", "plain", (0, 1, 0)),
    ("true", "exit", (1, 0, 0)),
    ("false", "exit", (0, 1, 0)),
    ("true", "junit", (0, 1, 0)),
    (f"echo '{JUNIT.format(CASE.format('') * 2)}' >{{junit}}", "junit", (2, 0, 0)),
    (f"echo '{JUNIT.format(CASE.format('<failure/>'))}' >{{junit}}; exit 1", "junit", (0, 1, 0)),
    (f"echo '{JUNIT.format(CASE.format('<skipped/>'))}' >{{junit}}", "junit", (0, 0, 1)),
    (f"echo '{JUNIT.format(CASE.format('<system-out>[  PASSED  ] 7 test(s).</system-out>'))}'"
     " >{junit}", "junit", (7, 0, 0)),
    (f"echo '{JUNIT.format(CASE.format('<failure/><system-out>[  PASSED  ] 7 test(s).</system-out>'))}'"
     " >{junit}; exit 1", "junit", (7, 1, 0)),
])
def test_tiers_are_counted_honestly(tiers, tmp_path, script, counted_by, expected):
    assert tier_totals(tiers, tmp_path, script, counted_by) == expected


def test_tier_over_its_budget_is_killed(tiers, tmp_path):
    """With the child it started, and it counts as failed although its last line is good."""
    script = "(trap '' TERM; sleep 300) & echo $! >$0.pid; echo 1 passed, 0 failed; wait"
    tier = tiers.Tier("t", 1, "debug", ["bash", "-c", script, str(tmp_path / "child")], "plain")
    result = tiers.run_tier(tier, {"debug": True}, None, tmp_path)
    assert (result.totals.passed, result.totals.failed) == (1, 1)
    assert result.seconds < 30
    child = (tmp_path / "child.pid").read_text().strip()
    give_up = time.monotonic() + 30
    while is_alive(child):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_what_a_failed_tier_said_last_comes_again(tiers, tmp_path, capfd):
    scripts = {"good": "echo fine; echo 1 passed, 0 failed", "bad": "seq 1000; echo that was it; echo 1 passed, 1 failed; exit 1", "dead": "echo dying; exit 3"}
    results = [tiers.run_tier(tiers.Tier(name, 30, "debug", ["bash", "-c", script], "plain"), {"debug": True}, None, tmp_path)
               for name, script in scripts.items()]
    capfd.readouterr()
    tiers.report_failures(results)
    said = capfd.readouterr().out
    last = "\n".join(map(str, range(1000 - tiers.LAST_LINES + 3, 1001)))
    assert said == (f"\n--- bad failed, its last lines:\n{last}\nthat was it\n1 passed, 1 failed\n"
                    "\n--- dead failed, its last lines:\ndying\n")


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_cluster_refuses_what_it_did_not_make(tmp_path):
    (tmp_path / "precious").touch()
    for command in ("start", "stop", "kill9", "destroy", "url"):
        done = run(TOOL, command, tmp_path)
        assert done.returncode != 0
        assert "not made by this tool" in done.stderr
    assert (tmp_path / "precious").exists()


def test_cluster_keeps_what_was_committed_before_kill9(cluster):
    own = Cluster(cluster.dir.parent / "own")
    own.tool("start", "--set", "shared_buffers=16MB", "--set", "log_line_prefix=it's ")
    try:
        with connected(own.url()) as cursor:
            cursor.execute("CREATE TABLE kept AS SELECT 1 AS x")
        own.tool("kill9")
        own.tool("start")
        with connected(own.url()) as cursor:
            cursor.execute("SELECT x, current_setting('shared_buffers'),"
                           " current_setting('log_line_prefix'), current_setting('listen_addresses'),"
                           " current_setting('synchronous_commit'), current_setting('fsync') FROM kept")
            assert cursor.fetchone() == (1, "16MB", "it's ", "", "on", "on")
    finally:
        own.tool("destroy")
    assert not own.dir.exists()
