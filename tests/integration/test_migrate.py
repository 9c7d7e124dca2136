"""`awa-proxy migrate`: what it does, what it refuses, and that refusing changes nothing."""
import os
import re
import subprocess
import time

import pytest

from postgres import ROOT, connected

MIGRATIONS = sorted(p.name for p in (ROOT / "sql").iterdir() if p.is_dir())
KNOWN = len(MIGRATIONS)
LOCK = "hashtextextended('awa-proxy migrate ' || 'awa', 0)"
DEADLINE_S = 60


@pytest.fixture
def migrate(awa_proxy, database):
    def run(*options, url=database, env=()):
        return subprocess.run(command(awa_proxy, url, *options), capture_output=True, text=True,
                              check=False, timeout=DEADLINE_S, env=os.environ | dict(env))
    return run


def command(awa_proxy, url, *options):
    return [awa_proxy, "migrate", *(["--database", url] if url else []), *options]


def scalar(url, sql):
    with connected(url) as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def versions(url, schema="awa"):
    with connected(url) as cursor:
        cursor.execute(f'SELECT version FROM "{schema}".schema_migrations ORDER BY version')
        return [row[0] for row in cursor.fetchall()]


def schemas(url):
    with connected(url) as cursor:
        cursor.execute("SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_)'")
        return {row[0] for row in cursor.fetchall()}


def objects(url, schema="awa"):
    """Everything in the schema that has a name, with its row version: any change shows."""
    with connected(url) as cursor:
        cursor.execute("SELECT 'c', relname::text, xmin::text FROM pg_class"
                       "  WHERE relnamespace = %(s)s::regnamespace UNION ALL "
                       "SELECT 'p', oid::regprocedure::text, xmin::text FROM pg_proc"
                       "  WHERE pronamespace = %(s)s::regnamespace", {"s": schema})
        return set(cursor.fetchall())


def test_applies_as_plain_owner(migrate, database):
    assert scalar(database, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
    done = migrate()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"applied {name}" for name in MIGRATIONS] + [
        f"schema awa is at version {KNOWN}"]
    assert versions(database) == list(range(1, KNOWN + 1))


def test_second_run_changes_nothing(migrate, database):
    assert migrate().returncode == 0
    before = objects(database)
    done = migrate()
    assert (done.returncode, done.stdout) == (0, f"schema awa is at version {KNOWN}, nothing to do\n")
    assert objects(database) == before


def test_notices_are_silent(migrate, cluster, database):
    name = database.split("/")[3].split("?")[0]
    cluster.execute("CREATE FUNCTION public.chat() RETURNS event_trigger LANGUAGE plpgsql AS"
                    " $$ BEGIN RAISE NOTICE 'chatter'; END $$; CREATE EVENT TRIGGER chat"
                    " ON ddl_command_end EXECUTE FUNCTION public.chat()", database=name)
    assert re.fullmatch(r"target: database \S+ on \S+ port 5432 as awa_owner, schema awa\n",
                        migrate().stderr)


def test_no_limit_of_the_role_ends_a_migration(migrate, cluster, database):
    name = database.split("/")[3].split("?")[0]
    cluster.execute("CREATE FUNCTION public.look() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
                    " ASSERT current_setting('statement_timeout') = '0';"
                    " ASSERT current_setting('idle_in_transaction_session_timeout') = '0'; END $$;"
                    " CREATE EVENT TRIGGER look ON ddl_command_end EXECUTE FUNCTION public.look();"
                    f" ALTER ROLE awa_owner IN DATABASE {name} SET statement_timeout = '10s';"
                    f" ALTER ROLE awa_owner IN DATABASE {name} SET idle_in_transaction_session_timeout = '10s'",
                    database=name)
    done = migrate()
    assert done.returncode == 0, done.stderr


def test_functions_are_pinned_to_the_schema_asked_for(migrate, database):
    assert migrate("--schema", "other").returncode == 0
    with connected(database) as cursor:
        cursor.execute("SELECT DISTINCT setting FROM pg_proc, unnest(proconfig) setting"
                       " WHERE pronamespace = 'other'::regnamespace AND setting ~ '^search_path='")
        assert cursor.fetchall() == [("search_path=other, pg_temp",)]


@pytest.mark.parametrize("schema", ["other", 'We"ird; --', "ü" * 31])
def test_other_schema(migrate, database, schema):
    done = migrate("--schema", schema)
    assert done.returncode == 0, done.stderr
    assert schemas(database) == {"public", schema}
    assert versions(database, schema.replace('"', '""')) == list(range(1, KNOWN + 1))


def test_two_schemas_in_one_database(migrate, database):
    assert migrate().returncode == 0
    before = objects(database)
    assert migrate("--schema", "other").returncode == 0
    assert objects(database) == before


def test_settings_from_environment(migrate, database):
    done = migrate(url=None, env={"AWA_DATABASE_URL": database, "AWA_SCHEMA": "fromenv"})
    assert done.returncode == 0, done.stderr
    assert "fromenv" in schemas(database)


