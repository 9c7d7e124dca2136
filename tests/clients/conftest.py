"""Fixtures: both clients behind one driver, a fake proxy, and a real one on a private cluster."""
import os
import pathlib
import select
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
    """Reads its log up to the line that tells; the rest stays in the pipe, which is large enough
    for what a proxy says in a test."""
    log = b""
    while not log.endswith(b"\n") or b"ready " not in log:
        assert select.select([proxy.stderr], [], [], READY_S)[0], f"not ready: {log}"
        part = os.read(proxy.stderr.fileno(), 4096)
        assert part, f"the proxy ended: {log}"
        log += part


@pytest.fixture(scope="session")
def proxy():
    """The address of a real proxy."""
    with tempfile.TemporaryDirectory(prefix="awa-clients-") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        address = f"unix:{folder}/awa.sock"
        url = subprocess.run([CLUSTER, "start", folder / "pg"], check=True, text=True,
                             stdout=subprocess.PIPE).stdout.strip()
        try:
            env = os.environ | {"AWA_DATABASE_URL": url}
            program = BUILD / "src/app/awa-proxy"
            subprocess.run([program, "migrate"], check=True, env=env)
            served = subprocess.Popen([program, "serve", "--listen", address], env=env,
                                      stderr=subprocess.PIPE)
            try:
                wait_until_ready(served)
                yield address
            finally:
                served.terminate()
                served.wait(40)
                served.stderr.close()
            assert served.returncode == 0
        finally:
            subprocess.run([CLUSTER, "destroy", folder / "pg"], check=True)
