-- Closing: proves that a slot of the queue ring holds nothing a claim may ever need, and takes it out of the hot path's sight.
--
-- In this order: the pointer has moved past the slot and its key can be had exclusively, so no writer is left and the number of its
-- ready rows is fixed (sealed, counted once); each of those rows was claimed or buried; no lane's newest state lies in it. States are
-- carried to the current slot first, each under its lane's claim mutex: a claim that reads slots 2 and 3 of its order holds the same
-- mutex, so it never misses the newest state. A closed slot still holds bodies and terminal facts until prune.

SELECT pg_temp.create_slot_function(16, $sig$
    count_ready(p_slot int) RETURNS bigint LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT count(*) FROM ready_entries_00);
$branch$);
SELECT pg_temp.create_slot_function(16, $sig$
    count_taken(p_slot int) RETURNS bigint LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT coalesce(sum(n), 0) FROM ready_claim_attempt_batches_00) + (SELECT count(*) FROM ready_tombstones_00);
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

-- Carries the newest states that lie in spent slots to the current one, at most p_limit; returns how many. A lane that is being
-- claimed is left for the next call.
-- Locks: maintenance key (tried), claim mutexes of the lanes (tried, until commit), the current slot (shared, tried). Waits for nobody.
-- Idempotent: a state that was carried is no longer in a spent slot.
CREATE FUNCTION carry_lanes(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_slot smallint;
    v_lane bigint;
    v_state lane_state;
    v_carried int := 0;
BEGIN
    PERFORM require_read_committed('carry_lanes');
    IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 3)) THEN
        RETURN 0;
    END IF;
    FOR v_slot IN SELECT g.slot FROM sealed_generations() g JOIN queue_ring_sealed s USING (generation) WHERE count_taken(g.slot) = s.ready_rows LOOP
        FOREACH v_lane IN ARRAY lanes_with_states(v_slot, -1, 1000000) LOOP
            EXIT WHEN v_carried >= p_limit;
            -- A look without the mutex first: most lanes have moved on by themselves.
            CONTINUE WHEN (read_lane_state(open_queue_slots(), v_lane)).slot <> v_slot;
            CONTINUE WHEN NOT pg_try_advisory_xact_lock(advisory_key('lane', v_lane));
            v_state := read_lane_state(open_queue_slots(), v_lane);
            CONTINUE WHEN v_state.slot <> v_slot;
            PERFORM write_lane_state((enter_queue_slot() & 15)::int, v_lane, v_state);
            v_carried := v_carried + 1;
        END LOOP;
    END LOOP;
    RETURN v_carried;
END $$;

-- Seals slots whose writers are gone, and closes those that are spent and hold no newest state; returns how many it closed.
-- Locks: maintenance key (tried), the keys of the slots it looks at (exclusive, tried, until commit: nobody waits for them). Waits for nobody.
-- Idempotent: facts are appended once.
CREATE FUNCTION close_slots() RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    v_sealed queue_ring_slots;
    v_rows bigint;
    v_closed int := 0;
BEGIN
    PERFORM require_read_committed('close_slots');
    IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 4)) THEN
        RETURN 0;
    END IF;
    FOR v_sealed IN SELECT * FROM sealed_generations() LOOP
        SELECT ready_rows INTO v_rows FROM queue_ring_sealed WHERE generation = v_sealed.generation;
        IF NOT FOUND THEN
            CONTINUE WHEN NOT slot_is_quiet(v_sealed.slot);
            v_rows := count_ready(v_sealed.slot);
            INSERT INTO queue_ring_sealed (generation, ready_rows) VALUES (v_sealed.generation, v_rows);
        END IF;
        CONTINUE WHEN count_taken(v_sealed.slot) <> v_rows OR slot_holds_newest_state(v_sealed.slot);
        INSERT INTO queue_ring_closed (generation) VALUES (v_sealed.generation);
        v_closed := v_closed + 1;
    END LOOP;
    RETURN v_closed;
END $$;

-- Whether some lane's newest state lies in this slot.
CREATE FUNCTION slot_holds_newest_state(p_slot smallint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_open smallint[] := open_queue_slots();
    v_lane bigint;
BEGIN
    FOREACH v_lane IN ARRAY lanes_with_states(p_slot, -1, 1000000) LOOP
        IF (read_lane_state(v_open, v_lane)).slot = p_slot THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;
