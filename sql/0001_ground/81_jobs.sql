-- One job by its id.

-- A job's state and body; no row when it never existed or was pruned. A body that cannot be read is NULL, with a warning. Reads only, waits for a prune in progress at most.
CREATE FUNCTION get_job(p_job_id bigint)
RETURNS TABLE (job_id bigint, queue text, kind text, state job_state, priority smallint, attempt smallint, max_attempts smallint, run_lease int, args json, metadata json,
               payload jsonb, traceparent text, ordering_key text, created_at timestamptz, due_at timestamptz, attempted_at timestamptz, finalized_at timestamptz)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_place job_place;
    v_body job_body;
    v_due_at timestamptz;
    v_end job_body;         -- what the terminal fact says, if there is one
BEGIN
    LOOP
        v_place := locate_job(p_job_id);
        EXIT WHEN v_place.state IS DISTINCT FROM 'scheduled' AND v_place.state IS DISTINCT FROM 'retryable';
        v_body := read_deferred_body(p_job_id);
        SELECT d.due_at INTO v_due_at FROM deferred_jobs d WHERE d.job_id = p_job_id AND d.run_lease = v_place.run_lease;
        EXIT WHEN FOUND;    -- else it has become due meanwhile
    END LOOP;
    IF v_place.state IS NULL THEN
        RETURN;
    END IF;
    IF v_place.state NOT IN ('scheduled', 'retryable') THEN
        SELECT d.lane_id, d.created_at, d.max_attempts, d.kind, d.args, d.metadata, d.payload, d.traceparent, d.ordering_key INTO v_end
          FROM done_entries d WHERE d.ready_slot = v_place.slot AND d.job_id = p_job_id AND d.run_lease = v_place.run_lease;
        IF v_end.args IS NULL THEN
            v_body := read_what_is_left(v_place.slot, p_job_id, v_place.run_lease - CASE WHEN v_place.state = 'available' THEN 0 ELSE 1 END);
        END IF;
        IF v_body.kind IS NULL THEN
            v_body := v_end;
        END IF;
    END IF;
    RETURN QUERY SELECT p_job_id, lane_queue(v_body.lane_id), v_body.kind, v_place.state, lane_priority(v_body.lane_id), v_place.attempt, v_body.max_attempts, v_place.run_lease,
        v_body.args, v_body.metadata, coalesce(v_end.payload, v_body.payload), v_body.traceparent, v_body.ordering_key, v_body.created_at, v_due_at, v_place.claimed_at, v_place.finalized_at;
END $$;
