-- What must hold of the stored facts at any moment, as far as one snapshot can tell (design/10, section 10).
--
-- Everything is recomputed from the tables by brute force and not by the engine's own functions, except where those are what is
-- checked. Installed into the schema `iso`, with the engine's schema first in search_path. Used by the isolation specs and by the torture.

-- Jobs that the caller knows to have ended: of those, an old body may outlive all evidence that it was claimed.
CREATE TABLE iso.ended (job_id bigint PRIMARY KEY);

-- Looks at everything once and keeps it, until the end of the transaction, in temporary tables: ready, attempts (outcome NULL: open),
-- terminal, places. Called with nothing else going on, one look is one moment.
CREATE FUNCTION iso.look() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    CREATE TEMP TABLE ready ON COMMIT DROP AS SELECT ready_slot, lane_id, xid, job_id, run_lease FROM ready_entries;
    CREATE TEMP TABLE attempts ON COMMIT DROP AS
    SELECT b.claim_slot, b.batch_id, b.lane_id, b.ready_slot, a.idx, a.job_id, coalesce(a.run_lease, 1) AS run_lease,
           CASE WHEN get_bit(c.members, a.idx::int - 1) = 1 THEN 1 ELSE o.outcome END AS outcome
      FROM lease_claim_batches b
     CROSS JOIN LATERAL unnest(b.job_ids, b.run_leases) WITH ORDINALITY a(job_id, run_lease, idx)
      LEFT JOIN (SELECT claim_slot, batch_id, bit_or(members) AS members FROM lease_claim_closure_batches GROUP BY 1, 2) c USING (claim_slot, batch_id)
      LEFT JOIN lease_claim_closures o ON o.claim_slot = b.claim_slot AND o.batch_id = b.batch_id AND o.idx = a.idx;
    CREATE TEMP TABLE terminal ON COMMIT DROP AS
    SELECT c.ready_slot, c.lane_id, u.job_id, coalesce(u.run_lease, 1) AS run_lease, 'completed'::job_state AS state
      FROM receipt_completion_batches c CROSS JOIN LATERAL unnest(c.job_ids, c.run_leases) u(job_id, run_lease)
    UNION ALL SELECT ready_slot, lane_id, job_id, run_lease, state FROM done_entries;
    ANALYZE ready, attempts, terminal;
    CREATE TEMP TABLE places ON COMMIT DROP AS
    -- a body that nobody has claimed or buried; where the claim slot of an ended attempt was pruned, a later fact of the job says that it was claimed
    SELECT r.job_id, r.lane_id, r.ready_slot, 'available'::job_state AS state FROM ready r
     WHERE NOT EXISTS (SELECT FROM ready_tombstones t WHERE t.ready_slot = r.ready_slot AND t.lane_id = r.lane_id AND t.xid = r.xid AND t.job_id = r.job_id)
       AND NOT EXISTS (SELECT FROM attempts a WHERE a.job_id = r.job_id AND a.run_lease = r.run_lease + 1)
       AND NOT EXISTS (SELECT FROM terminal f WHERE f.job_id = r.job_id AND f.run_lease > r.run_lease)
       AND NOT EXISTS (SELECT FROM ready later WHERE later.job_id = r.job_id AND later.run_lease > r.run_lease)
       AND NOT EXISTS (SELECT FROM deferred_jobs d WHERE d.job_id = r.job_id AND d.run_lease > r.run_lease)
       AND NOT EXISTS (SELECT FROM iso.ended e WHERE e.job_id = r.job_id)
    UNION ALL SELECT job_id, lane_id, ready_slot, 'running' FROM attempts WHERE outcome IS NULL
    UNION ALL SELECT job_id, lane_id, NULL, state FROM deferred_jobs
    UNION ALL SELECT job_id, lane_id, ready_slot, state FROM terminal;
    ANALYZE places;
END $$;

-- What the exact counts of every queue should be (what was pruned is in the rollups).
CREATE FUNCTION iso.brute_force_counts() RETURNS TABLE (of_queue text, counts jsonb) LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN QUERY
    WITH fact AS (
        SELECT lane_id, state, 1 AS n FROM places UNION ALL SELECT lane_id, state, n FROM queue_terminal_rollups),
    total AS (SELECT lane_id >> 8 << 8 AS base, state, sum(n) AS n FROM fact GROUP BY 1, 2)
    SELECT l.queue, jsonb_object_agg(e.state, coalesce(t.n, 0))
      FROM (SELECT DISTINCT k.queue FROM queue_lanes k) l CROSS JOIN unnest(enum_range(NULL::job_state)) e(state)
      LEFT JOIN total t ON t.base = lane_base(l.queue) AND t.state = e.state GROUP BY l.queue;
END $$;

