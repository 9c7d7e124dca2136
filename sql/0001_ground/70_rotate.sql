-- Rotation: gives a ring's next lap a clean slot.
--
-- Two steps in two transactions: rotate_rings() appends the new generation to the ledger (its primary key is the compare-and-swap
-- that lets one leader win), sync_ring_pointers() then moves the pointer to what the ledger says. In between writers go on in the
-- old slot. A new leader syncs before anything else. A ring nobody writes to does not rotate.

-- Whether any of the tables named p_prefix || suffix of a slot has pages.
CREATE FUNCTION slot_has_pages(p_tables text[], p_slot int) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT bool_or(pg_relation_size(format('%I.%I', current_schema(), t || to_char(p_slot, 'FM"_"00'))::regclass) > 0) FROM unnest(p_tables) t
$$;
CREATE FUNCTION queue_ring_tables() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY['ready_entries', 'ready_tombstones', 'ready_claim_attempt_batches', 'lane_states', 'receipt_completion_batches', 'done_entries']
$$;
CREATE FUNCTION claim_ring_tables() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY['lease_claim_batches', 'lease_claim_closure_batches', 'lease_claim_closures']
$$;

-- Whether a slot's lap still lasts. One that was opened in the future, because the clock has gone back, has had its lap: else it could last for years.
CREATE FUNCTION is_within_lap(p_opened_at timestamptz, p_lap_ms bigint) RETURNS boolean
LANGUAGE sql VOLATILE AS $$ SELECT clock_timestamp() >= p_opened_at AND clock_timestamp() < p_opened_at + p_lap_ms * interval '1 ms' $$;

-- Rotates the queue ring if its slot is older than p_lap_ms and has bodies, and a clean slot is left.
CREATE FUNCTION rotate_queue_ring(p_lap_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now queue_ring_slots;
    v_next smallint;
BEGIN
    SELECT * INTO v_now FROM queue_ring_slots ORDER BY generation DESC LIMIT 1;
    IF is_within_lap(v_now.opened_at, p_lap_ms) OR NOT slot_has_pages(ARRAY['ready_entries'], v_now.slot) THEN
        RETURN false;
    END IF;
    -- First the ledger, then the tables: the size of a child that is being pruned can only be had after the prune.
    WITH free AS MATERIALIZED (
        SELECT ((v_now.slot + step) % 16)::smallint AS slot, step FROM generate_series(1, 15) step
         WHERE NOT EXISTS (SELECT FROM queue_ring_slots used WHERE used.slot = (v_now.slot + step) % 16))
    SELECT slot INTO v_next FROM free WHERE NOT slot_has_pages(queue_ring_tables(), slot) ORDER BY step LIMIT 1;
    IF v_next IS NULL THEN
        RETURN false;   -- no clean slot: the current one goes on growing
    END IF;
    INSERT INTO queue_ring_slots (generation, slot, above_batch) VALUES (v_now.generation + 1, v_next, coalesce(pg_sequence_last_value('lease_claim_batch_id_seq'), 0)) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- The same for the claim ring.
CREATE FUNCTION rotate_claim_ring(p_lap_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now claim_ring_slots;
    v_next smallint;
BEGIN
    SELECT * INTO v_now FROM claim_ring_slots ORDER BY generation DESC LIMIT 1;
    IF is_within_lap(v_now.opened_at, p_lap_ms) OR NOT slot_has_pages(ARRAY['lease_claim_batches'], v_now.slot) THEN
        RETURN false;
    END IF;
    -- First the ledger, then the tables: the size of a child that is being pruned can only be had after the prune.
    WITH free AS MATERIALIZED (
        SELECT ((v_now.slot + step) % 8)::smallint AS slot, step FROM generate_series(1, 7) step
         WHERE NOT EXISTS (SELECT FROM claim_ring_slots used WHERE used.slot = (v_now.slot + step) % 8))
    SELECT slot INTO v_next FROM free WHERE NOT slot_has_pages(claim_ring_tables(), slot) ORDER BY step LIMIT 1;
    IF v_next IS NULL THEN
        RETURN false;
    END IF;
    INSERT INTO claim_ring_slots (generation, slot) VALUES (v_now.generation + 1, v_next) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Rotates what is due; true when a ring moved and sync_ring_pointers() has to follow, in a transaction of its own.
-- Locks: the maintenance key of the rings (tried). Waits for another leader's rotation of the same generation, for as long as that
-- transaction lasts. Idempotent: a generation is appended once.
CREATE FUNCTION rotate_rings(p_queue_lap_ms bigint, p_claim_lap_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    v_queue_moved boolean;
    v_claim_moved boolean;
BEGIN
    PERFORM require_read_committed('rotate_rings');
    IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 2)) THEN
        RETURN false;
    END IF;
    v_queue_moved := rotate_queue_ring(p_queue_lap_ms);
    v_claim_moved := rotate_claim_ring(p_claim_lap_ms);
    RETURN v_queue_moved OR v_claim_moved;
END $$;

-- Moves the pointers to the newest generations of the ledger. Called by the leader's own session, after every rotation and before any
-- other step of a new leader. Locks: the maintenance key of the rings (tried). Waits for nobody. Idempotent; a pointer never moves back.
CREATE FUNCTION sync_ring_pointers() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off AS $$
BEGIN
    PERFORM require_read_committed('sync_ring_pointers');
    IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 2)) THEN
        RETURN;
    END IF;
    PERFORM setval('queue_ring_pointer', s.generation * 16 + s.slot) FROM (SELECT * FROM queue_ring_slots ORDER BY generation DESC LIMIT 1) s
      WHERE s.generation * 16 + s.slot > (SELECT last_value FROM queue_ring_pointer);
    PERFORM setval('claim_ring_pointer', s.generation * 16 + s.slot) FROM (SELECT * FROM claim_ring_slots ORDER BY generation DESC LIMIT 1) s
      WHERE s.generation * 16 + s.slot > (SELECT last_value FROM claim_ring_pointer);
END $$;