def test_empty_schema_that_exists_is_used(migrate, cluster, database):
    name = database.split("/")[3].split("?")[0]
    cluster.execute("CREATE SCHEMA awa AUTHORIZATION awa_owner", database=name)
    cluster.execute(f"REVOKE CREATE ON DATABASE {name} FROM awa_owner")
    assert migrate().returncode == 0


def start_waiting(awa_proxy, database, count):
    """That many migrators, all waiting for the schema's lock, which the caller holds."""
    running = [subprocess.Popen(command(awa_proxy, database), stdout=subprocess.PIPE, text=True)
               for _ in range(count)]
    give_up = time.monotonic() + DEADLINE_S
    while scalar(database, "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
                           " WHERE d.datname = current_database() AND locktype = 'advisory'"
                           " AND NOT granted") < count:
        assert time.monotonic() < give_up
        time.sleep(0.01)
    return running


def test_processes_at_once(awa_proxy, database):
    with connected(database) as cursor:
        cursor.execute(f"SELECT pg_advisory_lock({LOCK})")
        running = start_waiting(awa_proxy, database, 4)
    outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    assert sorted("applied" in output for output in outputs) == [False, False, False, True]
    assert versions(database) == list(range(1, KNOWN + 1))


def test_wait_for_another_is_bounded(migrate, database):
    with connected(database) as cursor:
        cursor.execute(f"SELECT pg_advisory_lock({LOCK})")
        done = migrate()
    assert done.returncode == 1
    assert "waiting for another migrate of this schema" in done.stderr
    assert schemas(database) == {"public"}


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--sql",)])
def test_newer_schema_is_refused(migrate, database, options):
    assert migrate().returncode == 0
    with connected(database) as cursor:
        cursor.execute("INSERT INTO awa.schema_migrations VALUES (%s, 'future')", (KNOWN + 4,))
    before = objects(database)
    done = migrate(*options)
    assert (done.returncode, done.stdout) == (1, "")
    assert (f"schema awa is at version {KNOWN + 4}, this binary knows up to {KNOWN}:"
            " use a newer binary") in done.stderr
    assert objects(database) == before


HALF_INSTALLED = {
    "a table but no ledger": "CREATE SCHEMA awa; CREATE TABLE awa.ready_entries (x int)",
    "a function but no ledger": "CREATE SCHEMA awa; CREATE FUNCTION awa.f() RETURNS int"
                                " LANGUAGE sql AS 'SELECT 1'",
    "an empty ledger": "CREATE SCHEMA awa; CREATE TABLE awa.schema_migrations"
                       " (version int PRIMARY KEY, name text)",
    "a gap": "CREATE SCHEMA awa; CREATE TABLE awa.schema_migrations"
             " (version int PRIMARY KEY, name text); INSERT INTO awa.schema_migrations VALUES (0, 'x')",
}


@pytest.mark.parametrize("what", HALF_INSTALLED)
def test_half_installed_schema_is_refused(migrate, database, what):
    with connected(database) as cursor:
        cursor.execute(HALF_INSTALLED[what])
    before = objects(database)
    done = migrate()
    assert (done.returncode, done.stdout) == (1, "")
    assert "half installed" in done.stderr
    assert objects(database) == before


def test_ledger_of_another_program_is_refused(migrate, database):
    assert migrate().returncode == 0
    with connected(database) as cursor:
        cursor.execute("UPDATE awa.schema_migrations SET name = 'users' WHERE version = 1")
    done = migrate()
    assert done.returncode == 1
    assert "is not from this program" in done.stderr


def test_failing_migration_leaves_nothing(migrate, cluster, database):
    name = database.split("/")[3].split("?")[0]
    cluster.execute("CREATE FUNCTION public.refuse() RETURNS event_trigger LANGUAGE plpgsql AS"
                    " $$ BEGIN RAISE 'no functions today' USING ERRCODE = 'XX001'; END $$;"
                    " CREATE EVENT TRIGGER refuse ON ddl_command_end WHEN TAG IN ('CREATE FUNCTION')"
                    " EXECUTE FUNCTION public.refuse()", database=name)
    done = migrate()
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"migrate: 0001_\w+/\w+\.sql: no functions today \(SQLSTATE XX001\)\n", done.stderr)
    assert schemas(database) == {"public"}
    cluster.execute("DROP EVENT TRIGGER refuse", database=name)
    assert migrate().returncode == 0


def test_the_line_that_the_server_cannot_run_is_told(migrate, cluster, database):
    """A server that lacks a function which the migration uses."""
    cluster.execute("ALTER FUNCTION pg_catalog.clock_timestamp() RENAME TO gone", database=database.split("/")[3].split("?")[0])
    done = migrate()
    told = re.search(r"migrate: (0001_\w+/\w+\.sql), line (\d+): function clock_timestamp", done.stderr)
    assert told, done.stderr
    assert "clock_timestamp" in (ROOT / "sql" / told[1]).read_text(encoding="utf-8").splitlines()[int(told[2]) - 1]


