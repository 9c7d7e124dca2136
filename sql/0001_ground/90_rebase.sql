-- Rebase: makes a schema that was moved to another cluster (pg_dump, logical replication) usable there.
--
-- Bodies and lane states carry transaction ids. In a cluster whose ids are behind they mean nothing, and claim() refuses them. Rebase
-- gives every job that was not handed out an id of this cluster, every other one an id below all, and starts all lanes anew in between.
-- What was handed out is known by evidence (a claim batch, a terminal fact, a newer place of the job), and for bodies that came with the
-- move also by the state of their lane. Jobs enqueued here before the rebase are kept: they are younger than the move, whose
-- transaction is that of the schema_migrations rows.

-- The newest run_lease that anything in the schema mentions, by job.
CREATE FUNCTION spent_leases() RETURNS TABLE (job_id bigint, run_lease int)
LANGUAGE sql VOLATILE AS $$
    SELECT e.job_id, max(e.run_lease)
      FROM (SELECT a.job_id, coalesce(a.run_lease, 1) AS run_lease FROM lease_claim_batches b CROSS JOIN LATERAL unnest(b.job_ids, b.run_leases) a(job_id, run_lease)
            UNION ALL SELECT a.job_id, coalesce(a.run_lease, 1) FROM receipt_completion_batches b CROSS JOIN LATERAL unnest(b.job_ids, b.run_leases) a(job_id, run_lease)
            UNION ALL SELECT d.job_id, d.run_lease FROM done_entries d
            UNION ALL SELECT d.job_id, d.run_lease FROM deferred_jobs d
            UNION ALL SELECT r.job_id, r.run_lease FROM ready_entries r WHERE r.run_lease > 0) e
     GROUP BY e.job_id
$$;

-- Gives the bodies of one slot their new ids. Spent ones: 3 + run_lease, distinct for each body of a job and older than every snapshot.
SELECT pg_temp.create_slot_function(16, $sig$
    rebase_slot(p_slot int, p_move_age int) RETURNS boolean
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        UPDATE ready_tombstones_00 t SET xid = (3 + r.run_lease)::text::xid8 FROM ready_entries_00 r WHERE r.lane_id = t.lane_id AND r.xid = t.xid AND r.job_id = t.job_id;
        UPDATE ready_entries_00 r
           SET xid = CASE WHEN EXISTS (SELECT FROM ready_tombstones_00 t WHERE t.lane_id = r.lane_id AND t.job_id = r.job_id AND t.xid = (3 + r.run_lease)::text::xid8)
                            OR EXISTS (SELECT FROM rebase_spent s WHERE s.job_id = r.job_id AND s.run_lease > r.run_lease)
                            OR age(r.xmin) >= p_move_age AND EXISTS (SELECT FROM rebase_lanes l WHERE l.lane_id = r.lane_id AND is_handed_out(l.state, r.xid, r.job_id))
                          THEN (3 + r.run_lease)::text::xid8 ELSE pg_current_xact_id() END;
        RETURN true;
$branch$);

-- Repairs lanes, bodies, promotion, sequences and ring pointers after a move; run once, with no proxy connected: while one is, it refuses, because a claim on
-- its way would write a lane's state of before over that of after. Keeps every job.
-- Locks: every table it changes, against everybody, until commit; waits 10 s for them at most. Harmless to repeat, and on a cluster that
-- the schema was not moved to.
CREATE FUNCTION rebase() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET lock_timeout = '10s' SET jit = off AS $$
DECLARE
    v_children text := (SELECT string_agg(format('%I.%I', current_schema(), t || to_char(slot, 'FM"_"00')), ', ') FROM unnest(queue_ring_tables()) t, generate_series(0, 15) slot);
    v_move_age int := (SELECT min(age(xmin)) FROM schema_migrations);
    v_end pg_snapshot;
BEGIN
    PERFORM require_read_committed('rebase');
    -- Before the locks, so that a system at work is not held up by them, and under them, so that none registers from here to the commit (0002_liveness).
    PERFORM refuse_living_instances();
    EXECUTE 'LOCK TABLE deferred_jobs, promotion_states, queue_ring_slots, queue_ring_sealed, queue_ring_closed, claim_ring_slots, prune_states, runtime_instances, ' || v_children || ' IN ACCESS EXCLUSIVE MODE';
    PERFORM refuse_living_instances();
    PERFORM setval('queue_ring_pointer', s.generation * 16 + s.slot) FROM (SELECT * FROM queue_ring_slots ORDER BY generation DESC LIMIT 1) s;
    PERFORM setval('claim_ring_pointer', s.generation * 16 + s.slot) FROM (SELECT * FROM claim_ring_slots ORDER BY generation DESC LIMIT 1) s;
    PERFORM setval('job_id_seq', greatest((SELECT last_value FROM job_id_seq), (SELECT max(job_id) FROM ready_entries), (SELECT max(job_id) FROM deferred_jobs),
                                          (SELECT max(job_id) FROM done_entries)));
    PERFORM setval('lease_claim_batch_id_seq', greatest((SELECT last_value FROM lease_claim_batch_id_seq), (SELECT max(batch_id) FROM lease_claim_batches),
                                                        (SELECT max(batch_id) FROM ready_claim_attempt_batches)));
    -- The sequence may have been set back by the move: what is open is looked for among all batches.
    UPDATE queue_ring_slots SET above_batch = 0;
    UPDATE queue_ring_closed SET upto_batch = 9223372036854775807;
    DELETE FROM prune_states;
    DROP TABLE IF EXISTS pg_temp.rebase_spent, pg_temp.rebase_lanes;
    CREATE TEMP TABLE rebase_spent ON COMMIT DROP AS SELECT * FROM spent_leases();
    CREATE INDEX ON rebase_spent (job_id);
    CREATE TEMP TABLE rebase_lanes ON COMMIT DROP AS
        SELECT lane_id, read_lane_state(open_queue_slots(), lane_id) AS state FROM (SELECT DISTINCT lane_id FROM lane_states) lanes;
    CREATE INDEX ON rebase_lanes (lane_id);
    PERFORM rebase_slot(slot, v_move_age) FROM generate_series(0, 15) slot;
    EXECUTE 'TRUNCATE ' || (SELECT string_agg(format('%I.lane_states%s', current_schema(), to_char(slot, 'FM"_"00')), ', ') FROM generate_series(0, 15) slot);
    PERFORM pg_current_xact_id();
    v_end := window_end();
    PERFORM write_lane_state((enter_queue_slot() & 15)::int, lane_id, (0, NULL, pg_snapshot_xmax(v_end), -1, v_end, v_end, NULL, NULL)::lane_state) FROM rebase_lanes;
    UPDATE deferred_jobs SET xid = pg_current_xact_id();
    DELETE FROM promotion_states;
    INSERT INTO promotion_states VALUES (0, '-infinity', 0, '1:1:', '{}');
END $$;
