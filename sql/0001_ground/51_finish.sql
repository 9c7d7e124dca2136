-- Finish: the general path, one attempt at a time, for every outcome that is not a plain completion.
--
-- The same discipline as 50_complete.sql (locks, then durable evidence), with one closure row an attempt. What happens to the job:
--   retry   a failed attempt: deferred until the backoff is over, or failed when attempts are used up
--   snooze  deferred, the attempt does not count
--   fail, cancel   terminal now
--   release available again at once, the attempt does not count
--   worker lost  a retry, recorded as that error, and a crash: at the third in a row the job fails as "crashed"
--   proxy lost   a retry, recorded as that error, that is no crash; only rescue ends an attempt so (0002_liveness)
-- Crashes are in a row until an attempt ends by its worker's own word, with retry or snooze: a released or proxy-lost one says nothing.
-- run_lease grows with every claim and never returns, so an old receipt can never end a newer attempt.
-- A job whose stored body cannot be read any more is failed, whatever the outcome would have made of it (cancel stays cancel): there is nothing left to run.
-- Its history is that error alone. The closure records the outcome that was asked for, so that its repetition is ALREADY_DONE.

CREATE FUNCTION max_delay_ms() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 30 * 86400000::bigint $$;

-- How long a job waits after its attempt number p_attempt failed: 2^attempt seconds, up to 25 % more by chance, a day at most.
CREATE FUNCTION retry_backoff(p_attempt int) RETURNS interval
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT least(make_interval(secs => 2 ^ least(p_attempt, 17) * (1 + random() * 0.25)), interval '24 hours')
$$;

-- So many crashes in a row make a job fail, whatever attempts it has left: it kills its workers.
CREATE FUNCTION crash_limit() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 3 $$;

-- A job's history with one more error; the newest 20 are kept.
CREATE FUNCTION add_error(p_payload jsonb, p_attempt int, p_error text, p_now timestamptz) RETURNS jsonb
LANGUAGE sql STABLE AS $$
    SELECT jsonb_set(coalesce(p_payload, '{}'), '{errors}',
        (SELECT jsonb_agg(kept.e ORDER BY kept.ord)
           FROM (SELECT e, ord FROM jsonb_array_elements(coalesce(p_payload -> 'errors', '[]') || jsonb_build_object('attempt', p_attempt, 'at', p_now, 'error', p_error))
                        WITH ORDINALITY all_of(e, ord) ORDER BY ord DESC LIMIT 20) kept))
$$;

-- The history of a job of which that is all that is left.
CREATE FUNCTION unreadable_history(p_attempt int, p_now timestamptz) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT add_error(NULL, p_attempt, 'unreadable: the stored body of the job cannot be read', p_now)
$$;

-- Puts a job aside until p_due_at.
CREATE FUNCTION insert_deferred(p_job_id bigint, p_due_at timestamptz, p_state job_state, p_run_lease int, p_attempt smallint, p_body job_body) RETURNS void
LANGUAGE sql VOLATILE AS $$
    INSERT INTO deferred_jobs (job_id, xid, due_at, lane_id, created_at, run_lease, attempt, max_attempts, state, kind, args, metadata, payload, traceparent, ordering_key)
    VALUES (p_job_id, pg_current_xact_id(), p_due_at, (p_body).lane_id, (p_body).created_at, p_run_lease, p_attempt, (p_body).max_attempts, p_state, (p_body).kind, (p_body).args,
            (p_body).metadata, (p_body).payload, (p_body).traceparent, (p_body).ordering_key)
$$;

