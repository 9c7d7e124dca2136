"""What all pytest tiers share: a private Postgres and the built binary.

`cluster` lives for the session, `database` for one test: a fresh database of the
cluster, owned by the plain role awa_owner. The build is AWA_BUILD, by default
build/release.
"""
import itertools
import os
import pathlib
import tempfile

import pytest

from postgres import ROOT, Cluster


@pytest.fixture(scope="session")
def build():
    return pathlib.Path(os.environ.get("AWA_BUILD", ROOT / "build/release"))


@pytest.fixture(scope="session")
def awa_proxy(build):
    return build / "src/app/awa-proxy"


@pytest.fixture(scope="session")
def cluster():
    # Not in pytest's own folder: each new run of pytest makes that private to its user again,
    # and the server is another one.
    directory = pathlib.Path(tempfile.mkdtemp(prefix="awa-"))
    directory.chmod(0o755)
    cluster = Cluster(directory / "pg")
    try:
        cluster.tool("start")
        yield cluster
        if not cluster.is_running():
            pytest.fail(f"the server ended under the tests:\n{cluster.log_tail()}")
    finally:
        cluster.tool("destroy")
        directory.rmdir()


@pytest.fixture(scope="session")
def database_numbers():
    return itertools.count(1)


@pytest.fixture
def database(cluster, database_numbers):
    """The URL of a database of its own."""
    name = f"test_{next(database_numbers)}"
    cluster.execute(f"CREATE DATABASE {name} OWNER awa_owner")
    yield cluster.url(name)
    cluster.execute(f"DROP DATABASE {name} WITH (FORCE)")
