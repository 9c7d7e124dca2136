-- Whether an enqueue whose answer was lost took place.

-- Which of these ids are stored, in whatever state, in their order. Asked once the backend that enqueued is gone. A job whose slot was pruned
-- is not found, so the question has to be asked within the completed retention.
-- Locks nothing. Waits for a prune in progress at most. Idempotent: reads only, one index probe a slot and id.
CREATE FUNCTION jobs_exist(p_job_ids bigint[]) RETURNS boolean[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_found bigint[];
BEGIN
    PERFORM require_read_committed('jobs_exist');
    -- Deferred jobs first: between two of these statements a job may go from there to a slot, and what goes the other way leaves its body behind.
    v_found := ARRAY(SELECT d.job_id FROM unnest(p_job_ids) k(job_id) CROSS JOIN LATERAL (SELECT * FROM deferred_jobs j WHERE j.job_id = k.job_id) d);
    FOR slot IN 0 .. 15 LOOP
        v_found := v_found || jobs_with_body(slot, p_job_ids);
    END LOOP;
    -- A deferred job that was cancelled is only here.
    FOR slot IN 0 .. 15 LOOP
        v_found := v_found || jobs_with_done_entry(slot, p_job_ids);
    END LOOP;
    RETURN ARRAY(SELECT k.job_id IN (SELECT unnest(v_found)) FROM unnest(p_job_ids) WITH ORDINALITY k(job_id, i) ORDER BY k.i);
END $$;
