"""The engine under test: a database for each test or file, copied from one that was installed once.

$AWA_BUILD names the build whose `awa-proxy migrate` installs it; without it the files of
sql/ are run as they are.
"""
import contextlib
import os
import subprocess

import pytest

from engine import Engine
from postgres import ROOT

TEMPLATE = "engine_template"


def install_files(url):
    script = "\n".join(["BEGIN;", "CREATE SCHEMA awa;", "SET LOCAL search_path = awa, pg_temp;",
                        "CREATE TABLE schema_migrations (version int PRIMARY KEY, name text, applied_at timestamptz DEFAULT now());",
                        "INSERT INTO schema_migrations VALUES (1, 'installed from files');",
                        *(p.read_text() for p in sorted((ROOT / "sql").glob("*/*.sql"))), "COMMIT;"])
    subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", url], input=script, text=True, check=True,
                   stdout=subprocess.DEVNULL, timeout=120,
                   env=os.environ | {"PGOPTIONS": "-c client_min_messages=warning"})


@pytest.fixture(scope="session")
def template(cluster, awa_proxy):
    # Autovacuum would add its own WAL and buffers to what the tests measure.
    cluster.execute("ALTER SYSTEM SET autovacuum = off")
    cluster.execute("SELECT pg_reload_conf()")
    cluster.execute(f"CREATE DATABASE {TEMPLATE} OWNER awa_owner")
    if "AWA_BUILD" in os.environ:
        subprocess.run([awa_proxy, "migrate", "--database", cluster.url(TEMPLATE)], check=True, timeout=120)
    else:
        install_files(cluster.url(TEMPLATE))
    return TEMPLATE


@pytest.fixture(scope="session")
def new_engine(cluster, template, database_numbers):
    """A context manager that gives a fresh engine."""
    @contextlib.contextmanager
    def new():
        name = f"engine_{next(database_numbers)}"
        cluster.execute(f"CREATE DATABASE {name} TEMPLATE {template} OWNER awa_owner")
        engine = Engine(cluster, name)
        yield engine
        engine.close()
        cluster.execute(f"DROP DATABASE {name} WITH (FORCE)")
    return new


@pytest.fixture
def db(new_engine):
    with new_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def shared_db(new_engine):
    with new_engine() as engine:
        yield engine


@pytest.fixture
def queue_db(shared_db, database_numbers):
    """The file's database with a queue of its own: for tests that look at nothing but their queue."""
    shared_db.queue = f"q{next(database_numbers)}"
    yield shared_db
    shared_db.close_sessions()
