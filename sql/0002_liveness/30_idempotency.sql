-- Idempotency keys: a client that has lost the answer to an enqueue repeats it, over any proxy, under the same key, and gets the same ids.
--
-- A key is taken in the enqueue's own transaction, so key and jobs exist together or not at all. Rows are written only for requests that carry a key, and
-- kept for ten minutes. Under a pinned snapshot the rows that were purged stay in the index that purge walks, so its cost then grows with the
-- keyed requests since the pin.

CREATE TABLE idempotency_keys (
    key        text PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_ids    bigint[] NOT NULL
);
CREATE INDEX idempotency_keys_created_at ON idempotency_keys (created_at);

CREATE FUNCTION idempotency_retention() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT interval '10 minutes' $$;

-- Takes a key for the jobs about to be enqueued in this transaction: NULL when it is new, else the ids it was first used for, and nothing is to be enqueued.
-- Locks: the key, until commit. Waits for another use of the same key that has not ended: the one wait that an enqueue may have; and for a purge of
-- that key, some milliseconds, when it is older than ten minutes. Idempotent: that is its purpose.
CREATE FUNCTION claim_idempotency_key(p_key text, p_job_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $$
DECLARE
    v_job_ids bigint[];
BEGIN
    PERFORM require_read_committed('claim_idempotency_key');
    IF octet_length(p_key) NOT BETWEEN 1 AND 200 OR p_key IS NULL THEN
        RAISE EXCEPTION 'idempotency_key must be 1 to 200 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF cardinality(p_job_ids) = 0 OR p_job_ids IS NULL THEN
        RAISE EXCEPTION 'an idempotency_key stands for one job at least' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        INSERT INTO idempotency_keys (key, job_ids) VALUES (p_key, p_job_ids) ON CONFLICT (key) DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT k.job_ids INTO v_job_ids FROM idempotency_keys k WHERE k.key = p_key;
        IF FOUND THEN
            RETURN v_job_ids;
        END IF;
        -- It was purged between the two statements: it is new again.
    END LOOP;
END $$;

-- Forgets up to p_limit keys that are older than ten minutes, the oldest first; how many. Call again while it returns p_limit.
-- Locks: the rows it deletes (skipped when locked). Waits for nobody. Idempotent.
CREATE FUNCTION purge_idempotency_keys(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_purged int;
BEGIN
    PERFORM require_read_committed('purge_idempotency_keys');
    DELETE FROM idempotency_keys WHERE key = ANY (ARRAY(
        SELECT k.key FROM idempotency_keys k WHERE k.created_at < clock_timestamp() - idempotency_retention() ORDER BY k.created_at LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_purged = ROW_COUNT;
    RETURN v_purged;
END $$;
