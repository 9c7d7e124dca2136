-- Closing: proves that a slot of the queue ring holds nothing a claim may ever need, and takes it out of the hot path's sight.
--
-- In this order: the pointer has moved past the slot and its key can be had exclusively, so no writer is left and its ready rows are a
-- fixed set (sealed); each of those rows was claimed or buried (spent); no lane's newest state lies in it (moved). States are
-- carried to the current slot first, each under its lane's claim mutex: a claim that reads slots 2 and 3 of its order holds the same
-- mutex, so it never misses the newest state. A closed slot still holds bodies and terminal facts until prune.
--
-- Nothing is counted. What a lane has handed out is what its newest state says, so a lane is spent when no row of the slot lies in what is left of
-- its windows, nor in its skip list: some index probes, however many rows were handed out. Reading that state without the lane's mutex is
-- good enough: an older state than the newest says less, and what was once spent or moved stays so. So closing walks lane by lane, keeps
-- how far it has come in queue_ring_sealed, and waits at the first lane that is not done: a call costs what is new in it.

-- The first lane from p_from on that has ready rows in this slot; NULL: none.
SELECT pg_temp.create_slot_function(16, $sig$
    next_ready_lane(p_slot int, p_from bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT lane_id FROM ready_entries_00 WHERE lane_id >= p_from ORDER BY lane_id LIMIT 1);
$branch$);

-- Whether there is a row without a tombstone among the first p_limit rows of the ranges in this slot; if not, and there are so many, the last of them.
SELECT pg_temp.create_slot_function(16, $sig$
    find_unspent(p_slot int, p_lane_id bigint, p_ranges xid_ranges, p_limit int, OUT o_found boolean, OUT o_at_xid xid8, OUT o_at_job_id bigint)
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        o_found := EXISTS (
            SELECT FROM (SELECT e.*
                           FROM unnest(p_ranges.from_xids, p_ranges.from_jobs, p_ranges.to_xids) range(from_xid, from_job, to_xid)
                          CROSS JOIN LATERAL (SELECT xid, job_id FROM ready_entries_00
                                               WHERE lane_id = p_lane_id AND (xid, job_id) > (range.from_xid, range.from_job) AND xid < range.to_xid
                                               ORDER BY xid, job_id LIMIT p_limit) e LIMIT p_limit) r
             WHERE NOT EXISTS (SELECT FROM ready_tombstones_00 t WHERE t.lane_id = p_lane_id AND t.xid = r.xid AND t.job_id = r.job_id));
        IF NOT o_found AND EXISTS (SELECT FROM ready_tombstones_00 WHERE lane_id = p_lane_id) THEN
            SELECT e.xid, e.job_id INTO o_at_xid, o_at_job_id
              FROM unnest(p_ranges.from_xids, p_ranges.from_jobs, p_ranges.to_xids) range(from_xid, from_job, to_xid)
             CROSS JOIN LATERAL (SELECT xid, job_id FROM ready_entries_00
                                  WHERE lane_id = p_lane_id AND (xid, job_id) > (range.from_xid, range.from_job) AND xid < range.to_xid
                                  ORDER BY xid, job_id LIMIT p_limit) e OFFSET p_limit - 1 LIMIT 1;
        END IF;
$branch$);

-- Whether one of these rows lies in this slot without a tombstone.
SELECT pg_temp.create_slot_function(16, $sig$
    holds_unspent(p_slot int, p_lane_id bigint, p_xids xid8[], p_job_ids bigint[]) RETURNS boolean LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN EXISTS (
            SELECT FROM unnest(p_xids, p_job_ids) key(xid, job_id)
             CROSS JOIN LATERAL (SELECT FROM ready_entries_00 WHERE lane_id = p_lane_id AND xid = key.xid AND job_id = key.job_id LIMIT 1) e
             WHERE NOT EXISTS (SELECT FROM ready_tombstones_00 t WHERE t.lane_id = p_lane_id AND t.xid = key.xid AND t.job_id = key.job_id));
$branch$);

-- Lanes that have a state in this slot, in order, at most p_limit after p_after: one index probe a lane, however many states it has.
SELECT pg_temp.create_slot_function(16, $sig$
    lanes_with_states(p_slot int, p_after bigint, p_limit int) RETURNS bigint[] LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN ARRAY(
            WITH RECURSIVE lane(lane_id) AS (
                (SELECT lane_id FROM lane_states_00 WHERE lane_id > p_after ORDER BY lane_id LIMIT 1)
                UNION ALL
                SELECT n.lane_id FROM lane CROSS JOIN LATERAL (SELECT s.lane_id FROM lane_states_00 s WHERE s.lane_id > lane.lane_id ORDER BY s.lane_id LIMIT 1) n)
            SELECT lane_id FROM lane LIMIT p_limit);
$branch$);

-- How many lanes one call of close_slots or carry_lanes looks at, and how many rows of one lane: a few milliseconds.
CREATE FUNCTION max_close_lanes() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 100 $$;
CREATE FUNCTION max_close_rows() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 2000 $$;
-- The place behind all lanes.
CREATE FUNCTION no_lane() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 9223372036854775807 $$;

