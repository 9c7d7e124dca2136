"""A running `awa-proxy serve`, for tests."""
import os
import pathlib
import re
import signal
import subprocess
import time

DEADLINE_S = 40


class Proxy:
    """Started in `folder` on a migrated database; its log is the file proxy.log there."""

    def __init__(self, program, folder, url, *options, env=(), listen=None):
        self.socket = pathlib.Path(folder) / "awa.sock"
        self.log_path = pathlib.Path(folder) / "proxy.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [program, "serve", "--listen", listen or f"unix:{self.socket}", *options], stderr=log,
                env=os.environ | {"AWA_DATABASE_URL": url} | dict(env))

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_ready(self):
        wait_for(lambda: "ready listen=" in self.log() or '"event":"ready"' in self.log()
                 or self.process.poll() is not None)
        assert self.process.poll() is None, self.log()
        return self

    def backends(self, pool):
        """The server processes of its connections ("data", "control"), the newest last; some may have ended."""
        return [int(pid) for pid in re.findall(rf"event=pg_connected pool={pool} pid=(\d+)", self.log())]

    def stop(self, number=signal.SIGTERM):
        """Sends the signal and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)


def is_healthy(proxy):
    return "level=fatal" not in proxy.log() and "Sanitizer" not in proxy.log()


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE_S
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return result
