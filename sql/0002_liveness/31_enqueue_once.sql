-- The enqueue of a request that carries an idempotency key.

-- enqueue_batch and claim_idempotency_key in one: takes the key and stores the jobs, or, when the key was used before, stores nothing and says
-- what was stored then. A key stands for a whole request: with another number of jobs it is refused. Returns, for a new key, a row for each job that was
-- refused (known false, no job_id), the others are stored under their ids; for a known key a row for each job in order (known true), with the
-- id it got then, or NULL where it was refused then.
-- Locks: as enqueue_batch; the key, until commit. Waits for another open use of the same key, 200 ms at most (then 55P03: nothing was done): its
-- connection is then missing to others.
-- Idempotent for as long as keys are kept.
CREATE FUNCTION enqueue_once(p_key text, p_queues text[], p_queue_of smallint[], p_job_ids bigint[], p_priorities smallint[], p_kinds text[], p_args text[],
                             p_max_attempts smallint[], p_run_ats timestamptz[], p_ordering_keys text[], p_metadata text[], p_traceparents text[])
RETURNS TABLE (item int, code text, reason text, known boolean, job_id bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET lock_timeout = '200ms' SET jit = off AS $$
DECLARE
    v_ids bigint[] := claim_idempotency_key(p_key, p_job_ids);
    v_bad record;
BEGIN
    IF cardinality(v_ids) <> cardinality(p_job_ids) THEN
        RAISE EXCEPTION 'idempotency_key: was first used for % jobs, now for %', cardinality(v_ids), cardinality(p_job_ids) USING ERRCODE = 'invalid_parameter_value';
    ELSIF v_ids IS NOT NULL THEN
        RETURN QUERY SELECT k.i::int, NULL::text, NULL::text, true, k.id FROM unnest(v_ids) WITH ORDINALITY k(id, i) ORDER BY k.i;
        RETURN;
    END IF;
    v_ids := p_job_ids;
    FOR v_bad IN SELECT * FROM enqueue_batch(p_queues, p_queue_of, p_job_ids, p_priorities, p_kinds, p_args, p_max_attempts, p_run_ats, p_ordering_keys,
                                             p_metadata, p_traceparents) LOOP
        v_ids[v_bad.item] := NULL;
        item := v_bad.item;
        code := v_bad.code;
        reason := v_bad.reason;
        known := false;
        RETURN NEXT;
    END LOOP;
    IF array_position(v_ids, NULL) IS NOT NULL THEN
        UPDATE idempotency_keys SET job_ids = v_ids WHERE key = p_key;
    END IF;
END $$;
