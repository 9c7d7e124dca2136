"""The rings: they turn under load, rest when idle, lose nothing, and give back what is spent, whoever keeps something open."""
import pytest

from engine import DAY_MS, DONE, FAIL, QUEUE_SLOTS, RETRY, Session

LAPS = QUEUE_SLOTS + 2


def pages(db, ring="queue"):
    """Slots of a ring that hold anything."""
    tables = db.value(f"SELECT awa.{ring}_ring_tables()")
    return {slot for slot, in db.rows(
        "SELECT DISTINCT right(relname, 2)::int FROM pg_class WHERE relnamespace = 'awa'::regnamespace AND relkind = 'r'"
        " AND left(relname, -3) = ANY (%s) AND pg_relation_size(oid) > 0", (tables,))}


def settle(db, ticks=4):
    for _ in range(ticks):
        db.maintain()


def test_trap_22_transaction_open_across_a_whole_lap(db):
    app = db.session()
    app.begin()
    ids = app.enqueue_sql(5)
    before = db.generation()
    for _ in range(LAPS):
        db.lap()
    assert db.generation() - before >= QUEUE_SLOTS
    app.commit()
    settle(db)
    assert db.counts() == {"available": 5}
    claim = db.claim()
    assert claim.ids == ids
    assert {job.args for job in claim} == {"{}"}
    assert db.complete(claim) == [DONE] * 5
    settle(db)
    assert db.counts() == {"completed": 5}
    assert len(pages(db)) <= 2, "nothing of it is left behind"


def test_paused_queue_keeps_its_rows_over_many_laps(db):
    ids = db.enqueue(5)
    home = db.slot()
    for _ in range(LAPS):
        db.lap()
    assert db.counts() == {"available": 5}
    assert pages(db) >= {home}
    assert len(pages(db)) <= 4, "one kept slot keeps no other"
    assert db.work() == ids
    assert db.counts("traffic") == {"completed": LAPS}


def test_running_job_keeps_its_body_over_many_laps(db):
    ids = db.enqueue(2, args='"mine"', max_attempts=1)
    claim = db.claim()
    for _ in range(LAPS):
        db.lap()
    assert db.counts() == {"running": 2}
    assert db.finish(claim[:1], FAIL, error="late") == [DONE]
    assert db.complete(claim[1:]) == [DONE]
    assert db.rows("SELECT job_id, args::text, state::text FROM awa.terminal_jobs WHERE queue = 'q' ORDER BY 1") == [
        (ids[0], '"mine"', "failed"), (ids[1], '"mine"', "completed")]


def test_full_ring_goes_on_in_its_current_slot(db):
    """Every slot kept by a paused job: rotation stops, enqueue and claim do not."""
    kept = []
    for _ in range(QUEUE_SLOTS + 3):
        kept += db.enqueue(queue="paused")
        db.enqueue()
        assert len(db.work()) == 1
        db.maintain()
    assert db.generation() == QUEUE_SLOTS
    assert not db.rotate()
    assert db.work(queues=["paused"]) == kept
    settle(db, QUEUE_SLOTS + 2)
    assert len(pages(db)) <= 1
    assert db.generation() > QUEUE_SLOTS


def test_trap_49_state_outlives_the_slot_it_was_in(db):
    """A late row is claimed from an old slot, the slots with the lane's states are closed, the bodies stay: none again."""
    paused = db.enqueue(queue="paused")          # keeps the first slot open, with every body in it
    claimed = db.enqueue(6)
    assert db.claim(4).ids == claimed[:4]
    late = db.session()
    late.begin()
    late_ids = late.enqueue_sql(3)
    db.rotate()
    assert db.claim(1).ids == claimed[4:5]
    db.enqueue(queue="traffic")
    db.work(queues=["traffic"])
    db.rotate()
    late.commit()
    assert db.claim().ids == claimed[5:] + late_ids
    for _ in range(5):
        db.lap(retention_ms=DAY_MS)
    assert len(db.open_generations()) <= 3, "slots in between were closed"
    assert db.claim().ids == []
    fresh = db.enqueue(2)
    assert db.claim().ids == fresh
    assert db.claim(queues=["paused"]).ids == paused


