-- Prune: empties slots that nobody needs any more, folding what they count into the permanent rollups.
--
-- A queue slot goes when it was closed some seconds ago (no claim that listed it as open can still be on its way), every attempt
-- made of its bodies has ended, and its youngest terminal fact is older than the retention. A claim slot goes when its writers are
-- gone, every attempt in it has ended, and the youngest closure is older than the retention, which is therefore how long a resent
-- outcome is answered.
--
-- Both proofs walk claim batches by number, and are walked once: the batches in question are a fixed set (a closed queue slot's claims are
-- committed, and a claim slot that the pointer has left and whose key was once free has no writer any more), and what has ended stays ended. So
-- prune_states keeps how far the walk has come, and it stops at the first batch with an open attempt: a tick in which a slot may not go costs
-- one look at that batch. At last the ready rows of a queue slot are counted against what was taken and buried, also in pieces: nothing hangs on
-- it, but a slot in which that does not tally is never emptied.
-- Without evacuation, one open attempt or one fresh terminal fact keeps its slot; the ring goes on around it.
-- TRUNCATE waits 10 ms for its lock at most, and then leaves the slot for the next tick. It is not MVCC: a snapshot older than a prune
-- no longer sees what was pruned.

-- How far the proof for one generation has come. No row: it has not begun, or was no work to repeat.
CREATE TABLE prune_states (
    ring             text NOT NULL CHECK (ring IN ('queue', 'claim')),
    generation       bigint NOT NULL,
    claim_generation bigint NOT NULL,            -- in this slot of the claim ring, and all older ones,
    batch_id         bigint NOT NULL,            -- batches up to this one have ended,
    youngest         timestamptz,                -- the last of them then
    part             smallint NOT NULL DEFAULT 0, -- of the count: the table,
    page             bigint NOT NULL DEFAULT 0,  -- up to this page,
    surplus          bigint NOT NULL DEFAULT 0,  -- rows in there that were neither taken nor buried
    PRIMARY KEY (ring, generation)
);

-- Looks at p_limit batches of a claim slot at most, from the first above p_above to p_upto, of bodies in p_ready_slot only unless that is NULL: how many
-- that were, up to which one none has an open attempt, whether there is one that has, and when the youngest of those before it ended. Bits, not rows,
-- are counted, so evidence that stands twice counts once. Ranges and hash joins: a look-up for each batch would cost four times as much.
CREATE TYPE ended_batches AS (examined int, upto bigint, is_open boolean, youngest timestamptz);
SELECT pg_temp.create_slot_function(8, $sig$
    find_ended_batches(p_slot int, p_ready_slot smallint, p_above bigint, p_upto bigint, p_limit int) RETURNS ended_batches
    LANGUAGE plpgsql VOLATILE SET enable_nestloop = off $sig$, $branch$
        RETURN (
            WITH walked AS MATERIALIZED (
                SELECT batch_id, n, ready_slot FROM lease_claim_batches_00 WHERE batch_id > p_above AND batch_id <= p_upto ORDER BY batch_id LIMIT p_limit),
            reach AS MATERIALIZED (SELECT max(batch_id) AS batch_id, count(*) AS n FROM walked),
            compact AS (
                SELECT c.batch_id, bit_or(c.members) AS members, max(c.closed_at) AS youngest FROM lease_claim_closure_batches_00 c
                 WHERE c.batch_id > p_above AND c.batch_id <= (SELECT batch_id FROM reach) GROUP BY c.batch_id),
            single AS (
                SELECT c.batch_id, bit_or(set_bit(repeat('0', w.n)::bit varying, c.idx - 1, 1)) AS members, max(c.closed_at) AS youngest
                  FROM (SELECT * FROM lease_claim_closures_00 WHERE batch_id > p_above AND batch_id <= (SELECT batch_id FROM reach)) c JOIN walked w ON w.batch_id = c.batch_id
                 GROUP BY c.batch_id),
            judged AS MATERIALIZED (
                SELECT w.batch_id, greatest(c.youngest, s.youngest) AS youngest,
                       w.n > CASE WHEN c.members IS NULL OR s.members IS NULL THEN bit_count(coalesce(c.members, s.members, '')) ELSE bit_count(c.members | s.members) END AS is_open
                  FROM walked w LEFT JOIN compact c ON c.batch_id = w.batch_id LEFT JOIN single s ON s.batch_id = w.batch_id
                 WHERE p_ready_slot IS NULL OR w.ready_slot = p_ready_slot),
            opened AS MATERIALIZED (SELECT min(batch_id) AS batch_id FROM judged WHERE is_open)
            SELECT (reach.n, coalesce(opened.batch_id - 1, reach.batch_id), opened.batch_id IS NOT NULL,
                    (SELECT max(youngest) FROM judged WHERE opened.batch_id IS NULL OR judged.batch_id < opened.batch_id))::ended_batches
              FROM reach CROSS JOIN opened);
$branch$);