-- What a lane has not handed out, its skip list aside, as ranges in the order of their keys, above (p_xid, p_job_id). Both windows: what is left of
-- the present one, and all of the next, whose end is open: a row from beyond the present is of another cluster (90_rebase.sql), and not handed out.
CREATE FUNCTION ranges_left(p_state lane_state, p_xid xid8, p_job_id bigint) RETURNS xid_ranges
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now xid_ranges := window_ranges(p_state);
    v_next xid_ranges := window_ranges(next_window(p_state));
BEGIN
    v_next.to_xids[cardinality(v_next.to_xids)] := '18446744073709551615';
    RETURN (SELECT (array_agg(CASE WHEN r.below THEN p_xid ELSE r.from_xid END ORDER BY r.from_xid, r.from_job), array_agg(CASE WHEN r.below THEN p_job_id ELSE r.from_job END ORDER BY r.from_xid, r.from_job),
                    array_agg(r.to_xid ORDER BY r.from_xid, r.from_job))::xid_ranges
              FROM (SELECT u.*, (u.from_xid, u.from_job) < (p_xid, p_job_id) AS below
                      FROM unnest(v_now.from_xids || v_next.from_xids, v_now.from_jobs || v_next.from_jobs, v_now.to_xids || v_next.to_xids) u(from_xid, from_job, to_xid)) r);
END $$;

-- Walks on over the lanes of a sealed slot as long as their rows there are spent.
CREATE FUNCTION walk_spent(p_slot smallint, INOUT p_sealed queue_ring_sealed, INOUT p_lanes_left int)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_open CONSTANT smallint[] := open_queue_slots();
    v_lane bigint;
    v_state lane_state;
    v_unspent record;
BEGIN
    WHILE p_lanes_left > 0 AND p_sealed.spent_lane < no_lane() LOOP
        p_lanes_left := p_lanes_left - 1;
        v_lane := coalesce(next_ready_lane(p_slot, p_sealed.spent_lane), no_lane());
        IF v_lane > p_sealed.spent_lane THEN
            p_sealed.spent_lane := v_lane;
            p_sealed.spent_xid := '0';
            p_sealed.spent_job := -1;
            CONTINUE WHEN v_lane = no_lane();
        END IF;
        v_state := read_lane_state(v_open, v_lane);
        -- A state of another cluster says nothing about what was enqueued in this one.
        EXIT WHEN pg_snapshot_xmax(v_state.hi) > pg_snapshot_xmax(pg_current_snapshot());
        EXIT WHEN v_state.skipped_job_ids IS NOT NULL AND holds_unspent(p_slot, v_lane, v_state.skipped_xids, v_state.skipped_job_ids);
        v_unspent := find_unspent(p_slot, v_lane, ranges_left(v_state, p_sealed.spent_xid, p_sealed.spent_job), max_close_rows());
        EXIT WHEN v_unspent.o_found;
        IF v_unspent.o_at_xid IS NULL THEN
            p_sealed.spent_lane := v_lane + 1;
            p_sealed.spent_xid := '0';
            p_sealed.spent_job := -1;
        ELSE
            -- Many tombstones: as far as we looked, and as much as a dozen lanes.
            p_sealed.spent_xid := v_unspent.o_at_xid;
            p_sealed.spent_job := v_unspent.o_at_job_id;
            p_lanes_left := p_lanes_left - 12;
        END IF;
    END LOOP;
END $$;

-- Walks on over the lanes with states in a spent slot as long as their newest ones lie elsewhere. With p_carry those that do not are carried to the
-- current slot, each under its lane's claim mutex; a lane that is being claimed is left, and the walk begins with it the next time.
CREATE FUNCTION walk_moved(p_slot smallint, p_carry boolean, INOUT p_sealed queue_ring_sealed, INOUT p_lanes_left int, OUT o_carried int)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_lanes bigint[] := lanes_with_states(p_slot, p_sealed.moved_lane, p_lanes_left);
    v_lane bigint;
    v_state lane_state;
    v_left_some boolean := false;
BEGIN
    o_carried := 0;
    FOREACH v_lane IN ARRAY v_lanes LOOP
        p_lanes_left := p_lanes_left - 1;
        -- A look without the mutex first: most lanes have moved on by themselves.
        v_state := read_lane_state(open_queue_slots(), v_lane);
        IF v_state.slot = p_slot THEN
            EXIT WHEN NOT p_carry;
            IF NOT pg_try_advisory_xact_lock(advisory_key('lane', v_lane)) THEN
                v_left_some := true;
                CONTINUE;
            END IF;
            v_state := read_lane_state(open_queue_slots(), v_lane);
            IF v_state.slot = p_slot THEN
                PERFORM write_lane_state((enter_queue_slot() & 15)::int, v_lane, v_state);
                o_carried := o_carried + 1;
            END IF;
        END IF;
        IF NOT v_left_some THEN
            p_sealed.moved_lane := v_lane;
        END IF;
    END LOOP;
    IF p_lanes_left > 0 AND p_sealed.moved_lane >= ALL (v_lanes) THEN
        p_sealed.moved_lane := no_lane();
    END IF;
