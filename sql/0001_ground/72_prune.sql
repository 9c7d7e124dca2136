-- Prune: empties slots that nobody needs any more, folding what they count into the permanent rollups.
--
-- A queue slot goes when it was closed some seconds ago (no claim that listed it as open can still be on its way), every attempt
-- made of its bodies has ended, and its youngest terminal fact is older than the retention. A claim slot goes when its writers are
-- gone, every attempt in it has ended, and the youngest closure is older than the retention, which is therefore how long a resent
-- outcome is answered. Proofs count distinct evidence over everything in the child, and are made again under the exclusive lock.
-- Without evacuation, one open attempt or one fresh terminal fact keeps its slot; the ring goes on around it.
-- TRUNCATE waits 10 ms for its lock at most, and then leaves the slot for the next tick. It is not MVCC: a snapshot older than a prune
-- no longer sees what was pruned.

-- Attempts of a claim slot that have not ended, of bodies in p_ready_slot only unless that is NULL; and when the slot's youngest ended.
-- Bits, not rows, are counted, so evidence that stands twice counts once.
CREATE TYPE claim_slot_proof AS (open_attempts bigint, youngest timestamptz);
SELECT pg_temp.create_slot_function(8, $sig$
    prove_claim_slot(p_slot int, p_ready_slot smallint) RETURNS claim_slot_proof LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (
            SELECT (coalesce(sum(b.n - bit_count(b.none | coalesce(b.completed, b.none) | coalesce(b.otherwise, b.none))), 0),
                    greatest((SELECT max(closed_at) FROM lease_claim_closure_batches_00), (SELECT max(closed_at) FROM lease_claim_closures_00)))::claim_slot_proof
              FROM (SELECT cb.n, cb.none, (SELECT bit_or(c.members) FROM lease_claim_closure_batches_00 c WHERE c.batch_id = cb.batch_id) AS completed,
                           (SELECT bit_or(set_bit(cb.none, c.idx - 1, 1)) FROM lease_claim_closures_00 c WHERE c.batch_id = cb.batch_id) AS otherwise
                      FROM (SELECT batch_id, n, repeat('0', n)::bit varying AS none FROM lease_claim_batches_00
                             WHERE p_ready_slot IS NULL OR ready_slot = p_ready_slot) cb) b);
$branch$);

-- Attempts made of bodies in one queue slot that have not ended.
CREATE FUNCTION count_open_attempts(p_ready_slot smallint) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT sum((prove_claim_slot(slot, p_ready_slot)).open_attempts) FROM generate_series(0, 7) slot);
END $$;

-- When the youngest job of a queue slot ended.
SELECT pg_temp.create_slot_function(16, $sig$
    youngest_terminal(p_slot int) RETURNS timestamptz LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN greatest((SELECT max(finalized_at) FROM receipt_completion_batches_00), (SELECT max(finalized_at) FROM done_entries_00));
$branch$);

-- Adds the terminal facts of a slot to the rollups, in key order.
SELECT pg_temp.create_slot_function(16, $sig$
    fold_terminal_counts(p_slot int) RETURNS void LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO queue_terminal_rollups (lane_id, state, n)
        SELECT f.lane_id, f.state, sum(f.n)
          FROM (SELECT lane_id, 'completed'::job_state AS state, n FROM receipt_completion_batches_00 UNION ALL SELECT lane_id, state, 1 FROM done_entries_00) f
         GROUP BY f.lane_id, f.state ORDER BY f.lane_id, f.state
        ON CONFLICT (lane_id, state) DO UPDATE SET n = queue_terminal_rollups.n + excluded.n;
$branch$);

-- Locks the tables of a slot that have pages against everybody and returns their names for TRUNCATE; NULL when none has. Raises
-- lock_not_available when a lock is not to be had within 10 ms.
CREATE FUNCTION lock_slot_tables(p_tables text[], p_slot int) RETURNS text
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_names text;
BEGIN
    SELECT string_agg(format('%I.%I', current_schema(), t || to_char(p_slot, 'FM"_"00')), ', ' ORDER BY t) INTO v_names
      FROM unnest(p_tables) t WHERE slot_has_pages(ARRAY[t], p_slot);
    IF v_names IS NOT NULL THEN
        PERFORM set_config('lock_timeout', '10ms', true);
        EXECUTE 'LOCK TABLE ' || v_names || ' IN ACCESS EXCLUSIVE MODE';
    END IF;
    RETURN v_names;