-- Rows of some pages of one table of a queue slot that count for (ready rows) or against (claims, tombstones) its surplus.
SELECT pg_temp.create_slot_function(16, $sig$
    count_surplus(p_slot int, p_part int, p_from tid, p_below tid) RETURNS bigint LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN CASE p_part
            WHEN 0 THEN (SELECT count(*) FROM ready_entries_00 WHERE ctid >= p_from AND ctid < p_below)
            WHEN 1 THEN (SELECT -coalesce(sum(n), 0) FROM ready_claim_attempt_batches_00 WHERE ctid >= p_from AND ctid < p_below)
            ELSE (SELECT -count(*) FROM ready_tombstones_00 WHERE ctid >= p_from AND ctid < p_below) END;
$branch$);

-- How many batches one call looks at for each ring, a page with its rows being as dear as four: below 10 ms for both, 20 on a busy machine.
CREATE FUNCTION max_prune_steps() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 1000 $$;
CREATE FUNCTION page_steps() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 4 $$;
-- The generation behind all.
CREATE FUNCTION no_generation() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 9223372036854775807 $$;

-- Walks on over the batches of the claim slots from p_state's on to p_last's, numbers above p_above up to p_upto, as long as all have ended.
CREATE FUNCTION walk_ended(p_ready_slot smallint, p_last bigint, p_above bigint, p_upto bigint, INOUT p_state prune_states, INOUT p_steps_left int)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_slot claim_ring_slots;
    v_found ended_batches;
    v_limit int;
BEGIN
    FOR v_slot IN SELECT * FROM claim_ring_slots WHERE generation BETWEEN p_state.claim_generation AND p_last ORDER BY generation LOOP
        IF v_slot.generation > p_state.claim_generation THEN
            p_state.claim_generation := v_slot.generation;
            p_state.batch_id := p_above;
        END IF;
        v_limit := 1;   -- the one that was open the last time
        LOOP
            IF p_steps_left <= 0 THEN
                RETURN;
            END IF;
            v_limit := least(v_limit, p_steps_left);
            v_found := find_ended_batches(v_slot.slot, p_ready_slot, p_state.batch_id, p_upto, v_limit);
            p_steps_left := p_steps_left - greatest(v_found.examined, 1);
            p_state.batch_id := coalesce(v_found.upto, p_state.batch_id);
            p_state.youngest := greatest(p_state.youngest, v_found.youngest);
            IF v_found.is_open THEN
                RETURN;
            END IF;
            EXIT WHEN v_found.examined < v_limit;
            v_limit := p_steps_left;
        END LOOP;
    END LOOP;
    p_state.claim_generation := no_generation();
END $$;

-- Keeps how far a proof has come; only what is new is written.
CREATE FUNCTION save_prune_state(p_was prune_states, p_state prune_states) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF p_state IS DISTINCT FROM p_was THEN
        INSERT INTO prune_states SELECT p_state.*
        ON CONFLICT (ring, generation) DO UPDATE
           SET (claim_generation, batch_id, youngest, part, page, surplus) = (p_state.claim_generation, p_state.batch_id, p_state.youngest, p_state.part, p_state.page, p_state.surplus);
    END IF;
END $$;

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
LANGUAGE plpgsql VOLATILE SET lock_timeout = '10ms' AS $$
DECLARE
    v_names text;
BEGIN
    SELECT string_agg(format('%I.%I', current_schema(), t || to_char(p_slot, 'FM"_"00')), ', ' ORDER BY t) INTO v_names
      FROM unnest(p_tables) t WHERE slot_has_pages(ARRAY[t], p_slot);
    IF v_names IS NOT NULL THEN
        EXECUTE 'LOCK TABLE ' || v_names || ' IN ACCESS EXCLUSIVE MODE';
    END IF;
    RETURN v_names;
END $$;

-- Goes on with the count of a queue slot. Raises when rows were neither taken nor buried; rows that are missing were lost by damage, and are gone anyway.
CREATE FUNCTION walk_surplus(p_slot smallint, INOUT p_state prune_states, INOUT p_steps_left int)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_parts CONSTANT text[] := ARRAY['ready_entries', 'ready_claim_attempt_batches', 'ready_tombstones'];
    v_pages bigint;
    v_below bigint;
