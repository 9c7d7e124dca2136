-- The answer to a claim that was lost on its way.
--
-- The proxy put a nonce into the claim, so whether it committed is a matter of record. Asked only once the backend that ran it is gone
-- (10_backends.sql): until then "no row" proves nothing.

-- The bodies of a batch, one by one where some of them cannot be read: of such a job kind and args are NULL, and the rest is what is left. All NULL where
-- all are gone and p_ended, that is, all attempts have ended: they were pruned.
CREATE FUNCTION read_batch_bodies(p_ready_slot smallint, p_job_ids bigint[], p_run_leases int[], p_ended boolean) RETURNS job_bodies
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_bodies job_bodies;
    v_body job_body;
BEGIN
    BEGIN
        v_bodies := read_job_bodies(p_ready_slot, p_job_ids, p_run_leases);
        IF cardinality(v_bodies.kinds) = cardinality(p_job_ids) OR p_ended AND v_bodies.kinds IS NULL THEN
            RETURN v_bodies;
        END IF;
    EXCEPTION WHEN internal_error THEN
        NULL;
    END;
    v_bodies := ('{}', '{}', '{}', '{}', '{}', '{}', 0);
    FOR i IN 1 .. cardinality(p_job_ids) LOOP
        v_body := read_what_is_left(p_ready_slot, p_job_ids[i], coalesce(p_run_leases[i], 1) - 1);
        v_bodies := (v_bodies.max_attempts || v_body.max_attempts, v_bodies.created_ats || v_body.created_at, v_bodies.kinds || CASE WHEN v_body.args IS NOT NULL THEN v_body.kind END,
                     array_append(v_bodies.args, v_body.args), array_append(v_bodies.metadata, v_body.metadata), v_bodies.traceparents || v_body.traceparent,
                     v_bodies.bytes + coalesce(octet_length(v_body.args::text), 0) + coalesce(octet_length(v_body.metadata::text), 0))::job_bodies;
    END LOOP;
    RETURN v_bodies;
END $$;

-- What the claim of p_instance with p_nonce handed out: its batches as claim() returns them, with all their jobs, also those that have ended since; the
-- caller finds that out when it finishes them. places are not stored: NULL. No row: that claim did not commit, or everything it took has
-- ended so long ago that the bodies were pruned. As in claim(), a job whose body cannot be read has kind and args NULL. A single row of status 7: a claim slot was in the middle of being pruned; ask again in
-- some milliseconds.
-- Cost: no index leads to a nonce, so it reads all batches with numbers above p_above, about a millisecond for each ten thousand of them in memory. The
-- caller knows that the claim's are: as long as a session lives its batches have ascending numbers, so p_above is the last one that the lost session has
-- answered with; 0 where it had none yet.
-- Locks: claim slots (shared, tried) until commit. Waits for a prune of the queue slot that holds the bodies, which can only be if all of them ended
-- long ago. Idempotent: reads only.
CREATE FUNCTION claim_result(p_instance bigint, p_nonce bigint, p_above bigint) RETURNS SETOF claimed_batch
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_busy claimed_batch;
    v_slots smallint[] := '{}';     -- of each found batch, its claim slot
    v_found found_batch[] := '{}';
    v_slot smallint;
    v_mine found_batch[];
    v_batch claim_batch;
    v_bodies job_bodies;
    v_n int;
BEGIN
    PERFORM require_read_committed('claim_result');
    FOR v_slot IN SELECT slot FROM claim_ring_slots ORDER BY generation LOOP
        IF NOT pg_try_advisory_xact_lock_shared(advisory_key('claim_slot', v_slot)) THEN
            v_busy.status := 7;
            RETURN NEXT v_busy;
            RETURN;
        END IF;
        v_mine := ARRAY(SELECT b::found_batch FROM find_claim_batches(v_slot, p_instance, p_nonce, p_above) b);
        v_found := v_found || v_mine;
        v_slots := v_slots || array_fill(v_slot, ARRAY[cardinality(v_mine)]);
    END LOOP;
    FOR i IN 1 .. cardinality(v_found) LOOP
        v_n := cardinality(v_found[i].job_ids);
        v_batch := read_claim_batch(v_slots[i], v_found[i].batch_id);
        v_bodies := read_batch_bodies(v_found[i].ready_slot, v_found[i].job_ids, v_found[i].run_leases, bit_count(v_batch.completed | v_batch.otherwise) = v_n);
        CONTINUE WHEN v_bodies.kinds IS NULL;
        RETURN NEXT (1::smallint, lane_queue(v_found[i].lane_id), lane_priority(v_found[i].lane_id), v_slots[i], v_found[i].batch_id, v_found[i].job_ids,
                     coalesce(v_found[i].run_leases, array_fill(1, ARRAY[v_n])), coalesce(v_found[i].attempts, array_fill(1::smallint, ARRAY[v_n])), v_bodies.max_attempts,
                     v_bodies.created_ats, v_bodies.kinds, v_bodies.args, v_bodies.metadata, v_bodies.traceparents, NULL, v_bodies.bytes)::claimed_batch;
    END LOOP;
END $$;