def test_trap_49_late_row_of_a_lane_whose_states_were_carried(db):
    late = db.session()
    late.begin()
    late_ids = late.enqueue_sql(3)
    done = db.enqueue(6)
    assert db.work() == done
    for _ in range(6):
        db.lap(retention_ms=DAY_MS)
    late.commit()
    assert db.work() == late_ids
    for _ in range(3):
        db.lap()
    assert db.work() == []


def test_trap_24_idle_system_does_nothing(db):
    db.enqueue(3, run_at="2099-01-01 00:00+00")
    db.enqueue(100)
    db.work()
    settle(db, 6)
    def state():
        return db.rows("SELECT last_value FROM awa.queue_ring_pointer UNION ALL SELECT last_value FROM awa.claim_ring_pointer"
                       " UNION ALL SELECT sum(relfilenode::bigint)::bigint FROM pg_class WHERE relnamespace = 'awa'::regnamespace")
    before, wal_before = state(), db.wal_position()
    for _ in range(100):
        assert db.maintain() == 0
        assert db.claim().ids == []
    wal = db.wal_position() - wal_before
    print(f"WAL of 100 idle ticks: {wal} B")
    assert state() == before
    assert wal < 1000  # Postgres' own: a record of the running transactions every 15 s


def test_trap_24_drained_slots_are_given_back(db):
    for _ in range(5):
        db.enqueue(10)
        db.work()
        db.maintain(retention_ms=DAY_MS)
    assert len(pages(db)) >= 5 and len(pages(db, "claim")) >= 5
    settle(db, 12)
    assert len(pages(db)) <= 1
    assert len(pages(db, "claim")) <= 1
    assert db.counts() == {"completed": 50}
    assert len(db.open_generations()) == 1


def test_retention_keeps_history_and_receipts(db):
    db.enqueue(3)
    claim = db.claim()
    db.complete(claim)
    for _ in range(4):
        db.lap(retention_ms=DAY_MS)
    assert db.count("terminal_jobs WHERE queue = 'q'") == 3
    assert db.complete(claim) == [2, 2, 2]
    settle(db)
    assert db.count("terminal_jobs WHERE queue = 'q'") == 0
    assert db.counts() == {"completed": 3}


def test_slots_closed_a_moment_ago_are_not_pruned(db):
    db.enqueue()
    db.work()
    db.maintain(closed_ms=DAY_MS)
    db.maintain(closed_ms=DAY_MS)
    assert db.count("queue_ring_closed") == 1
    assert db.count("terminal_jobs") == 1
    db.prune()
    assert db.count("terminal_jobs") == 0


def test_trap_48_foreign_transactions_do_not_stop_reclamation(cluster, db):
    cluster.execute("CREATE TABLE IF NOT EXISTS open_work (x int)", database="awa")
    foreign = Session(cluster.superuser_url("awa"))
    foreign.begin()
    foreign.rows("INSERT INTO open_work VALUES (1)")
    db.rows("CREATE TABLE public.own_work (x int)")
    db.rows("CREATE TABLE public.forgotten_work (x int)")
    own = db.session()
    own.begin()
    own.rows("INSERT INTO public.own_work VALUES (1)")
    forgotten = db.session()
    forgotten.begin()
    forgotten.rows("INSERT INTO public.forgotten_work VALUES (1)")
    forgotten.rows("PREPARE TRANSACTION 'forgotten'")
    for _ in range(LAPS):
        db.lap()
    settle(db)
    assert db.generation() > LAPS
    assert len(db.open_generations()) <= 2 and len(pages(db)) <= 2
    assert db.counts("traffic") == {"completed": LAPS}
    foreign.close()


def test_trap_48_prepared_enqueue_keeps_its_own_slot_only(db):
    forgotten = db.session()
    forgotten.begin()
    ids = forgotten.enqueue_sql(2)
    forgotten.rows("PREPARE TRANSACTION %s", (db.name,))
    for _ in range(LAPS):
        db.lap()
    assert len(pages(db)) <= 3
    db.rows("COMMIT PREPARED %s", (db.name,))
    assert db.work() == ids