BEGIN
    WHILE p_state.part < cardinality(v_parts) AND p_steps_left > 0 LOOP
        v_pages := pg_relation_size(format('%I.%I', current_schema(), v_parts[p_state.part + 1] || to_char(p_slot, 'FM"_"00'))::regclass) / current_setting('block_size')::int;
        v_below := least(v_pages, p_state.page + p_steps_left / page_steps() + 1);
        p_state.surplus := p_state.surplus + count_surplus(p_slot, p_state.part, format('(%s,0)', p_state.page)::tid, format('(%s,0)', v_below)::tid);
        p_steps_left := p_steps_left - (v_below - p_state.page)::int * page_steps() - 1;
        p_state.page := v_below;
        IF v_below = v_pages THEN
            p_state.part := p_state.part + 1;
            p_state.page := 0;
        END IF;
    END LOOP;
    IF p_state.part = cardinality(v_parts) AND p_state.surplus > 0 THEN
        RAISE EXCEPTION 'slot % of the queue ring holds % rows that were neither claimed nor buried', p_slot, p_state.surplus USING ERRCODE = 'data_corrupted';
    ELSIF p_state.part = cardinality(v_parts) AND p_state.surplus < 0 THEN
        RAISE WARNING 'slot % of the queue ring has lost % job bodies', p_slot, -p_state.surplus;
    END IF;
END $$;

