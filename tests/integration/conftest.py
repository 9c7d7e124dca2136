"""Fixtures of the daemon's tests: migrated databases, and proxies on them."""
import subprocess

import pytest

from proxy_process import Proxy, is_healthy


@pytest.fixture(scope="session")
def migrated(cluster, awa_proxy):
    """The name of a migrated database to copy: much faster than to migrate each."""
    cluster.execute("CREATE DATABASE serve_template OWNER awa_owner")
    subprocess.run([awa_proxy, "migrate", "--database", cluster.url("serve_template")], check=True,
                   stdout=subprocess.DEVNULL, timeout=60)
    yield "serve_template"
    cluster.execute("DROP DATABASE serve_template")


@pytest.fixture
def new_database(cluster, migrated, database_numbers):
    """Makes databases of the test's own."""
    names = []

    def make():
        names.append(f"serve_{next(database_numbers)}")
        cluster.execute(f"CREATE DATABASE {names[-1]} OWNER awa_owner TEMPLATE {migrated}")
        return cluster.url(names[-1])

    yield make
    for name in names:
        cluster.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def own_database(new_database):
    return new_database()


@pytest.fixture
def start(awa_proxy, own_database, tmp_path):
    """Starts proxies on the test's own database; what the test does not stop is killed."""
    started = []

    def run(*options):
        started.append(Proxy(awa_proxy, tmp_path, own_database, *options))
        return started[-1].wait_ready()

    yield run
    for running in started:
        running.end()
        assert is_healthy(running), running.log()
