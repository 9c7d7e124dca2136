"""The programs shown in the README, as they are: each worker runs what each producer stores."""
import os
import pathlib
import re
import select
import signal
import subprocess
import sys

import pytest

import awa
import drivers

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / "clients/python/examples"
STOP_S = 30


def run_producers(build, address, env):
    """Ids of the jobs that the two producers stored."""
    commands = [[build / "clients/c/example-producer", address, '{"to": "ada@example.org"}'],
                [sys.executable, PYTHON / "producer.py", address, "ada@example.org"]]
    for command in commands:
        done = subprocess.run(command, check=True, env=env, text=True, stdout=subprocess.PIPE)
        assert done.stdout.startswith("stored job ")
        yield done.stdout.split()[-1]


def read_line(process):
    assert select.select([process.stdout], [], [], drivers.DEADLINE_S)[0], "no line"
    line = process.stdout.readline()
    assert line, "the worker ended"
    return line


@pytest.mark.parametrize("language", ["c", "python"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_example(build, proxy, python_env, language, number):
    command = {"c": [build / "clients/c/example-worker", proxy],
               "python": [sys.executable, PYTHON / "worker.py", proxy]}[language]
    with subprocess.Popen(command, env=python_env, bufsize=0,
                          stdout=subprocess.PIPE) as worker:
        stored = sorted(run_producers(build, proxy, python_env))
        lines = sorted(read_line(worker).decode() for _ in stored)
        worker.send_signal(number)
        assert worker.wait(STOP_S) == 0
    assert [line.split()[4].rstrip(":") for line in lines] == stored
    assert all("ada@example.org" in line for line in lines)
    with awa.Client(proxy) as client:
        left = client.queue_counts("mail")
    assert left.available == left.running == 0


def test_a_stranger_is_told(build, tmp_path):
    """Exit code 1 and a sentence when there is no proxy."""
    done = subprocess.run([build / "clients/c/example-worker", f"unix:{tmp_path}/nobody"],
                          env=os.environ, text=True, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert "UNAVAILABLE: cannot connect" in done.stderr


QUOTED = re.compile(r"\]\((clients/\S+?/examples/\S+?)\)[^\n]*:\n```\w+\n(.*?)```", re.DOTALL)


def test_readme_quotes_the_examples():
    """Each block is a verbatim part of the file named above it: all but its first line, or a function of it."""
    blocks = QUOTED.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert sorted(path for path, _ in blocks) == sorted(
        str(path.relative_to(ROOT)) for path in ROOT.glob("clients/*/examples/*.*"))
    for path, code in blocks:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert code in text, path
        whole = text.split("\n", 1)[1]
        assert code == whole or path.endswith("/c/examples/worker.c"), path