-- One row for each thing that is wrong; none is what every test wants.
CREATE FUNCTION iso.problems() RETURNS SETOF text
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM iso.look();
    RETURN QUERY
    -- I1: a job is in one place
    SELECT format('I1 job %s is in %s places: %s', job_id, count(*), string_agg(state::text, ', ')) FROM places GROUP BY job_id HAVING count(*) > 1
    UNION ALL
    -- I2: an attempt ends once, and is claimed once
    SELECT format('I2 attempt (%s, %s) was claimed %s times', job_id, run_lease, count(*)) FROM attempts GROUP BY job_id, run_lease HAVING count(*) > 1
    UNION ALL
    SELECT format('I2 closures of batch %s overlap', batch_id)
      FROM lease_claim_closure_batches GROUP BY claim_slot, batch_id HAVING sum(bit_count(members)) <> bit_count(bit_or(members))
    UNION ALL
    SELECT format('I2 index %s of batch %s was completed and closed otherwise', o.idx, o.batch_id)
      FROM lease_claim_closures o JOIN (SELECT claim_slot, batch_id, bit_or(members) AS members FROM lease_claim_closure_batches GROUP BY 1, 2) c USING (claim_slot, batch_id)
     WHERE get_bit(c.members, o.idx - 1) = 1
    UNION ALL
    SELECT format('I2 attempt (%s, %s) has %s terminal facts', job_id, run_lease, count(*)) FROM terminal GROUP BY job_id, run_lease HAVING count(*) > 1
    UNION ALL
    SELECT format('I2 job %s was completed without a terminal fact', a.job_id) FROM attempts a JOIN ready r ON r.ready_slot = a.ready_slot AND r.job_id = a.job_id AND r.run_lease = a.run_lease - 1
     WHERE a.outcome = 1 AND NOT EXISTS (SELECT FROM terminal f WHERE f.job_id = a.job_id AND f.run_lease = a.run_lease AND f.ready_slot = a.ready_slot)
    UNION ALL
    -- I4: the body of an open attempt is there
    SELECT format('I4 open attempt (%s, %s) has no body', a.job_id, a.run_lease) FROM attempts a
     WHERE a.outcome IS NULL AND NOT EXISTS (SELECT FROM ready r WHERE r.ready_slot = a.ready_slot AND r.lane_id = a.lane_id AND r.job_id = a.job_id AND r.run_lease = a.run_lease - 1)
    UNION ALL
    SELECT format('I4 a body of closed slot %s is unspent: job %s', s.slot, v.job_id)
      FROM queue_ring_closed c JOIN queue_ring_slots s USING (generation) JOIN places v ON v.ready_slot = s.slot AND v.state = 'available'
    UNION ALL
    -- I5: the exact counts are exact
    SELECT format('I5 queue %s: counted %s, there are %s', b.of_queue, to_jsonb(c), b.counts)
      FROM iso.brute_force_counts() b CROSS JOIN LATERAL queue_counts_exact(b.of_queue) c WHERE to_jsonb(c) <> b.counts
    UNION ALL
    -- I7: run_lease grows: no two bodies of one job stand for the same attempt
    SELECT format('I7 job %s has %s bodies of run_lease %s', job_id, count(*), run_lease) FROM (SELECT job_id, run_lease FROM ready UNION ALL SELECT job_id, run_lease FROM deferred_jobs) b
     GROUP BY job_id, run_lease HAVING count(*) > 1
    UNION ALL
    -- a lane's states: numbered once, the newest where a claim looks
    SELECT format('lane %s has state %s %s times', lane_id, state_no, count(*)) FROM lane_states GROUP BY lane_id, state_no HAVING count(*) > 1
    UNION ALL
    SELECT format('lane %s: the newest state lies in closed slot %s', n.lane_id, s.slot)
      FROM queue_ring_closed c JOIN queue_ring_slots s USING (generation)
      JOIN (SELECT DISTINCT ON (lane_id) lane_id, ready_slot FROM lane_states ORDER BY lane_id, state_no DESC) n ON n.ready_slot = s.slot
    UNION ALL
    -- the rings: a slot serves one generation, and the pointers never run ahead of the ledger
    SELECT format('queue slot %s serves %s generations', slot, count(*)) FROM queue_ring_slots GROUP BY slot HAVING count(*) > 1
    UNION ALL
    SELECT format('claim slot %s serves %s generations', slot, count(*)) FROM claim_ring_slots GROUP BY slot HAVING count(*) > 1
    UNION ALL
    SELECT 'a ring pointer is not in the ledger'
     WHERE NOT EXISTS (SELECT FROM queue_ring_slots WHERE generation * 16 + slot = (SELECT last_value FROM queue_ring_pointer))
        OR NOT EXISTS (SELECT FROM claim_ring_slots WHERE generation * 16 + slot = (SELECT last_value FROM claim_ring_pointer));
END $$;
