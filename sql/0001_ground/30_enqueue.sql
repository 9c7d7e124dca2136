-- Enqueue: waits for nobody. What an enqueue holds until its commit is the shared key of the current queue slot, which nobody waits for.
--
-- All roads lead through store_jobs(): the proxy's batch, awa.enqueue and awa.enqueue_many. A job with a future run_at becomes a row
-- of deferred_jobs, every other a row of ready_entries. Bulk first; only when the bulk fails are the jobs stored one by one, each in
-- a subtransaction of its own, so that a bad one fails alone.

-- The shard an ordering key picks. Jobs without a key share shard 0.
CREATE FUNCTION ordering_shard(p_ordering_key text, p_shards int) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN p_ordering_key IS NULL OR p_shards <= 1 THEN 0
                ELSE (hashtextextended(p_ordering_key, 0) & 9223372036854775807) % p_shards END::int
$$;

-- Stores good jobs, or raises. Arrays are parallel; p_run_ats, p_ordering_keys, p_metadata and p_traceparents may be NULL.
CREATE FUNCTION store_jobs(p_pointer bigint, p_now timestamptz, p_lane_ids bigint[], p_job_ids bigint[], p_kinds text[], p_args text[], p_max_attempts smallint[],
                           p_run_ats timestamptz[], p_ordering_keys text[], p_metadata text[], p_traceparents text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_xid xid8 := pg_current_xact_id();
    v_ready int[];
BEGIN
    IF p_run_ats IS NULL THEN
        PERFORM insert_ready((p_pointer & 15)::int, v_xid, p_now, p_lane_ids, p_job_ids, p_kinds, p_args, p_max_attempts, p_ordering_keys, p_metadata, p_traceparents);
        RETURN;
    END IF;
    INSERT INTO deferred_jobs (job_id, xid, due_at, lane_id, created_at, run_lease, attempt, max_attempts, state, kind, args, metadata, traceparent, ordering_key)
    SELECT j.job_id, v_xid, j.run_at, j.lane_id, p_now, 0, 0, j.max_attempts, 'scheduled', j.kind, j.args::json, j.metadata::json, j.traceparent, j.ordering_key
      FROM unnest(p_lane_ids, p_job_ids, p_kinds, p_args, p_max_attempts, p_run_ats, p_ordering_keys, p_metadata, p_traceparents)
           j(lane_id, job_id, kind, args, max_attempts, run_at, ordering_key, metadata, traceparent)
     WHERE j.run_at > p_now;
    v_ready := ARRAY(SELECT ord FROM unnest(p_run_ats) WITH ORDINALITY r(run_at, ord) WHERE coalesce(run_at, p_now) <= p_now ORDER BY ord);
    PERFORM insert_ready((p_pointer & 15)::int, v_xid, p_now,
        ARRAY(SELECT p_lane_ids[i] FROM unnest(v_ready) i), ARRAY(SELECT p_job_ids[i] FROM unnest(v_ready) i), ARRAY(SELECT p_kinds[i] FROM unnest(v_ready) i),
        ARRAY(SELECT p_args[i] FROM unnest(v_ready) i), ARRAY(SELECT p_max_attempts[i] FROM unnest(v_ready) i), ARRAY(SELECT p_ordering_keys[i] FROM unnest(v_ready) i),
        ARRAY(SELECT p_metadata[i] FROM unnest(v_ready) i), ARRAY(SELECT p_traceparents[i] FROM unnest(v_ready) i));
END $$;

-- The proxy's enqueue. p_queues lists distinct queues; p_queue_of[i] (1-based) is the queue of item i; the other arrays have one
-- element an item, the last four may be NULL as a whole. Ids come from reserve_job_ids. Returns a row for each item that was
-- refused, the others are stored.
-- Locks: the current slot's key, shared. Waits for nobody. Not idempotent: the caller knows by the ids whether it happened.
CREATE FUNCTION enqueue_batch(p_queues text[], p_queue_of smallint[], p_job_ids bigint[], p_priorities smallint[], p_kinds text[], p_args text[], p_max_attempts smallint[],
                              p_run_ats timestamptz[], p_ordering_keys text[], p_metadata text[], p_traceparents text[])
RETURNS TABLE (item int, code text, reason text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off AS $$
DECLARE
    v_pointer bigint := enter_queue_slot();
    v_now timestamptz := clock_timestamp();
    v_bases bigint[];
    v_shards smallint[];
    v_bad_queues text[];            -- the refusal of each queue, NULL for a good one
    v_lane_ids bigint[];
    v_refused boolean;
    v_refusal text;
BEGIN
    SELECT array_agg(lane_base(q.queue)), array_agg(coalesce((SELECT m.enqueue_shards FROM queue_meta m WHERE m.queue = q.queue), 1)), array_agg(queue_refusal(q.queue))
      INTO v_bases, v_shards, v_bad_queues
      FROM unnest(p_queues) q(queue);
    SELECT array_agg(v_bases[j.q] + (j.priority - 1) * 64 + ordering_shard(j.ordering_key, v_shards[j.q])),
           bool_or(coalesce(v_bad_queues[j.q], job_refusal(j.kind, j.args, j.priority, j.max_attempts, j.ordering_key, j.metadata, j.traceparent)) IS NOT NULL)
      INTO v_lane_ids, v_refused
      FROM unnest(p_queue_of, p_priorities, p_kinds, p_args, p_max_attempts, p_ordering_keys, p_metadata, p_traceparents)
           j(q, priority, kind, args, max_attempts, ordering_key, metadata, traceparent);
    IF NOT v_refused THEN
        BEGIN
            PERFORM register_lanes(v_lane_ids, p_queues);
            PERFORM store_jobs(v_pointer, v_now, v_lane_ids, p_job_ids, p_kinds, p_args, p_max_attempts, p_run_ats, p_ordering_keys, p_metadata, p_traceparents);
            RETURN;
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            NULL;   -- one of them is bad: find it below
        END;
    END IF;
    FOR i IN 1 .. cardinality(p_job_ids) LOOP
        v_refusal := coalesce(v_bad_queues[p_queue_of[i]],
                              job_refusal(p_kinds[i], p_args[i], p_priorities[i], p_max_attempts[i], p_ordering_keys[i], p_metadata[i], p_traceparents[i]));
        IF v_refusal IS NOT NULL THEN
            item := i; code := '22023'; reason := v_refusal;
            RETURN NEXT;
            CONTINUE;
        END IF;
        BEGIN
            PERFORM register_lanes(v_lane_ids[i:i], ARRAY[p_queues[p_queue_of[i]]]);
            PERFORM store_jobs(v_pointer, v_now, v_lane_ids[i:i], p_job_ids[i:i], p_kinds[i:i], p_args[i:i], p_max_attempts[i:i],
                               p_run_ats[i:i], p_ordering_keys[i:i], p_metadata[i:i], p_traceparents[i:i]);
        EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded THEN
            item := i; code := SQLSTATE; reason := SQLERRM;
            RETURN NEXT;
        END;
    END LOOP;
END $$;

-- Enqueues jobs inside the caller's own transaction: they exist if and only if it commits. Any isolation level, any snapshot age.
-- One job an element of p_args; the other parameters hold for all. Returns the ids in order. Raises on the first bad job, with its reason.
-- Locks: the current slot's key, shared, until commit. Waits for nobody.
CREATE FUNCTION enqueue_many(queue text, kind text, args json[], priority int DEFAULT 2, max_attempts int DEFAULT 25, run_at timestamptz DEFAULT NULL,
                             ordering_key text DEFAULT NULL, metadata json DEFAULT NULL, traceparent text DEFAULT NULL)
RETURNS SETOF bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    v_count int := coalesce(cardinality(args), 0);
    v_ids bigint[];
    v_bad record;
BEGIN
    IF v_count = 0 THEN
        RETURN;
    END IF;
    v_ids := ARRAY(SELECT nextval('job_id_seq') FROM generate_series(1, v_count));
    SELECT * INTO v_bad FROM enqueue_batch(ARRAY[queue], array_fill(1::smallint, ARRAY[v_count]), v_ids, array_fill(priority::smallint, ARRAY[v_count]), array_fill(kind, ARRAY[v_count]),
        args::text[], array_fill(max_attempts::smallint, ARRAY[v_count]),
        CASE WHEN run_at IS NOT NULL THEN array_fill(run_at, ARRAY[v_count]) END, CASE WHEN ordering_key IS NOT NULL THEN array_fill(ordering_key, ARRAY[v_count]) END,
        CASE WHEN metadata IS NOT NULL THEN array_fill(metadata::text, ARRAY[v_count]) END, CASE WHEN traceparent IS NOT NULL THEN array_fill(traceparent, ARRAY[v_count]) END)
     ORDER BY item LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'job %: %', v_bad.item, v_bad.reason USING ERRCODE = v_bad.code;
    END IF;
    RETURN QUERY SELECT unnest(v_ids);
END $$;

-- One job; see enqueue_many.
CREATE FUNCTION enqueue(queue text, kind text, args json DEFAULT '{}', priority int DEFAULT 2, max_attempts int DEFAULT 25, run_at timestamptz DEFAULT NULL,
                        ordering_key text DEFAULT NULL, metadata json DEFAULT NULL, traceparent text DEFAULT NULL)
RETURNS bigint
LANGUAGE sql VOLATILE SET search_path FROM CURRENT SET jit = off AS $$
    SELECT * FROM enqueue_many(queue, kind, ARRAY[args], priority, max_attempts, run_at, ordering_key, metadata, traceparent)
$$;
