"""What a database, a role or a session may be set to, without any harm to the engine; and what the engine leaves as it was."""
import psycopg2
import pytest

from engine import COMPLETE, FAIL, RELEASE, RETRY, SNOOZE, WORKER_LOST, DAY_MS, DONE, Item, Session


def lead_a_life(db):
    """Everything that happens to jobs, and all of maintenance, around the ring and over again."""
    for outcome in (COMPLETE, RETRY, SNOOZE, FAIL, RELEASE, WORKER_LOST):
        db.enqueue(1)
        [job] = db.claim()
        assert db.finish([job], outcome, delay_ms=DAY_MS if outcome in (RETRY, SNOOZE) else None) == [DONE]
        assert db.cancel([job.job_id])[job.job_id] in (DONE, 3)
    db.enqueue(3)
    assert db.complete(db.claim(2)) == [DONE, DONE]
    db.enqueue_bulk(3, queue="lost")
    db.claim(3, queues=["lost"], instance=77)
    assert sum(db.rescue() for _ in range(3)) == 3
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    assert db.promote() == 3
    db.rows("SELECT awa.claim_idempotency_key('k', '{1}')")
    db.rows("UPDATE awa.idempotency_keys SET created_at = created_at - interval '1 hour'")
    assert db.value("SELECT awa.purge_idempotency_keys(10)") == 1
    db.rows("SELECT awa.configure_queue('q', 2), awa.configure_queue('q', 1)")
    db.work(["lost", "q"])
    for _ in range(18):
        db.lap()
    assert db.counts() == {"completed": 4, "cancelled": 4, "failed": 1} and db.counts("lost") == {"completed": 3}
    db.rows("SELECT awa.rebase()")
    db.enqueue(1)
    assert len(db.work()) == 1


def test_trap_35_everything_is_published(db, cluster):
    superuser = Session(cluster.superuser_url(db.name))
    superuser.rows("CREATE PUBLICATION everything FOR ALL TABLES")
    superuser.close()
    lead_a_life(db)


@pytest.mark.parametrize("setting", ["plpgsql.extra_errors = 'all'", "quote_all_identifiers = on", "search_path = ''"])
def test_settings_of_a_session_do_not_matter(db, setting):
    db.rows(f"SET {setting}")
    lead_a_life(db)


def test_nesting_is_measured_with_backslashes_in_ordinary_strings(db):
    """A function's text is read under the settings of whoever calls it first."""
    db.rows("SET standard_conforming_strings = off; SET escape_string_warning = off")
    text = '"' + "[\\\\\\\"{" * 40 + '"'
    _, refused = db.enqueue_items([Item(f'[{text}, {text}]', "nested"), Item("[" * 65 + text + "]" * 65, "nested")])
    assert refused == {2: ("22023", "args must be nested at most 64 levels deep")}
    lead_a_life(db)


def test_tables_of_the_session_do_not_hide_the_engines(db):
    for table, in db.rows("SELECT relname FROM pg_class WHERE relnamespace = 'awa'::regnamespace AND relkind IN ('r', 'v')"):
        db.rows(f"CREATE TEMP TABLE {table} (nothing int)")
    lead_a_life(db)


@pytest.mark.parametrize("call", ["SELECT * FROM awa.prune_slots(0, 0)", "SELECT awa.rebase()"])
def test_callers_lock_timeout_is_as_it_was(db, call):
    db.enqueue(1)
    db.work()
    db.rotate()
    db.close_slots()
    db.close_slots()
    db.begin()
    before = db.value("SHOW lock_timeout")
    db.rows(call)
    assert db.value("SHOW lock_timeout") == before
    db.commit()


def test_role_that_was_set_is_refused(db, cluster):
    """It does not see the sessions of the role that logged in: one that lives would look gone."""
    cluster.execute("DROP ROLE IF EXISTS member; CREATE ROLE member LOGIN IN ROLE awa_owner")
    member = Session(db.url.replace("awa_owner@", "member@"))
    [(pid, started)] = member.rows("SELECT pid, started FROM awa.backend_identity()")
    assert pid == member.pid and started is not None, "a member is as good as the owner"
    member.rows("SET ROLE awa_owner")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="role awa_owner may not see the sessions of member") as refusal:
        member.rows("SELECT * FROM awa.backend_identity()")
    assert refusal.value.diag.message_hint
    member.close()
    cluster.execute("DROP ROLE member")


def test_another_schema_is_refused_by_the_plan(db):
    """For as long as a plan lasts it is not asked again; when what it calls was dropped, it is."""
    there = db.value("SELECT awa.schema_id()")
    assert (there >> 32, there & 0xFFFFFFFF) == (db.value("SELECT oid::bigint FROM pg_database WHERE datname = current_database()"),
                                                 db.value("SELECT 'awa'::regnamespace::oid::bigint"))
    for other in there ^ 1, there ^ 1 << 32, None:
        with pytest.raises(psycopg2.Error, match="schema awa was made anew") as refused:
            db.rows("SELECT awa.require_schema(%s)", (other,))
        assert refused.value.pgcode == "JQ001"
    db.rows(f"PREPARE ask AS SELECT is_called FROM awa.job_id_seq, awa.listen() WHERE awa.require_schema({there})")
    for _ in range(10):
        assert db.rows("EXECUTE ask")
    db.rows("ALTER SCHEMA awa RENAME TO former")
    db.rows("CREATE SCHEMA awa; CREATE SEQUENCE awa.job_id_seq; CREATE FUNCTION awa.listen() RETURNS void LANGUAGE sql AS ''")
    db.rows(f"CREATE FUNCTION awa.require_schema(bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT {there} / 0 > 0 $$")
    with pytest.raises(psycopg2.Error, match="division by zero"):
        db.rows("EXECUTE ask")