def test_trap_23_prune_steps_around_a_reader(db):
    for _ in range(2):
        db.enqueue()
        db.work()
        db.maintain(retention_ms=DAY_MS)
    db.rotate()
    db.close_slots()
    reader = db.session()
    reader.begin()
    reader.rows("SELECT FROM awa.ready_entries_00")
    assert pages(db) >= {0, 1}
    pruned = 0
    for _ in range(4):
        pruned += db.prune()            # a wait of two seconds would be an error
    assert pages(db) & {0, 1} == {0}
    assert pruned >= 1
    assert db.counts() == {"completed": 2}
    assert len(db.enqueue(3)) == len(db.work()) == 3, "the hot path does not notice"
    reader.commit()
    settle(db, 2)
    assert 0 not in pages(db)
    assert db.counts() == {"completed": 5}


def test_trap_25_damaged_slot_is_an_error_and_stays(db):
    db.enqueue(2)
    db.work()
    for _ in range(2):
        db.maintain(closed_ms=DAY_MS)
    assert db.count("queue_ring_closed") == 1
    db.rows("DELETE FROM awa.ready_claim_attempt_batches_00")
    with pytest.raises(Exception, match="2 rows that were neither claimed nor buried"):
        db.prune()
    assert db.count("ready_entries_00") == 2


def test_rotation_is_two_steps_and_a_crash_between_them_is_repaired(db):
    db.enqueue()
    assert db.value("SELECT awa.rotate_rings(0, 0)")
    before = db.generation()
    ids = db.enqueue(2)
    assert not db.value("SELECT awa.rotate_rings(0, 0)")
    db.rows("SELECT awa.sync_ring_pointers()")
    assert db.generation() == before + 1
    assert db.work()[1:] == ids
    db.rows("SELECT awa.sync_ring_pointers()")
    assert db.generation() == before + 1


def test_rotation_that_rolls_back_did_not_happen(db):
    db.enqueue()
    leader = db.session()
    leader.begin()
    assert leader.value("SELECT awa.rotate_rings(0, 0)")
    assert not db.rotate(), "another one is at it"
    leader.rollback()
    before = db.generation()
    assert db.rotate()
    assert db.generation() == before + 1


def test_lap_time_is_kept(db):
    db.enqueue()
    assert not db.rotate(DAY_MS, DAY_MS)
    assert db.rotate(0, DAY_MS)


def test_every_lane_is_carried_in_bounded_steps(db):
    queues = [f"lane-{n}" for n in range(30)]
    for queue in queues:
        db.enqueue(queue=queue)
    db.work(queues=queues)
    db.rotate()
    assert db.value("SELECT closed FROM awa.close_slots()") == 0, "sealed, but the newest states lie there"
    assert [db.value("SELECT awa.carry_lanes(7)") for _ in range(6)] == [7, 7, 7, 7, 2, 0]
    assert db.value("SELECT closed FROM awa.close_slots()") == 1
    assert db.open_generations() == [2]
    again = [db.enqueue(queue=queue)[0] for queue in queues]
    assert db.work(queues=queues) == again


def test_lane_that_is_being_claimed_is_carried_later(db):
    db.enqueue(4)
    assert len(db.claim()) == 4
    more = db.enqueue(2)
    assert db.claim().ids == more
    db.rotate()
    claimer = db.session()
    claimer.begin()
    claimer.claim()                 # holds the lane's mutex, hands out nothing
    db.value("SELECT closed FROM awa.close_slots()")
    assert db.value("SELECT awa.carry_lanes(100)") == 0
    db.value("SELECT closed FROM awa.close_slots()")
    assert db.open_generations() == [1, 2]
    claimer.commit()
    assert db.value("SELECT awa.carry_lanes(100)") == 1
    assert db.value("SELECT closed FROM awa.close_slots()") == 1
    assert db.claim().ids == []


def test_retried_jobs_do_not_keep_their_old_slots(db):
    ids = db.enqueue(3)
    db.finish(db.claim(), RETRY, delay_ms=3_600_000)
    for _ in range(4):
        db.lap()
    assert len(pages(db)) <= 2
    db.rows("UPDATE awa.deferred_jobs SET due_at = clock_timestamp()")
    db.promote()
    claim = db.claim()
    assert sorted(claim.ids) == ids and {job.attempt for job in claim} == {2}


def test_advisory_keys_of_different_things_differ(db):
    spaces = len(db.rows("SELECT unnest(enum_range(NULL::awa.key_space))"))
    assert db.value("SELECT count(DISTINCT awa.advisory_key(space, number)) FROM unnest(enum_range(NULL::awa.key_space)) space,"
                    " generate_series(0, 99) number") == 100 * spaces