-- Empties a queue slot that may go; false when its tables are not to be had now.
CREATE FUNCTION empty_queue_slot(p_generation bigint, p_slot smallint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_names text;
BEGIN
    v_names := lock_slot_tables(queue_ring_tables(), p_slot);
    PERFORM fold_terminal_counts(p_slot);
    IF v_names IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || v_names;
    END IF;
    DELETE FROM queue_ring_closed WHERE generation = p_generation;
    DELETE FROM queue_ring_sealed WHERE generation = p_generation;
    DELETE FROM queue_ring_slots WHERE generation = p_generation;
    DELETE FROM prune_states WHERE ring = 'queue' AND generation = p_generation;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Prunes one closed generation of the queue ring if it may go, or does a part of the proof.
CREATE FUNCTION prune_queue_slot(p_generation bigint, p_slot smallint, p_before timestamptz, INOUT p_steps_left int, OUT o_pruned boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_was prune_states;
    v_state prune_states;
    v_walk record;
    v_above bigint := (SELECT above_batch FROM queue_ring_slots WHERE generation = p_generation);
BEGIN
    o_pruned := false;
    SELECT * INTO v_was FROM prune_states WHERE ring = 'queue' AND generation = p_generation;
    v_state := v_was;
    IF v_was.ring IS NULL THEN
        -- Facts that no claim led to, cancellations, were written while the slot was the current one.
        v_state := ('queue', p_generation, 0, v_above, (SELECT sealed_at FROM queue_ring_sealed WHERE generation = p_generation), 0, 0, 0);
    END IF;
    v_walk := walk_ended(p_slot, no_generation() - 1, v_above, (SELECT upto_batch FROM queue_ring_closed WHERE generation = p_generation), v_state, p_steps_left);
    v_state := v_walk.p_state;
    p_steps_left := v_walk.p_steps_left;
    IF v_state.claim_generation = no_generation() AND v_state.youngest <= p_before THEN
        v_walk := walk_surplus(p_slot, v_state, p_steps_left);
        v_state := v_walk.p_state;
        p_steps_left := v_walk.p_steps_left;
        o_pruned := v_state.part = 3 AND empty_queue_slot(p_generation, p_slot);
    END IF;
    IF NOT o_pruned THEN
        PERFORM save_prune_state(v_was, v_state);
    END IF;
END $$;

-- Whether a claim slot that the pointer has left has no writer. Takes the slot's key exclusively, by trying, for that moment only.
CREATE FUNCTION claim_slot_is_quiet(p_slot smallint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_quiet boolean;
BEGIN
    v_quiet := pg_try_advisory_xact_lock(advisory_key('claim_slot', p_slot)) AND (SELECT last_value & 15 FROM claim_ring_pointer) <> p_slot;
    RAISE EXCEPTION USING ERRCODE = 'lock_not_available';   -- gives the key back
EXCEPTION WHEN lock_not_available THEN
    RETURN v_quiet;
END $$;

-- Empties a claim slot that may go; false when it is not to be had now.
CREATE FUNCTION empty_claim_slot(p_generation bigint, p_slot smallint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_names text;
BEGIN
    -- Exclusive: no ending reads here; one that comes meanwhile answers BUSY. Only now, so that a slot that stays is never in anybody's way.
    IF NOT pg_try_advisory_xact_lock(advisory_key('claim_slot', p_slot)) THEN
        RETURN false;
    END IF;
    v_names := lock_slot_tables(claim_ring_tables(), p_slot);
    IF v_names IS NOT NULL THEN
        EXECUTE 'TRUNCATE ' || v_names;
    END IF;
    DELETE FROM claim_ring_slots WHERE generation = p_generation;
    DELETE FROM prune_states WHERE ring = 'claim' AND generation = p_generation;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Prunes one generation of the claim ring that the pointer has left if it may go, or does a part of the proof.
CREATE FUNCTION prune_claim_slot(p_generation bigint, p_slot smallint, p_before timestamptz, INOUT p_steps_left int, OUT o_pruned boolean)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_was prune_states;
    v_state prune_states;
    v_walk record;
BEGIN
    o_pruned := false;
    SELECT * INTO v_was FROM prune_states WHERE ring = 'claim' AND generation = p_generation;
    v_state := v_was;
    IF v_was.ring IS NULL THEN
        IF NOT claim_slot_is_quiet(p_slot) THEN
            RETURN;
        END IF;
        v_state := ('claim', p_generation, p_generation, 0, NULL, 0, 0, 0);
    END IF;
    v_walk := walk_ended(NULL, p_generation, 0, no_generation(), v_state, p_steps_left);
    v_state := v_walk.p_state;
    p_steps_left := v_walk.p_steps_left;
    o_pruned := v_state.claim_generation = no_generation() AND (v_state.youngest > p_before) IS NOT TRUE AND empty_claim_slot(p_generation, p_slot);
    IF NOT o_pruned THEN
        PERFORM save_prune_state(v_was, v_state);
    END IF;
END $$;

-- Prunes at most one slot of each ring, the oldest that may go; returns how many. Looks at max_prune_steps() batches for each ring at most, and goes
-- on from there in the next call; again: which is worth being made at once.
-- Locks: the maintenance key of pruning (tried); for a slot it prunes, ACCESS EXCLUSIVE on its children until commit, waiting 10 ms for them at most;
-- the claim slot's key (exclusive, tried). The hot path looks at neither. Idempotent: what is gone is not in the ledger.
CREATE FUNCTION prune_slots(p_completed_retention_ms bigint, p_closed_ms int, OUT pruned int, OUT again boolean)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_before timestamptz := clock_timestamp() - p_completed_retention_ms * interval '1 ms';
    v_left int := max_prune_steps();
    v_slot record;
    v_result record;
BEGIN
    PERFORM require_read_committed('prune_slots');
    pruned := 0;
    again := false;
    IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 5)) THEN
        RETURN;
    END IF;
    -- A slot that took bodies or claims until lately has facts as young: no need to look.
    FOR v_slot IN SELECT s.generation, s.slot FROM queue_ring_slots s JOIN queue_ring_closed c USING (generation) JOIN queue_ring_sealed q USING (generation)
                   WHERE c.closed_at <= clock_timestamp() - p_closed_ms * interval '1 ms' AND q.sealed_at <= v_before ORDER BY s.generation LOOP
        EXIT WHEN v_left <= 0;
        v_result := prune_queue_slot(v_slot.generation, v_slot.slot, v_before, v_left);
        v_left := v_result.p_steps_left;
        IF v_result.o_pruned THEN
            pruned := pruned + 1;
            EXIT;
        END IF;
    END LOOP;
    again := v_left <= 0;
    v_left := max_prune_steps();
    FOR v_slot IN SELECT s.generation, s.slot FROM claim_ring_slots s WHERE s.generation < (SELECT last_value >> 4 FROM claim_ring_pointer)
                     AND (SELECT min(n.opened_at) FROM claim_ring_slots n WHERE n.generation > s.generation) <= v_before ORDER BY s.generation LOOP
        EXIT WHEN v_left <= 0;
        v_result := prune_claim_slot(v_slot.generation, v_slot.slot, v_before, v_left);
        v_left := v_result.p_steps_left;
        IF v_result.o_pruned THEN
            pruned := pruned + 1;
            EXIT;
        END IF;
    END LOOP;
    again := again OR v_left <= 0;
END $$;
