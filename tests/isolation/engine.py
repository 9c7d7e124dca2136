"""The storage engine in a private cluster, for tests that need many sessions at once.

Starts a cluster (tests/support/cluster) and installs the schema into it, by `awa-proxy
migrate` where $AWA_BUILD has one and by psql otherwise; the two do the same. Every test
that wants an engine with a changed function passes its own list of SQL texts: the source
files stay as they are.
"""
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests/support/cluster"
DEADLINE_S = 60


def sources():
    """(path, text) of every SQL file, in the order in which they are installed."""
    paths = sorted(path for folder in (ROOT / "sql").iterdir() if folder.is_dir()
                   for path in folder.glob("*.sql"))
    return [(path, path.read_text(encoding="utf-8")) for path in paths]


class Cluster:
    """A private cluster in a temporary folder; a context manager."""

    def __init__(self, **settings):
        self.settings = settings
        self.cloning = threading.Lock()  # a template admits one copy at a time

    def __enter__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="awa-"))
        self.dir.rmdir()  # the cluster tool wants to make it
        command = [CLUSTER, "start", self.dir]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        self.url = subprocess.run(command, check=True, capture_output=True, text=True,
                                  timeout=DEADLINE_S).stdout.strip()
        self.superuser_url = self.url.replace("awa_owner@", "postgres@")
        return self

    def __exit__(self, *_):
        subprocess.run([CLUSTER, "destroy", self.dir], check=False, timeout=DEADLINE_S)

    def clone(self, database):
        """A fresh copy of the database `awa`, made in a tenth of the time of an installation; its URL.
        What a stopped program has left open in the one before ends with it."""
        url = self.superuser_url.replace("/awa?", "/postgres?")
        with self.cloning:
            for statement in (f"DROP DATABASE IF EXISTS {database} WITH (FORCE)",
                              f"CREATE DATABASE {database} TEMPLATE awa OWNER awa_owner"):
                self.psql(statement, url)
        return self.url.replace("/awa?", f"/{database}?")

    def psql(self, script, url=None):
        """Runs an SQL script; its errors are raised with what psql said."""
        done = subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", url or self.url],
                              input=script, capture_output=True, text=True, check=False,
                              timeout=DEADLINE_S)
        if done.returncode:
            raise RuntimeError(done.stderr)

    def install(self, schema, texts=None):
        """A fresh schema with the engine in it; `texts` replaces the source files."""
        self.psql(f"SET client_min_messages = warning; DROP SCHEMA IF EXISTS {schema} CASCADE;")
        binary = pathlib.Path(os.environ.get("AWA_BUILD", "")) / "src/app/awa-proxy"
        if texts is None and os.environ.get("AWA_BUILD") and binary.exists():
            subprocess.run([binary, "migrate", "--database", self.url, "--schema", schema],
                           check=True, capture_output=True, timeout=DEADLINE_S)
            return
        if texts is None:
            texts = [text for _, text in sources()]
        self.psql("SET client_min_messages = warning;\nBEGIN;\n"
                  f"CREATE SCHEMA {schema};\nSET LOCAL search_path = {schema}, pg_temp;\n"
                  + "\n".join(texts) + "\nCOMMIT;\n")


def program(name, *places):
    """The path of a program, from PATH or one of the places; None when there is none."""
    found = shutil.which(name)
    if found:
        return found
    return next((str(place) for place in places if place.exists()), None)
