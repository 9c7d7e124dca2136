"""The private cluster and plain connections, for pytest's fixtures and tests."""
import dataclasses
import pathlib
import subprocess

import psycopg2

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = ROOT / "tests/support/cluster"


@dataclasses.dataclass
class Cluster:
    """See `tests/support/cluster --help`."""

    dir: pathlib.Path

    def tool(self, command, *arguments):
        done = subprocess.run([TOOL, command, self.dir, *arguments], check=True,
                              capture_output=True, text=True, timeout=120)
        return done.stdout.strip()

    def url(self, database="awa", user="awa_owner"):
        return f"postgresql://{user}@/{database}?host={self.dir}/socket"

    def superuser_url(self, database="awa"):
        return self.url(database, "postgres")

    def is_running(self):
        try:
            psycopg2.connect(self.superuser_url()).close()
        except psycopg2.OperationalError:
            return False
        return True

    def log_tail(self):
        return (self.dir / "server.log").read_text(errors="replace")[-4000:]

    def execute(self, sql, database="postgres"):
        """One statement as superuser, outside any transaction."""
        with connected(self.superuser_url(database)) as cursor:
            cursor.execute(sql)


class connected:
    """`with connected(url) as cursor`: a connection in autocommit mode."""

    def __init__(self, url):
        self.connection = psycopg2.connect(url)
        self.connection.autocommit = True

    def __enter__(self):
        return self.connection.cursor()

    def __exit__(self, *_):
        self.connection.close()
