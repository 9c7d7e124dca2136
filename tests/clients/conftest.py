"""Fixtures: both clients behind one driver, a fake proxy, and a real one on a private cluster."""
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("AWA_BUILD", ROOT / "build/release"))
CLUSTER = ROOT / "tests/support/cluster"
READY_S = 30

generated = tempfile.TemporaryDirectory(prefix="awa-clients-pb-")
subprocess.run([ROOT / "clients/python/generate", generated.name], check=True)
PYTHON_PATH = [str(ROOT / "clients/python/src"), generated.name]
sys.path[:0] = PYTHON_PATH

import drivers  # noqa: E402  (needs the path above)
import fake_proxy  # noqa: E402


@pytest.fixture(scope="session")
def build():
    return BUILD


@pytest.fixture(scope="session")
def python_env():
    """For Python programs that import awa."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(PYTHON_PATH)}


@pytest.fixture(params=[drivers.CDriver, drivers.PythonDriver], ids=["c", "python"])
def driver(request):
    made = request.param(BUILD)
    yield made
    made.end()


@pytest.fixture
def fake(tmp_path):
    proxy = fake_proxy.FakeProxy(tmp_path / "s")
    yield proxy
    proxy.close()


@pytest.fixture
def start_worker(driver):
    """driver.start_worker, with workers that do not outlive the test."""
    started = []

    def start(*arguments, **options):
        started.append(driver.start_worker(*arguments, **options))
        return started[-1]

    yield start
    for worker in started:
        worker.end()


def wait_until_ready(proxy):
    """Reads its log up to the line that tells its addresses, and returns these; the rest stays in
    the pipe, which is large enough for what a proxy says in a test."""
    log = b""
    while (said := re.search(rb"^ready listen=(\S+) .*\n", log, re.MULTILINE)) is None:
        assert select.select([proxy.stderr], [], [], READY_S)[0], f"not ready: {log}"
        part = os.read(proxy.stderr.fileno(), 4096)
        assert part, f"the proxy ended: {log}"
        log += part
    return said[1].decode().split(",")


@pytest.fixture(scope="session")
def database_url():
    """A migrated database on a private cluster."""
    with tempfile.TemporaryDirectory(prefix="awa-clients-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        url = subprocess.run([CLUSTER, "start", folder / "pg"], check=True, text=True,
                             stdout=subprocess.PIPE).stdout.strip()
        try:
            subprocess.run([BUILD / "src/app/awa-proxy", "migrate"], check=True,
                           env=os.environ | {"AWA_DATABASE_URL": url})
            yield url
        finally:
            subprocess.run([CLUSTER, "destroy", folder / "pg"], check=True)


class Served:
    """A real proxy in a process."""

    def __init__(self, listen, url):
        self.process = subprocess.Popen(
            [BUILD / "src/app/awa-proxy", "serve", "--listen", listen],
            env=os.environ | {"AWA_DATABASE_URL": url}, stderr=subprocess.PIPE)
        self.addresses = wait_until_ready(self.process)
        self.address = self.addresses[0]

    def end(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.wait(40)
        self.process.stderr.close()
        return self.process.returncode


@pytest.fixture(scope="session")
def addresses(database_url):
    """The addresses of a real proxy: a Unix socket and TCP."""
    with tempfile.TemporaryDirectory(prefix="awa-clients-") as folder:
        served = Served(f"unix:{folder}/awa.sock,tcp:127.0.0.1:0", database_url)
        try:
            yield served.addresses
        finally:
            code = served.end()
        assert code == 0


@pytest.fixture
def proxy(addresses):
    """The address of a real proxy; test_scenario.py asks for each of them."""
    return addresses[0]


@pytest.fixture
def serve(database_url, tmp_path):
    """Starts a real proxy of the test's own, always at the same address."""
    started = []

    def run():
        started.append(Served(f"unix:{tmp_path}/awa.sock", database_url))
        return started[-1]

    yield run
    for served in started:
        served.end(signal.SIGKILL)