END $$;

-- Generations that the pointer has left and that are not closed, oldest first.
CREATE FUNCTION sealed_generations() RETURNS SETOF queue_ring_slots
LANGUAGE sql VOLATILE AS $$
    SELECT s.* FROM queue_ring_slots s
     WHERE s.generation < (SELECT last_value >> 4 FROM queue_ring_pointer) AND NOT EXISTS (SELECT FROM queue_ring_closed c WHERE c.generation = s.generation)
     ORDER BY s.generation
$$;

-- Whether no writer of this slot is left. Takes the slot's key exclusively, by trying, and reads the pointer again under it.
CREATE FUNCTION slot_is_quiet(p_slot smallint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN pg_try_advisory_xact_lock(advisory_key('queue_slot', p_slot)) AND (SELECT last_value & 15 FROM queue_ring_pointer) <> p_slot;
END $$;

-- Keeps how far closing has come. Writes only what is new.
CREATE FUNCTION save_sealed(p_sealed queue_ring_sealed) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE queue_ring_sealed SET spent_lane = (p_sealed).spent_lane, spent_xid = (p_sealed).spent_xid, spent_job = (p_sealed).spent_job, moved_lane = (p_sealed).moved_lane
     WHERE generation = (p_sealed).generation
       AND (spent_lane, spent_xid, spent_job, moved_lane) <> ((p_sealed).spent_lane, (p_sealed).spent_xid, (p_sealed).spent_job, (p_sealed).moved_lane)
$$;

-- Carries the newest states that lie in spent slots to the current one, looking at p_limit lanes at most; returns how many it carried. A lane that is being
-- claimed is left for the next call.
-- Locks: the maintenance key of closing (tried), claim mutexes of the lanes (tried, until commit), the current slot (shared, tried). Waits for nobody.
-- Idempotent: a state that was carried is no longer in a spent slot.
CREATE FUNCTION carry_lanes(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_slot queue_ring_slots;
    v_sealed queue_ring_sealed;
    v_walk record;
    v_left int := p_limit;
    v_carried int := 0;
BEGIN
    PERFORM require_read_committed('carry_lanes');
    IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 4)) THEN
        RETURN 0;
    END IF;
    FOR v_slot IN SELECT * FROM sealed_generations() LOOP
        EXIT WHEN v_left <= 0;
        SELECT * INTO v_sealed FROM queue_ring_sealed WHERE generation = v_slot.generation AND spent_lane = no_lane() AND moved_lane < no_lane();
        CONTINUE WHEN NOT FOUND;
        v_walk := walk_moved(v_slot.slot, true, v_sealed, v_left);
        PERFORM save_sealed(v_walk.p_sealed);
        v_left := v_walk.p_lanes_left;
        v_carried := v_carried + v_walk.o_carried;
    END LOOP;
    RETURN v_carried;
END $$;

-- Seals slots whose writers are gone, and closes those that are spent and hold no newest state; returns how many it closed. Looks at max_close_lanes() lanes
-- at most, and goes on from there in the next call; again: which is worth being made at once.
-- Locks: the maintenance key of closing (tried), the keys of slots it seals (exclusive, tried, until commit: nobody waits for them). Waits for nobody.
-- Idempotent: facts are appended once.
CREATE FUNCTION close_slots(OUT closed int, OUT again boolean)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_slot queue_ring_slots;
    v_sealed queue_ring_sealed;
    v_walk record;
    v_left int := max_close_lanes();
BEGIN
    PERFORM require_read_committed('close_slots');
    closed := 0;
    again := false;
    IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 4)) THEN
        RETURN;
    END IF;
    FOR v_slot IN SELECT * FROM sealed_generations() LOOP
        EXIT WHEN v_left <= 0;
        SELECT * INTO v_sealed FROM queue_ring_sealed WHERE generation = v_slot.generation;
        IF NOT FOUND THEN
            CONTINUE WHEN NOT slot_is_quiet(v_slot.slot);
            INSERT INTO queue_ring_sealed (generation) VALUES (v_slot.generation) RETURNING * INTO v_sealed;
        END IF;
        v_walk := walk_spent(v_slot.slot, v_sealed, v_left);
        v_sealed := v_walk.p_sealed;
        v_left := v_walk.p_lanes_left;
        IF v_sealed.spent_lane = no_lane() THEN
            v_walk := walk_moved(v_slot.slot, false, v_sealed, v_left);
            v_sealed := v_walk.p_sealed;
            v_left := v_walk.p_lanes_left;
        END IF;
        IF v_sealed.spent_lane = no_lane() AND v_sealed.moved_lane = no_lane() THEN
            -- Every claim of its rows is committed, so the sequence is past their numbers.
            INSERT INTO queue_ring_closed (generation, upto_batch) VALUES (v_slot.generation, coalesce(pg_sequence_last_value('lease_claim_batch_id_seq'), 0));
            closed := closed + 1;
        ELSE
            PERFORM save_sealed(v_sealed);
        END IF;
    END LOOP;
    again := v_left <= 0;
END $$;
