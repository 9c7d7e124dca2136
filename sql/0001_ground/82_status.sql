-- What an operator asks about the whole schema (`awa-proxy status`, `awa-proxy queue counts`).

-- One row: the schema's version, what is claimed and not ended, and what waits for a time. oldest_claim_at is the age of the oldest
-- claim with an open attempt. Exact at one moment: one statement after its locks.
-- Locks: ACCESS SHARE on the children of the claim ring until the end of the transaction. Waits for a prune in progress at most.
CREATE FUNCTION status()
RETURNS TABLE (schema_version int, open_attempts bigint, oldest_claim_at timestamptz, scheduled bigint, retryable bigint, overdue bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off AS $$
BEGIN
    PERFORM require_read_committed('status');
    RETURN QUERY
    WITH ended AS (
        SELECT e.claim_slot, e.batch_id, bit_count(bit_or(e.members)) AS n
          FROM (SELECT c.claim_slot, c.batch_id, c.members FROM lease_claim_closure_batches c
                UNION ALL
                SELECT c.claim_slot, c.batch_id, set_bit(repeat('0', b.n)::bit varying, c.idx - 1, 1)
                  FROM lease_claim_closures c JOIN lease_claim_batches b USING (claim_slot, batch_id)) e
         GROUP BY e.claim_slot, e.batch_id),
    batches AS (
        SELECT b.claimed_at, b.n - coalesce(e.n, 0) AS open FROM lease_claim_batches b LEFT JOIN ended e USING (claim_slot, batch_id)),
    claimed AS (
        SELECT coalesce(sum(b.open), 0)::bigint AS open, min(b.claimed_at) FILTER (WHERE b.open > 0) AS oldest FROM batches b),
    deferred AS (
        SELECT count(*) FILTER (WHERE d.state = 'scheduled') AS scheduled, count(*) FILTER (WHERE d.state = 'retryable') AS retryable,
               count(*) FILTER (WHERE d.due_at <= clock_timestamp()) AS overdue
          FROM deferred_jobs d)
    SELECT (SELECT max(m.version) FROM schema_migrations m), claimed.open, claimed.oldest, deferred.scheduled, deferred.retryable, deferred.overdue
      FROM claimed, deferred;
END $$;

-- The slots in use of both rings, oldest first. state: current (being written), left (the pointer has moved on), sealed (no writer is
-- left), closed (nothing in it waits to be claimed); a slot that is not listed is clean. Locks nothing that anybody waits for.
CREATE FUNCTION ring_slots()
RETURNS TABLE (ring text, generation bigint, slot smallint, state text, opened_at timestamptz, age_s bigint)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT s.ring, s.generation, s.slot, s.state, s.opened_at, floor(extract(epoch FROM clock_timestamp() - s.opened_at))::bigint
      FROM (SELECT 'queue' AS ring, q.generation, q.slot, q.opened_at,
                   CASE WHEN c.generation IS NOT NULL THEN 'closed' WHEN l.generation IS NOT NULL THEN 'sealed'
                        WHEN q.generation = pg_sequence_last_value('queue_ring_pointer') >> 4 THEN 'current' ELSE 'left' END AS state
              FROM queue_ring_slots q LEFT JOIN queue_ring_sealed l USING (generation) LEFT JOIN queue_ring_closed c USING (generation)
            UNION ALL
            SELECT 'claim', q.generation, q.slot, q.opened_at,
                   CASE WHEN q.generation = pg_sequence_last_value('claim_ring_pointer') >> 4 THEN 'current' ELSE 'left' END
              FROM claim_ring_slots q) s
     ORDER BY s.ring DESC, s.generation
$$;

-- queue_counts_exact() of these queues, in their order; with an empty array of every queue that was ever used, by name. Each queue is
-- exact at a moment of its own. A name that no queue can have is refused. Locks and waits like queue_counts_exact().
CREATE FUNCTION queue_counts(p_queues text[])
RETURNS TABLE (queue text, scheduled bigint, available bigint, running bigint, waiting_external bigint, retryable bigint, completed bigint, failed bigint, cancelled bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_queues text[] := p_queues;
    v_queue text;
    v_refusal text;
BEGIN
    IF v_queues = '{}' THEN
        v_queues := ARRAY(SELECT DISTINCT l.queue FROM queue_lanes l ORDER BY 1);
    END IF;
    FOREACH v_queue IN ARRAY v_queues LOOP
        v_refusal := queue_refusal(v_queue);
        IF v_refusal IS NOT NULL THEN
            RAISE EXCEPTION '%', v_refusal USING ERRCODE = 'invalid_parameter_value';
        END IF;
        RETURN QUERY SELECT v_queue, c.* FROM queue_counts_exact(v_queue) c;
    END LOOP;
END $$;
