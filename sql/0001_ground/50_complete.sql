-- Completion: ends many attempts with one compact, fused, durable write.
--
-- Who may end an attempt is decided by locks first and durable evidence second: the batch key exclusively, or, where somebody else
-- has it (an application that completes one job of the batch in an open transaction), the batch key shared and the key of each attempt.
-- Both are tried, never awaited: what cannot be locked comes back BUSY and costs its neighbours nothing. Under the locks a fresh
-- snapshot reads the batch and its closures; two closers of one attempt meet at the keys, so exactly one finds it open.
-- Per claim batch the write is one closure row (a bit for each index, claim slot) and one terminal row (the job ids, in the slot of
-- the bodies), however many jobs end. A group is found, checked and written as a whole; a job alone in its batch costs one row each.
--
-- Statuses: 1 DONE, 2 ALREADY_DONE (completed before), 3 STALE (ended otherwise), 4 NOT_FOUND (no such batch any more, or another's
-- nonce), 5 INVALID (not what stands at that index), 7 BUSY (try again in milliseconds).

-- At most so many claim batches are locked by one transaction, and where batch keys are not to be had, so many attempts of the first such batch, half as many of the second …:
-- the lock table is shared with every other proxy and holds 6,400 locks by default.
CREATE FUNCTION max_batch_keys() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 64 $$;
CREATE FUNCTION max_single_keys() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 64 $$;

-- Whether a receipt can name this slot: its bytes come from outside.
CREATE FUNCTION is_claim_slot(p_slot int) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT coalesce(p_slot BETWEEN 0 AND 7, false) $$;

CREATE FUNCTION attempt_key(p_job_id bigint, p_run_lease int) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT advisory_key('attempt', hashint8extended(p_job_id, p_run_lease))
$$;