END $$;

-- Prunes one closed generation of the queue ring if it may go; false when it may not, or not now.
CREATE FUNCTION prune_queue_slot(p_generation bigint, p_slot smallint, p_retention_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_names text;
BEGIN
    IF youngest_terminal(p_slot) > clock_timestamp() - p_retention_ms * interval '1 ms' OR count_open_attempts(p_slot) > 0 THEN
        RETURN false;
    END IF;
    v_names := lock_slot_tables(queue_ring_tables(), p_slot);
    IF count_taken(p_slot) <> (SELECT ready_rows FROM queue_ring_sealed WHERE generation = p_generation) OR count_ready(p_slot) <> count_taken(p_slot)
       OR count_open_attempts(p_slot) > 0 THEN
        RAISE EXCEPTION 'slot % of the queue ring holds rows that its closing did not count', p_slot USING ERRCODE = 'data_corrupted';
    END IF;
    PERFORM fold_terminal_counts(p_slot);
    IF v_names IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || v_names;
    END IF;
    DELETE FROM queue_ring_closed WHERE generation = p_generation;
    DELETE FROM queue_ring_sealed WHERE generation = p_generation;
    DELETE FROM queue_ring_slots WHERE generation = p_generation;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- The same for a generation of the claim ring that the pointer has left.
CREATE FUNCTION prune_claim_slot(p_generation bigint, p_slot smallint, p_retention_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_proof claim_slot_proof;
    v_names text;
BEGIN
    v_proof := prove_claim_slot(p_slot, NULL);
    IF v_proof.open_attempts > 0 OR v_proof.youngest > clock_timestamp() - p_retention_ms * interval '1 ms' THEN
        RETURN false;
    END IF;
    -- Exclusive: no claim writes here any more, and no ending reads; one that comes meanwhile answers BUSY. Only now, after a proof
    -- without it, so that a slot that stays is never in anybody's way; and the proof again, since a last claim may have come between.
    IF NOT pg_try_advisory_xact_lock(advisory_key('claim_slot', p_slot)) OR (SELECT last_value & 15 FROM claim_ring_pointer) = p_slot
       OR (prove_claim_slot(p_slot, NULL)).open_attempts > 0 THEN
        RETURN false;
    END IF;
    v_names := lock_slot_tables(claim_ring_tables(), p_slot);
    IF v_names IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || v_names;
    END IF;
    DELETE FROM claim_ring_slots WHERE generation = p_generation;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Prunes at most one slot of each ring, the oldest that may go; returns how many.
-- Locks: maintenance key (tried); for a slot it prunes, ACCESS EXCLUSIVE on its children until commit, waiting 10 ms for them at most;
-- the claim slot's key (exclusive, tried). The hot path looks at neither. Idempotent: what is gone is not in the ledger.
CREATE FUNCTION prune_slots(p_completed_retention_ms bigint, p_closed_ms int) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    v_pruned int := 0;
    v_before timestamptz := clock_timestamp() - p_completed_retention_ms * interval '1 ms';
    v_queue record;
    v_claim record;
BEGIN
    PERFORM require_read_committed('prune_slots');
    IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 5)) THEN
        RETURN 0;
    END IF;
    -- A slot that took bodies or claims until lately has facts as young: no need to count them.
    FOR v_queue IN SELECT s.generation, s.slot FROM queue_ring_slots s JOIN queue_ring_closed c USING (generation) JOIN queue_ring_sealed q USING (generation)
                    WHERE c.closed_at <= clock_timestamp() - p_closed_ms * interval '1 ms' AND q.sealed_at <= v_before ORDER BY s.generation LOOP
        IF prune_queue_slot(v_queue.generation, v_queue.slot, p_completed_retention_ms) THEN
            v_pruned := v_pruned + 1;
            EXIT;
        END IF;
    END LOOP;
    FOR v_claim IN SELECT s.generation, s.slot FROM claim_ring_slots s WHERE s.generation < (SELECT last_value >> 4 FROM claim_ring_pointer)
                      AND (SELECT min(n.opened_at) FROM claim_ring_slots n WHERE n.generation > s.generation) <= v_before ORDER BY s.generation LOOP
        IF prune_claim_slot(v_claim.generation, v_claim.slot, p_completed_retention_ms) THEN
            v_pruned := v_pruned + 1;
            EXIT;
        END IF;
    END LOOP;
    RETURN v_pruned;
END $$;
