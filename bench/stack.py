"""A private Postgres and a proxy in front of it, for bench/run and bench/demo.

Everything lives in one temporary folder and ends with the context manager, also on Ctrl-C and
SIGTERM: the children are in sessions of their own, so only we are interrupted, and while we clean
up nothing interrupts us.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading

import lines

ROOT = pathlib.Path(__file__).resolve().parents[1]
CLUSTER = ROOT / "tests/support/cluster"
READY_S = 30
STOP_S = 40


def build_folder():
    folder = pathlib.Path(os.environ.get("AWA_BUILD", ROOT / "build/release"))
    if not (folder / "src/app/awa-proxy").exists():
        raise SystemExit(f"no awa-proxy in {folder}: run ./dev build, or set AWA_BUILD")
    return folder


def interrupt_on_signals():
    """SIGTERM like Ctrl-C, and Ctrl-C also where the shell has it ignored (background jobs)."""
    def interrupt(_number, _frame):
        raise KeyboardInterrupt
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


@contextlib.contextmanager
def signals_deferred():
    """What cannot be left half-done goes to its end first."""
    caught = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, _frame: caught.append(number))
              for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)
    if caught:
        raise KeyboardInterrupt


class Stack:
    def __init__(self, settings=()):
        self.build = build_folder()
        self.settings = settings        # of Postgres: "name=value"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="awa-bench-"))
        self.folder.chmod(0o755)        # as root, Postgres runs as another user
        self.cluster = self.folder / "pg"
        self.socket = self.folder / "awa.sock"
        self.address = f"unix:{self.socket}"
        self.proxy = None               # of start_proxy()
        self.proxies = []

    def __enter__(self):
        try:
            self.refuse_tmpfs()
            options = [word for setting in self.settings for word in ("--set", setting)]
            self.url = self.run_cluster("start", *options)
            self.superuser_url = self.run_cluster("url", "--superuser")
        except BaseException:
            self.clean_up()
            raise
        return self

    def __exit__(self, *_error):
        self.clean_up()

    def run_cluster(self, command, *options):
        with signals_deferred():
            done = subprocess.run([CLUSTER, command, self.cluster, *options], check=True,
                                  text=True, stdout=subprocess.PIPE, start_new_session=True)
        return done.stdout.strip()

    def file_system(self):
        done = subprocess.run([CLUSTER, "fs", self.folder], check=True, text=True,
                              stdout=subprocess.PIPE)
        return done.stdout.strip()

    def refuse_tmpfs(self):
        if self.file_system() in ("tmpfs", "ramfs"):
            raise SystemExit(f"{self.folder} is in memory, where fsync costs nothing: "
                             "set TMPDIR to a folder on a disk")

    def start_proxy(self):
        """Migrates the database and starts the one proxy of most scenarios."""
        self.migrate()
        self.proxy = self.serve(self.address)

    def proxy_env(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        return env | {"AWA_DATABASE_URL": self.url}

    def migrate(self):
        subprocess.run([self.build / "src/app/awa-proxy", "migrate"], check=True,
                       env=self.proxy_env(), stdout=subprocess.DEVNULL)

    def serve(self, address):
        """Starts `awa-proxy serve` and returns it when it is ready; it ends with the stack."""
        proxy = subprocess.Popen([self.build / "src/app/awa-proxy", "serve", "--listen", address],
                                 env=self.proxy_env(), stderr=subprocess.PIPE,
                                 stdout=subprocess.DEVNULL, start_new_session=True)
        self.proxies.append(proxy)
        while not (line := lines.read(proxy.stderr, READY_S)).startswith("ready "):
            if line == "":
                raise SystemExit("awa-proxy serve ended before it was ready")
            print(line, file=lines.ERR)
        threading.Thread(target=self.pass_on_log, args=(proxy,), daemon=True).start()
        return proxy

    @staticmethod
    def pass_on_log(proxy):
        """What a proxy logs once it is ready is worth seeing."""
        for line in iter(proxy.stderr.readline, b""):
            lines.ERR.write(line.decode(errors="replace"))

    def stop_proxies(self):
        for proxy in self.proxies:
            proxy.terminate()
        for proxy in self.proxies:
            try:
                proxy.wait(STOP_S)
            except subprocess.TimeoutExpired:
                proxy.kill()
                proxy.wait()

    def clean_up(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        try:
            self.stop_proxies()
            self.run_cluster("destroy")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