-- The second best, where the batch's own key is not to be had: which of these attempts of one batch, the p_nth of the call, this
-- transaction now holds the right to end. Locks: batch (shared), attempts (exclusive); all tried.
CREATE FUNCTION lock_attempts(p_batch_id bigint, p_job_ids bigint[], p_run_leases int[], p_nth int) RETURNS boolean[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(advisory_key('batch', p_batch_id)) THEN
        RETURN array_fill(false, ARRAY[cardinality(p_job_ids)]);
    END IF;
    RETURN ARRAY(SELECT CASE WHEN a.ord <= max_single_keys() / p_nth THEN pg_try_advisory_xact_lock(attempt_key(a.job_id, a.run_lease)) ELSE false END
                   FROM unnest(p_job_ids, p_run_leases) WITH ORDINALITY a(job_id, run_lease, ord) ORDER BY a.ord);
END $$;

-- One claim batch's part of a call: statuses of its items in order, and what has to be written for those that are DONE.
CREATE TYPE closed_group AS (statuses smallint[], ready_slot smallint, lane_id bigint, batch_id bigint, attempted_at timestamptz, job_ids bigint[], run_leases int[], attempts smallint[]);

-- The claim slot's half, for all groups of one slot in one statement: reads the batches and what is known of their ends, judges each
-- item, and writes the closures. Groups as in complete_batch; p_locked says which items the caller has the right to end.
-- `|| '{}'` detoasts an array once, so that subscripts are cheap; OFFSET 0 keeps the judgement from being made once for each aggregate.
SELECT pg_temp.create_slot_function(8, $sig$
    close_groups(p_slot int, p_now timestamptz, p_batch_ids bigint[], p_nonces bigint[], p_counts int[], p_indexes smallint[], p_job_ids bigint[], p_run_leases int[],
                 p_locked boolean[], OUT o_groups closed_group[])
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        WITH judged AS MATERIALIZED (
            SELECT g.no, g.batch_id, b.ready_slot, b.lane_id, b.claimed_at, j.*,
                   -- Rarely needed, so not among the aggregates: members stand in ascending order of their index.
                   CASE WHEN b.run_leases IS NOT NULL THEN ARRAY(SELECT b.run_leases[i] FROM generate_series(1, b.n) i WHERE get_bit(j.members, i - 1) = 1) END AS run_leases,
                   CASE WHEN b.attempts IS NOT NULL THEN ARRAY(SELECT b.attempts[i] FROM generate_series(1, b.n) i WHERE get_bit(j.members, i - 1) = 1) END AS attempts
              FROM (SELECT *, (sum(u.count) OVER (ROWS UNBOUNDED PRECEDING))::int AS upto FROM unnest(p_batch_ids, p_nonces, p_counts) WITH ORDINALITY u(batch_id, nonce, count, no)) g
              LEFT JOIN LATERAL (
                SELECT f.*, f.none | coalesce((SELECT bit_or(members) FROM lease_claim_closure_batches_00 WHERE batch_id = g.batch_id), f.none) AS completed,
                       f.none | coalesce((SELECT bit_or(set_bit(f.none, idx - 1, 1)) FROM lease_claim_closures_00 WHERE batch_id = g.batch_id), f.none) AS otherwise
                  FROM (SELECT ready_slot, lane_id, claimed_at, n, job_ids || '{}' AS job_ids, CASE WHEN run_leases IS NOT NULL THEN run_leases || '{}' END AS run_leases,
                               CASE WHEN attempts IS NOT NULL THEN attempts || '{}' END AS attempts, repeat('0', n)::bit varying AS none
                          FROM lease_claim_batches_00 WHERE batch_id = g.batch_id AND nonce = g.nonce OFFSET 0) f OFFSET 0) b ON true
             CROSS JOIN LATERAL (
                SELECT array_agg(i.status) AS statuses, bit_or(set_bit(b.none, i.idx - 1, 1)) FILTER (WHERE i.status = 1) AS members, array_agg(i.job_id) FILTER (WHERE i.status = 1) AS job_ids
                  FROM (SELECT u.idx, u.job_id,
                               (CASE WHEN NOT u.locked THEN 7
                                     WHEN b.n IS NULL THEN 4
                                     WHEN u.idx NOT BETWEEN 1 AND b.n OR u.job_id <> b.job_ids[u.idx] OR u.run_lease <> coalesce(b.run_leases[u.idx], 1) THEN 5
                                     WHEN get_bit(b.completed, u.idx - 1) = 1 THEN 2
                                     WHEN get_bit(b.otherwise, u.idx - 1) = 1 THEN 3
                                     ELSE 1 END)::smallint AS status
                          FROM unnest(p_indexes[g.upto - g.count + 1:g.upto], p_job_ids[g.upto - g.count + 1:g.upto], p_run_leases[g.upto - g.count + 1:g.upto],
                                      p_locked[g.upto - g.count + 1:g.upto]) u(idx, job_id, run_lease, locked) OFFSET 0) i) j),
        closures AS (
            INSERT INTO lease_claim_closure_batches_00 (batch_id, closed_at, n, members) SELECT batch_id, p_now, cardinality(job_ids), members FROM judged WHERE members IS NOT NULL)
        SELECT array_agg((statuses, ready_slot, lane_id, batch_id, claimed_at, job_ids, run_leases, attempts)::closed_group ORDER BY no) INTO o_groups FROM judged;
$branch$);

-- The other half: one terminal row for each group with something to write, in the slot that holds the bodies.
SELECT pg_temp.create_slot_function(16, $sig$
    insert_completions(p_slot int, p_claim_slot smallint, p_now timestamptz, p_groups closed_group[]) RETURNS boolean
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO receipt_completion_batches_00 (lane_id, batch_id, attempted_at, finalized_at, claim_slot, n, job_ids, run_leases, attempts)
        SELECT c.lane_id, c.batch_id, c.attempted_at, p_now, p_claim_slot, cardinality(c.job_ids), c.job_ids, c.run_leases, c.attempts
          FROM unnest(p_groups) c WHERE c.ready_slot = p_slot AND c.job_ids IS NOT NULL;
        RETURN true;
$branch$);

-- Completes groups of attempts of one claim slot; returns the statuses of the items.
CREATE FUNCTION complete_groups(p_claim_slot smallint, p_batch_ids bigint[], p_nonces bigint[], p_counts int[], p_indexes smallint[], p_job_ids bigint[], p_run_leases int[],
                                p_locked boolean[]) RETURNS smallint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_groups closed_group[];
    v_group closed_group;
    v_statuses smallint[] := '{}';
    v_slots smallint[] := '{}';
    v_ok boolean;
BEGIN
    IF NOT is_claim_slot(p_claim_slot) THEN
        RETURN array_fill(4::smallint, ARRAY[cardinality(p_indexes)]);
    END IF;
    v_groups := close_groups(p_claim_slot, v_now, p_batch_ids, p_nonces, p_counts, p_indexes, p_job_ids, p_run_leases, p_locked);
    FOREACH v_group IN ARRAY v_groups LOOP
        v_statuses := v_statuses || v_group.statuses;
        IF v_group.job_ids IS NOT NULL AND v_group.ready_slot <> ALL (v_slots) THEN
            v_slots := v_slots || v_group.ready_slot;
            v_ok := insert_completions(v_group.ready_slot, p_claim_slot, v_now, v_groups);
        END IF;
    END LOOP;
    RETURN v_statuses;
END $$;

-- Completes attempts, grouped by claim batch: p_claim_slots, p_batch_ids, p_nonces and p_counts have one element a batch, ascending by
-- (claim_slot, batch_id); the other arrays have p_counts[1] + p_counts[2] + … elements, ascending by index within a batch. An index
-- that comes twice is the caller's mistake and fails the call (the closure table checks its bits). Returns the statuses of the items in their order.
-- Locks: claim slots (shared), batches (exclusive, or shared with the attempts exclusive), all tried, until commit. Waits for nobody. Idempotent: a second call answers ALREADY_DONE and writes nothing.
CREATE FUNCTION complete_batch(p_claim_slots smallint[], p_batch_ids bigint[], p_nonces bigint[], p_counts int[], p_indexes smallint[], p_job_ids bigint[], p_run_leases int[])
RETURNS smallint[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_statuses smallint[] := '{}';
    v_locked boolean[] := '{}';
    v_from int := 1;                -- first group and item of the claim slot being gathered
    v_from_item int := 1;
    v_item int := 1;
BEGIN
    PERFORM require_read_committed('complete_batch');
    FOR g IN 1 .. coalesce(cardinality(p_batch_ids), 0) LOOP
        v_locked := v_locked || CASE
            WHEN g > max_batch_keys() OR NOT pg_try_advisory_xact_lock_shared(advisory_key('claim_slot', p_claim_slots[g])) THEN array_fill(false, ARRAY[p_counts[g]])
            WHEN pg_try_advisory_xact_lock(advisory_key('batch', p_batch_ids[g])) THEN array_fill(true, ARRAY[p_counts[g]])
            ELSE lock_attempts(p_batch_ids[g], p_job_ids[v_item:v_item + p_counts[g] - 1], p_run_leases[v_item:v_item + p_counts[g] - 1], g) END;
        v_item := v_item + p_counts[g];
        IF p_claim_slots[g] IS DISTINCT FROM p_claim_slots[g + 1] THEN
            -- With nothing locked, do not even look: the slot may be in the middle of a prune.
            v_statuses := v_statuses || CASE WHEN true <> ALL (v_locked) THEN array_fill(7::smallint, ARRAY[cardinality(v_locked)])
                ELSE complete_groups(p_claim_slots[g], p_batch_ids[v_from:g], p_nonces[v_from:g], p_counts[v_from:g], p_indexes[v_from_item:v_item - 1],
                                     p_job_ids[v_from_item:v_item - 1], p_run_leases[v_from_item:v_item - 1], v_locked) END;
            v_from := g + 1;
            v_from_item := v_item;
            v_locked := '{}';
        END IF;
    END LOOP;
    RETURN v_statuses;
END $$;