def test_dry_run_only_lists(migrate, database):
    done = migrate("--dry-run")
    assert done.returncode == 0
    for folder in MIGRATIONS:
        files = len(list((ROOT / "sql" / folder).glob("*.sql")))
        assert f"would apply {folder} ({files} files)" in done.stdout
    assert schemas(database) == {"public"}


def test_printed_sql_does_the_same(migrate, database, tmp_path):
    printed = migrate("--sql")
    assert printed.returncode == 0
    assert schemas(database) == {"public"}
    script = tmp_path / "migrate.sql"
    script.write_text(printed.stdout, encoding="utf-8")
    subprocess.run(["psql", "-X", "-q", "-f", script, database], check=True, timeout=DEADLINE_S,
                   env=os.environ | {"PGOPTIONS": "-c client_min_messages=warning"})
    done = migrate()
    assert (done.returncode, done.stdout) == (0, f"schema awa is at version {KNOWN}, nothing to do\n")


@pytest.mark.parametrize("url", [
    "postgresql://u:hunter2@[::1",
    "postgresql://u:hunter2@/db?host=/nonexistent",
    "host=/nonexistent password=hunter2",
    "host=/nonexistent password='hunter2",
])
def test_password_is_never_printed(migrate, url):
    done = migrate(url=url)
    assert done.returncode == 1
    assert done.stderr.startswith("awa-proxy migrate: ") and not done.stderr.endswith("\n\n")
    assert "hunter2" not in done.stdout + done.stderr
    for mistyped in (url, f"--databaze={url}", f"--sql={url}"):
        done = migrate(mistyped, url=None)
        assert done.returncode == 2
        assert "hunter2" not in done.stdout + done.stderr


@pytest.mark.parametrize("schema,why", [("x" * 64, "longer than 63 bytes"), ("ü" * 32, "longer than 63 bytes"),
                                        ("", "must not be empty")])
def test_a_schema_that_can_not_be_is_refused(migrate, database, schema, why):
    """Postgres would cut a long name, and the next run not find what this one made."""
    before = schemas(database)
    done = migrate("--schema", schema)
    assert (done.returncode, done.stderr) == (2, f"awa-proxy migrate: schema: {why}\n")
    assert schemas(database) == before


def test_closed_stderr_does_not_garble_the_connection(awa_proxy, database):
    done = subprocess.run(["bash", "-c", 'exec "$0" "$@" 2>&-', *command(awa_proxy, database)], check=False,
                          timeout=DEADLINE_S, stdout=subprocess.DEVNULL)
    assert done.returncode == 0
    assert versions(database) == list(range(1, KNOWN + 1))


def test_misuse(migrate):
    assert migrate(url=None, env={"AWA_SCHEMA": "awa"}).returncode == 2
    nonsense, stray, both = migrate("--nonsense"), migrate("stray"), migrate("--sql", "--dry-run")
    assert [done.returncode for done in (nonsense, stray, both)] == [2, 2, 2]
    assert nonsense.stderr.startswith("awa-proxy migrate: unrecognized option '--nonsense'")
    assert "takes options only" in stray.stderr
    assert "only one of" in both.stderr
    assert migrate("--help").returncode == migrate("-h").returncode == 0


def test_rebase_needs_a_migrated_schema(migrate, database):
    early = migrate("--rebase")
    assert early.returncode == 1
    assert "migrate it first" in early.stderr
    assert "awa" not in schemas(database)


def test_rebase_names_who_is_connected_and_says_what_to_do(migrate, database):
    assert migrate().returncode == 0
    with connected(database) as cursor:
        cursor.execute("SELECT awa.register_instance(7, 'here/1')")
        cursor.connection.commit()
        refused = migrate("--rebase")
    assert refused.returncode == 1
    assert "migrate: rebase: schema awa has proxies connected: here/1 (instance 7) (SQLSTATE 55006). Stop all of them first.\n" in refused.stderr


def test_rebase_repairs_foreign_state(migrate, database):
    """A lane and a body of a cluster whose transaction ids are far ahead (tests/sql/test_restore.py moves a whole schema)."""
    assert migrate().returncode == 0
    with connected(database) as cursor:
        cursor.execute("SELECT awa.enqueue('moved', 'kind')")
        cursor.execute("UPDATE awa.ready_entries_00 SET xid = '99999999'")
        cursor.connection.commit()
        with pytest.raises(Exception, match="migrate --rebase"):
            cursor.execute("SELECT * FROM awa.claim(1, 2, ARRAY['moved'], 1, 1000)")
        cursor.connection.rollback()
    done = migrate("--rebase")
    assert done.returncode == 0, done.stderr
    assert "schema awa is rebased" in done.stdout
    assert scalar(database, "SELECT cardinality(job_ids) FROM awa.claim(1, 2, ARRAY['moved'], 1, 1000)") == 1