-- Carries out an outcome other than completion on a job whose open attempt the caller has locked. False when the outcome is refused.
CREATE FUNCTION end_attempt(p_batch claim_batch, p_job_id bigint, p_run_lease int, p_attempt smallint, p_outcome int, p_delay_ms bigint, p_error text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_body job_body := read_what_is_left(p_batch.ready_slot, p_job_id, p_run_lease - 1);
    v_unreadable boolean := v_body.args IS NULL;
    v_snoozes int := coalesce((v_body.payload ->> 'snoozes')::int, 0);
    v_error text := CASE p_outcome WHEN 7 THEN 'worker lost' WHEN 8 THEN 'proxy lost' ELSE p_error END;
    v_to_retry boolean := p_outcome IN (2, 7, 8);
    v_crashes int := 0;             -- in a row, this one included
BEGIN
    IF v_unreadable THEN
        v_body.kind := coalesce(v_body.kind, '');
        v_body.payload := unreadable_history(p_attempt, v_now);
    END IF;
    IF v_to_retry OR p_outcome = 4 OR p_outcome = 5 AND v_error IS NOT NULL THEN
        v_body.payload := add_error(v_body.payload, p_attempt, coalesce(v_error, ''), v_now);
    END IF;
    IF p_outcome = 7 THEN
        v_crashes := coalesce((v_body.payload ->> 'crashes')::int, 0) + 1;
        v_body.payload := v_body.payload || jsonb_build_object('crashes', v_crashes);
        IF v_crashes >= crash_limit() THEN
            v_body.payload := add_error(v_body.payload, p_attempt, 'crashed', v_now);
        END IF;
    ELSIF p_outcome IN (2, 3) THEN
        v_body.payload := v_body.payload - 'crashes';
    END IF;
    IF p_outcome = 4 OR v_unreadable AND p_outcome <> 5 OR v_to_retry AND p_attempt >= v_body.max_attempts OR v_crashes >= crash_limit() THEN
        PERFORM insert_done_entry(p_batch.ready_slot, p_job_id, p_run_lease, p_batch.lane_id, p_batch.claimed_at, v_now, 'failed', p_attempt, v_body.kind, v_body.payload);
    ELSIF p_outcome = 5 THEN
        PERFORM insert_done_entry(p_batch.ready_slot, p_job_id, p_run_lease, p_batch.lane_id, p_batch.claimed_at, v_now, 'cancelled', p_attempt, v_body.kind, v_body.payload);
    ELSIF v_to_retry THEN
        PERFORM insert_deferred(p_job_id, v_now + CASE WHEN p_delay_ms > 0 THEN make_interval(secs => p_delay_ms / 1000.0) ELSE retry_backoff(p_attempt) END,
                                'retryable', p_run_lease, p_attempt, v_body);
    ELSIF p_outcome = 3 THEN
        IF v_snoozes >= 1000 THEN
            RETURN false;
        END IF;
        v_body.payload := coalesce(v_body.payload, '{}') || jsonb_build_object('snoozes', v_snoozes + 1);
        PERFORM insert_deferred(p_job_id, v_now + make_interval(secs => p_delay_ms / 1000.0), 'scheduled', p_run_lease, (p_attempt - 1)::smallint, v_body);
    ELSE
        PERFORM insert_returned((enter_queue_slot() & 15)::int, p_job_id, p_run_lease, (p_attempt - 1)::smallint, v_now, v_body);
        PERFORM wake_lanes(ARRAY[p_batch.lane_id]);
    END IF;
    RETURN true;
END $$;

-- Ends one attempt; statuses as in complete_batch, outcomes as in finish_items, and 8 proxy lost.
CREATE FUNCTION finish_item(p_claim_slot smallint, p_batch_id bigint, p_nonce bigint, p_index smallint, p_job_id bigint, p_run_lease int,
                            p_outcome smallint, p_delay_ms bigint, p_error text) RETURNS smallint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_batch claim_batch;
    v_ended_as smallint;
    v_delay_ms bigint := coalesce(p_delay_ms, 0);
BEGIN
    IF NOT is_claim_slot(p_claim_slot) THEN
        RETURN 4;
    ELSIF (p_outcome BETWEEN 1 AND 8) IS NOT TRUE OR v_delay_ms NOT BETWEEN (p_outcome = 3)::int AND max_delay_ms() OR octet_length(p_error) > 4096 THEN
        RETURN 5;
    END IF;
    IF NOT (pg_try_advisory_xact_lock_shared(advisory_key('claim_slot', p_claim_slot)) AND pg_try_advisory_xact_lock_shared(advisory_key('batch', p_batch_id))
            AND pg_try_advisory_xact_lock(attempt_key(p_job_id, p_run_lease))) THEN
        RETURN 7;
    END IF;
    IF p_outcome = 1 THEN
        RETURN (complete_groups(p_claim_slot, ARRAY[p_batch_id], ARRAY[p_nonce], ARRAY[1], ARRAY[p_index], ARRAY[p_job_id], ARRAY[p_run_lease], ARRAY[true]))[1];
    END IF;
    v_batch := read_claim_batch(p_claim_slot, p_batch_id);
    IF v_batch.nonce IS DISTINCT FROM p_nonce THEN
        RETURN 4;
    ELSIF p_index NOT BETWEEN 1 AND v_batch.n OR p_job_id <> v_batch.job_ids[p_index] OR p_run_lease <> coalesce(v_batch.run_leases[p_index], 1) THEN
        RETURN 5;
    END IF;
    v_ended_as := CASE WHEN get_bit(v_batch.completed, p_index - 1) = 1 THEN 1 ELSE closure_outcome(p_claim_slot, p_batch_id, p_index) END;
    IF v_ended_as IS NOT NULL THEN
        RETURN CASE WHEN v_ended_as = p_outcome THEN 2 ELSE 3 END;
    END IF;
    IF NOT end_attempt(v_batch, p_job_id, p_run_lease, coalesce(v_batch.attempts[p_index], 1::smallint), p_outcome, v_delay_ms, p_error) THEN
        RETURN 5;
    END IF;
    PERFORM insert_closure(p_claim_slot, p_batch_id, p_index, p_outcome, clock_timestamp());
    RETURN 1;
END $$;

-- Ends attempts, each with its own outcome: 1 complete, 2 retry, 3 snooze, 4 fail, 5 cancel, 6 release, 7 worker lost (its error is that,
-- whatever p_errors says). Parallel arrays, one element an item; delays 0 or NULL mean the policy (snooze needs one); the 65th item and later ones come back BUSY. Returns statuses in order.
-- Locks: per item the claim slot and the batch (shared), the attempt (exclusive), until commit; release also the current queue slot
-- (shared), and it notifies. All tried: waits for nobody; a commit with a release waits for other commits that notify (26_wake.sql). Idempotent: the same outcome again answers ALREADY_DONE, another one STALE.
CREATE FUNCTION finish_items(p_claim_slots smallint[], p_batch_ids bigint[], p_nonces bigint[], p_indexes smallint[], p_job_ids bigint[], p_run_leases int[],
                             p_outcomes smallint[], p_delays_ms bigint[], p_errors text[]) RETURNS smallint[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_statuses smallint[] := '{}';
BEGIN
    PERFORM require_read_committed('finish_items');
    FOR i IN 1 .. coalesce(cardinality(p_batch_ids), 0) LOOP
        v_statuses := v_statuses || CASE WHEN i > max_batch_keys() THEN 7::smallint
            WHEN p_outcomes[i] > 7 THEN 5::smallint
            ELSE finish_item(p_claim_slots[i], p_batch_ids[i], p_nonces[i], p_indexes[i], p_job_ids[i], p_run_leases[i], p_outcomes[i], p_delays_ms[i], p_errors[i]) END;
    END LOOP;
    RETURN v_statuses;
END $$;
