-- Exact counts of a queue.
--
-- Direct sums over what is retained, plus what prune folded. available = bodies - taken - buried, running = claimed - ended, both over the
-- retained slots: a pruned slot holds neither. VOLATILE on purpose, and one statement: its snapshot is taken after its locks, so a prune
-- that runs meanwhile is seen either whole or not at all. (STABLE would reuse the caller's snapshot and lose a segment pruned under it.)

-- Jobs of a queue by state, exact at one moment. READ COMMITTED only.
-- Locks: ACCESS SHARE on every ring child until the end of the transaction. Waits for a prune in progress, some tens of milliseconds.
CREATE FUNCTION queue_counts_exact(p_queue text)
RETURNS TABLE (scheduled bigint, available bigint, running bigint, waiting_external bigint, retryable bigint, completed bigint, failed bigint, cancelled bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    v_first bigint := lane_base(p_queue);
    v_last bigint := lane_base(p_queue) + 255;
BEGIN
    PERFORM require_read_committed('queue_counts_exact');
    RETURN QUERY
    WITH deferred AS (
        SELECT count(*) FILTER (WHERE d.state = 'scheduled') AS scheduled, count(*) FILTER (WHERE d.state = 'retryable') AS retryable
          FROM deferred_jobs d WHERE d.lane_id BETWEEN v_first AND v_last),
    batches AS (
        SELECT b.claim_slot, b.batch_id, b.n FROM lease_claim_batches b WHERE b.lane_id BETWEEN v_first AND v_last),
    ended AS (
        SELECT c.claim_slot, c.batch_id, c.members FROM lease_claim_closure_batches c JOIN batches b USING (claim_slot, batch_id)
        UNION ALL
        SELECT c.claim_slot, c.batch_id, set_bit(repeat('0', b.n)::bit varying, c.idx - 1, 1) FROM lease_claim_closures c JOIN batches b USING (claim_slot, batch_id)),
    terminal AS (
        SELECT t.state, sum(t.n) AS n
          FROM (SELECT 'completed'::job_state AS state, c.n::bigint FROM receipt_completion_batches c WHERE c.lane_id BETWEEN v_first AND v_last
                UNION ALL SELECT d.state, 1 FROM done_entries d WHERE d.lane_id BETWEEN v_first AND v_last
                UNION ALL SELECT r.state, r.n FROM queue_terminal_rollups r WHERE r.lane_id BETWEEN v_first AND v_last) t
         GROUP BY t.state)
    SELECT deferred.scheduled,
           (SELECT count(*) FROM ready_entries r WHERE r.lane_id BETWEEN v_first AND v_last)
             - (SELECT coalesce(sum(a.n), 0) FROM ready_claim_attempt_batches a WHERE a.lane_id BETWEEN v_first AND v_last)::bigint
             - (SELECT count(*) FROM ready_tombstones t WHERE t.lane_id BETWEEN v_first AND v_last),
           (SELECT coalesce(sum(b.n), 0) FROM batches b)::bigint
             - (SELECT coalesce(sum(bit_count(e.members)), 0) FROM (SELECT bit_or(e.members) AS members FROM ended e GROUP BY e.claim_slot, e.batch_id) e)::bigint,
           0::bigint,   -- parking for a callback comes with the full engine
           deferred.retryable,
           coalesce((SELECT t.n FROM terminal t WHERE t.state = 'completed'), 0)::bigint,
           coalesce((SELECT t.n FROM terminal t WHERE t.state = 'failed'), 0)::bigint,
           coalesce((SELECT t.n FROM terminal t WHERE t.state = 'cancelled'), 0)::bigint
      FROM deferred;
END $$;
