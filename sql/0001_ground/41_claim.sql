-- Claim: hands out ready jobs as claim batches, durable evidence of who holds which attempt.
--
-- The order of steps in claim_lane() is its correctness; isolation specs and a torture with pauses between them hold it down:
--   1 the lane's claim mutex, 2 the open slots, 3 the lane's newest state, 4 the next window if this one is exhausted,
--   5 the open slots again if the ring pointer moved meanwhile (a row that hi sees may lie in a slot that was not there at step 2; its
--     writer read the pointer, which follows the ledger, so with the pointer of before step 2 the ledger had every such slot), 6 the rows.
-- The state is written in the claiming transaction, so a claim that rolls back changes nothing.
-- Plans: force_generic_plan and no sequential or bitmap scans, so that a plan made on an empty child stays right when it fills; jit off,
-- because a plan that has no other way than a scan it was told to avoid looks costly enough to be compiled, anew in every call.

-- Slots of the queue ring that may hold a row or a lane state that a claim needs, oldest first. Never empty. Reads the ledger only.
CREATE FUNCTION open_queue_slots() RETURNS smallint[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(SELECT s.slot FROM queue_ring_slots s WHERE NOT EXISTS (SELECT FROM queue_ring_closed c WHERE c.generation = s.generation) ORDER BY s.generation);
END $$;

SELECT pg_temp.create_slot_function(16, $sig$
    insert_claim_attempt_batch(p_slot int, p_lane_id bigint, p_batch_id bigint, p_n int) RETURNS boolean
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO ready_claim_attempt_batches_00 (lane_id, batch_id, n) VALUES (p_lane_id, p_batch_id, p_n);
        RETURN true;
$branch$);

-- What claim() returns, row by row.
CREATE TYPE claimed_batch AS (
    status smallint, queue text, priority smallint, claim_slot smallint, batch_id bigint, job_ids bigint[], run_leases int[], attempts smallint[],
    max_attempts smallint[], created_ats timestamptz[], kinds text[], args json[], metadata json[], traceparents text[], places int[], bytes bigint
);

-- Writes the evidence of one batch, to the claim slot (entered by the caller) who holds it, to the ready slot how many rows were
-- taken, and returns its id. p_run_leases and p_attempts are NULL where all are 1.
CREATE FUNCTION record_claim_batch(p_claim_slot smallint, p_instance bigint, p_nonce bigint, p_lane_id bigint, p_ready_slot smallint,
                                   p_job_ids bigint[], p_run_leases int[], p_attempts smallint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_batch_id bigint := nextval('lease_claim_batch_id_seq');
    v_ok boolean;
BEGIN
    v_ok := insert_claim_batch(p_claim_slot, v_batch_id, p_nonce, p_instance, p_lane_id, p_ready_slot, clock_timestamp(), p_job_ids, p_run_leases, p_attempts);
    v_ok := insert_claim_attempt_batch(p_ready_slot, p_lane_id, v_batch_id, cardinality(p_job_ids));
    RETURN v_batch_id;
END $$;

-- Records what was read from several slots (p_read[i] from p_slots[i]) as batches. Their places are made dense: rows that were buried
-- between finding and locking them have left holes. p_places jobs were handed out by this call before.
CREATE FUNCTION record_claim_batches(p_instance bigint, p_nonce bigint, p_queue text, p_lane_id bigint, p_slots smallint[], p_read ready_rows[], p_places int) RETURNS SETOF claimed_batch
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_order int[] := ARRAY(SELECT place FROM unnest(p_read) r CROSS JOIN LATERAL unnest(r.places) place ORDER BY place);
    v_claim_slot smallint := enter_claim_slot();
    v_batch_id bigint;
    v_rows ready_rows;
BEGIN
    FOR i IN 1 .. coalesce(cardinality(p_slots), 0) LOOP
        v_rows := p_read[i];
        CONTINUE WHEN v_rows.n = 0;
        v_rows.places := ARRAY(SELECT p_places + dense.place::int FROM unnest(v_rows.places) WITH ORDINALITY mine(found, i)
                                 JOIN unnest(v_order) WITH ORDINALITY dense(found, place) USING (found) ORDER BY mine.i);
        v_batch_id := record_claim_batch(v_claim_slot, p_instance, p_nonce, p_lane_id, p_slots[i], v_rows.job_ids,
                                         CASE WHEN NOT v_rows.plain THEN v_rows.run_leases END, CASE WHEN NOT v_rows.plain THEN v_rows.attempts END);
        RETURN NEXT (1::smallint, p_queue, lane_priority(p_lane_id), v_claim_slot, v_batch_id, v_rows.job_ids, v_rows.run_leases, v_rows.attempts, v_rows.max_attempts,
                     v_rows.created_ats, v_rows.kinds, v_rows.args, v_rows.metadata, v_rows.traceparents, v_rows.places, v_rows.bytes)::claimed_batch;
    END LOOP;
END $$;

-- The first k rows, where k is how many fit into p_max_bytes; with p_first one at least.
CREATE FUNCTION cut_ready_rows(p_rows ready_rows, p_max_bytes bigint, p_first boolean) RETURNS ready_rows
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_bytes bigint;
    k int;
BEGIN
    SELECT coalesce(max(fits.place), 0), coalesce(max(fits.bytes), 0) INTO k, v_bytes
      FROM (SELECT a.place, sum(octet_length(a.args::text) + coalesce(octet_length(a.metadata::text), 0)) OVER (ORDER BY a.place) AS bytes
              FROM unnest(p_rows.args, p_rows.metadata) WITH ORDINALITY a(args, metadata, place)) fits
     WHERE fits.bytes <= p_max_bytes OR p_first AND fits.place = 1;
    RETURN (k, p_rows.xids[1:k], p_rows.job_ids[1:k], p_rows.run_leases[1:k], p_rows.attempts[1:k], p_rows.max_attempts[1:k], p_rows.created_ats[1:k],
            p_rows.kinds[1:k], p_rows.args[1:k], p_rows.metadata[1:k], p_rows.traceparents[1:k], v_bytes, p_rows.plain, NULL)::ready_rows;
END $$;

-- Raises: after a move to another cluster, rows and states would silently wait for transaction ids that come in years.
CREATE FUNCTION refuse_foreign_state(p_queue text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'queue % holds foreign state: it was written by a cluster whose transaction ids are ahead of this one''s', p_queue
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Run "awa-proxy migrate --rebase" once, with no proxy connected.';
END $$;

-- What a claim takes from one slot, as keys; places are 1-based over all slots.
CREATE TYPE slot_pick AS (slot smallint, xids xid8[], job_ids bigint[], places int[]);
-- All of it. more: the walk ended at (at_xid, at_job_id), before the window's end. skipped: keys walked past without taking them.
CREATE TYPE lane_pick AS (picks slot_pick[], more boolean, at_xid xid8, at_job_id bigint, skipped_xids xid8[], skipped_job_ids bigint[]);

-- The general path: the first keys of the ranges over several slots, merged, tombstoned ones left out, up to p_limit and, with p_sized, p_max_bytes
-- (with p_first one at least). A slot that ended its search early bounds the merge, since it may hold a smaller key than what the others found.
-- p_guarded: somebody is invalidating jobs of this lane, so each job's key is tried, and what is refused is skipped; the walk ends
-- before the row that would not fit into the skip list (p_max_skips).
CREATE FUNCTION pick_ready_keys(p_open smallint[], p_lane_id bigint, p_ranges xid_ranges, p_limit int, p_max_bytes bigint, p_first boolean, p_guarded boolean, p_max_skips int,
                                p_sized boolean) RETURNS lane_pick
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (
    WITH found AS MATERIALIZED (
        SELECT s.slot, k.* FROM unnest(p_open) s(slot)
         CROSS JOIN LATERAL find_ready_keys(s.slot, p_lane_id, p_ranges, p_limit, p_sized) k),
    bound AS (
        SELECT examined_xid AS xid, examined_job_id AS job_id FROM found WHERE examined_xid IS NOT NULL ORDER BY 1, 2 LIMIT 1),
    merged AS MATERIALIZED (
        SELECT f.slot, u.*, row_number() OVER w AS place, sum(u.size) OVER w AS bytes
          FROM found f CROSS JOIN LATERAL unnest(f.xids, f.job_ids, f.sizes) u(xid, job_id, size)
         WHERE NOT EXISTS (SELECT FROM bound b WHERE (u.xid, u.job_id) > (b.xid, b.job_id))
        WINDOW w AS (ORDER BY u.xid, u.job_id)),
    tried AS MATERIALIZED (
        SELECT m.*, NOT p_guarded OR pg_try_advisory_xact_lock(advisory_key('job', m.job_id)) AS free
          FROM merged m WHERE place <= p_limit AND (NOT p_sized OR p_first AND place = 1 OR bytes <= p_max_bytes)),
    walked AS MATERIALIZED (
        SELECT * FROM (SELECT t.*, count(*) FILTER (WHERE NOT free) OVER (ORDER BY place) AS skips FROM tried t) t WHERE skips <= p_max_skips),
    ending AS (
        SELECT count(*) = p_limit OR count(*) < (SELECT count(*) FROM merged) AS early FROM walked),
    last_key AS (
        (SELECT xid, job_id FROM walked, ending WHERE early ORDER BY place DESC LIMIT 1) UNION ALL (SELECT xid, job_id FROM bound, ending WHERE NOT early)),
    picks AS (
        SELECT (slot, array_agg(xid ORDER BY place), array_agg(job_id ORDER BY place), array_agg(place::int ORDER BY place))::slot_pick AS pick
          FROM walked WHERE free GROUP BY slot)
    SELECT ((SELECT array_agg(pick) FROM picks), ending.early OR EXISTS (SELECT FROM bound), (SELECT xid FROM last_key), (SELECT job_id FROM last_key),
            (SELECT array_agg(xid ORDER BY place) FROM walked WHERE NOT free), (SELECT array_agg(job_id ORDER BY place) FROM walked WHERE NOT free))::lane_pick
      FROM ending);
END $$;

-- How many keys of single jobs one claim tries, and how many a lane's skip list holds.
CREATE FUNCTION max_job_keys() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 64 $$;

-- How many jobs of the largest size fit into p_max_bytes; with p_first one at least.
CREATE FUNCTION largest_jobs_within(p_max_bytes bigint, p_first boolean) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT greatest(p_first::int, least(p_max_bytes / (1048576 + 16384), max_job_keys()))::int
$$;

-- Takes from a lane's skip list what is free again, at most p_limit keys, and says what is left of it.
CREATE FUNCTION free_skipped(p_state lane_state, p_guarded boolean, p_limit int, OUT xids xid8[], OUT job_ids bigint[], OUT left_xids xid8[], OUT left_job_ids bigint[])
LANGUAGE sql VOLATILE AS $$
    WITH tried AS MATERIALIZED (
        SELECT k.*, k.place <= p_limit AND (NOT p_guarded OR pg_try_advisory_xact_lock(advisory_key('job', k.job_id))) AS free
          FROM unnest((p_state).skipped_xids, (p_state).skipped_job_ids) WITH ORDINALITY k(xid, job_id, place))
    SELECT array_agg(xid ORDER BY place) FILTER (WHERE free), array_agg(job_id ORDER BY place) FILTER (WHERE free),
           array_agg(xid ORDER BY place) FILTER (WHERE NOT free), array_agg(job_id ORDER BY place) FILTER (WHERE NOT free)
      FROM tried
$$;

-- Claims up to p_limit jobs of one lane, p_places jobs having been claimed by this call before. Returns batches; then, where fewer
-- were found than asked for, a row of status 7 if there may be more (the lane is being claimed, or a bound was reached), else 2.
-- Locks: the lane's claim mutex and guard (tried), keys of the current slots (shared, tried); where the guard is taken, keys of jobs
-- (tried). Waits for nobody.
CREATE FUNCTION claim_lane(p_instance bigint, p_nonce bigint, p_queue text, p_lane_id bigint, p_limit int, p_max_bytes bigint, p_places int) RETURNS SETOF claimed_batch
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_end claimed_batch;
    v_pointer CONSTANT bigint := pg_sequence_last_value('queue_ring_pointer');
    v_open smallint[];
    v_state lane_state;
    v_ranges xid_ranges;
    v_rows ready_rows;
    v_all lane_pick;
    v_slots smallint[];
    v_read ready_rows[];
    v_places int[];
    v_found int;
    v_taken int := 0;
    v_bytes bigint := 0;
    v_guarded boolean;              -- somebody is invalidating jobs of this lane
    -- NULL until they are true: a default is one more expression that each transaction prepares anew.
    v_fresh boolean;                -- the window was opened by this call
    v_moved boolean;                -- there is a new state to be saved
    v_more boolean;                 -- a bound ended the walk
    v_free record;
    v_claim_slot smallint;
    v_batch_id bigint;
    v_ok boolean;
BEGIN
    -- step 1: the mutex, then the guard
    IF NOT pg_try_advisory_xact_lock(advisory_key('lane', p_lane_id)) THEN
        v_end.status := 7;
        RETURN NEXT v_end;
        RETURN;
    END IF;
    v_guarded := NOT pg_try_advisory_xact_lock(advisory_key('lane_guard', p_lane_id));
    -- step 2: the open slots
    v_open := open_queue_slots();
    -- step 3: the newest state
    v_state := read_lane_state(v_open, p_lane_id);
    IF pg_snapshot_xmax(v_state.hi) > pg_snapshot_xmax(pg_current_snapshot()) THEN
        PERFORM refuse_foreign_state(p_queue);
    END IF;
    IF v_state.skipped_job_ids IS NOT NULL THEN
        SELECT * INTO v_free FROM free_skipped(v_state, v_guarded, least(p_limit, largest_jobs_within(p_max_bytes, p_places = 0)));
        IF v_free.job_ids IS NOT NULL THEN
            v_moved := true;
            v_state.skipped_xids := v_free.left_xids;
            v_state.skipped_job_ids := v_free.left_job_ids;
            v_slots := v_open;
            v_places := ARRAY(SELECT generate_series(1, cardinality(v_free.job_ids)));
            BEGIN
                v_read := ARRAY(SELECT read_ready_rows(slot, p_lane_id, v_free.xids, v_free.job_ids, v_places, true) FROM unnest(v_slots) slot);
            EXCEPTION WHEN internal_error THEN
                v_read := ARRAY(SELECT read_ready_rows_singly(slot, p_lane_id, v_free.xids, v_free.job_ids, v_places) FROM unnest(v_slots) slot);
            END;
            RETURN QUERY SELECT * FROM record_claim_batches(p_instance, p_nonce, p_queue, p_lane_id, v_slots, v_read, p_places);
            SELECT coalesce(sum(r.n), 0), coalesce(sum(r.bytes), 0) INTO v_taken, v_bytes FROM unnest(v_read) r;
        END IF;
        -- What did not fit comes before everything else, in the next call.
        v_more := NOT v_guarded AND v_state.skipped_job_ids IS NOT NULL;
    END IF;
    WHILE v_taken < p_limit AND v_more IS NOT TRUE LOOP
        IF v_state.at_xid >= pg_snapshot_xmax(v_state.hi) THEN
            EXIT WHEN v_fresh;
            -- step 4: the next window
            v_state := next_window(v_state);
            v_fresh := true;
            -- step 5: the open slots again
            IF pg_sequence_last_value('queue_ring_pointer') <> v_pointer THEN
                v_open := open_queue_slots();
            END IF;
        END IF;
        -- step 6: the rows. The blocks only read, so their subtransactions get no id and leave no trace. internal_error is class XX: damage.
        v_ranges := window_ranges(v_state);
        BEGIN
            v_rows := CASE WHEN cardinality(v_open) = 1 AND NOT v_guarded THEN find_ready_rows(v_open[1], p_lane_id, v_ranges, p_limit - v_taken) END;
        EXCEPTION WHEN internal_error THEN
            v_rows := NULL;
        END;
        IF v_rows.plain THEN
            v_found := v_rows.n;
            IF v_rows.bytes > p_max_bytes - v_bytes THEN
                v_rows := cut_ready_rows(v_rows, p_max_bytes - v_bytes, p_places + v_taken = 0);
            END IF;
            v_more := v_found = p_limit - v_taken OR v_rows.n < v_found;
            v_all := (NULL, v_more, v_rows.xids[v_rows.n], v_rows.job_ids[v_rows.n], NULL, NULL);
            IF v_rows.n > 0 THEN
                v_claim_slot := enter_claim_slot();
                v_batch_id := record_claim_batch(v_claim_slot, p_instance, p_nonce, p_lane_id, v_open[1], v_rows.job_ids, NULL, NULL);
                RETURN NEXT (1::smallint, p_queue, lane_priority(p_lane_id), v_claim_slot, v_batch_id, v_rows.job_ids, array_fill(1, ARRAY[v_rows.n]),
                             array_fill(1::smallint, ARRAY[v_rows.n]), v_rows.max_attempts, v_rows.created_ats, v_rows.kinds, v_rows.args, v_rows.metadata,
                             v_rows.traceparents, NULL, v_rows.bytes)::claimed_batch;
                v_taken := v_taken + v_rows.n;
                v_bytes := v_bytes + v_rows.bytes;
                v_moved := true;
            END IF;
        ELSE
            BEGIN
                v_all := pick_ready_keys(v_open, p_lane_id, v_ranges, CASE WHEN v_guarded THEN least(p_limit - v_taken, max_job_keys()) ELSE p_limit - v_taken END,
                                         p_max_bytes - v_bytes, p_places + v_taken = 0, v_guarded, max_job_keys() - coalesce(cardinality(v_state.skipped_job_ids), 0), true);
                v_read := ARRAY(SELECT read_ready_rows(p.slot, p_lane_id, p.xids, p.job_ids, p.places, true) FROM unnest(v_all.picks) p);
            EXCEPTION WHEN internal_error THEN
                -- A body among them cannot be read, so its size is not known either: few, then, and one by one.
                v_all := pick_ready_keys(v_open, p_lane_id, v_ranges, least(p_limit - v_taken, largest_jobs_within(p_max_bytes - v_bytes, p_places + v_taken = 0)),
                                         NULL, true, v_guarded, max_job_keys() - coalesce(cardinality(v_state.skipped_job_ids), 0), false);
                v_read := ARRAY(SELECT read_ready_rows_singly(p.slot, p_lane_id, p.xids, p.job_ids, p.places) FROM unnest(v_all.picks) p);
            END;
            v_more := v_all.more;
            v_moved := v_moved OR v_all.picks IS NOT NULL OR v_all.at_xid IS NOT NULL OR v_all.skipped_job_ids IS NOT NULL;
            v_state.skipped_xids := v_state.skipped_xids || v_all.skipped_xids;
            v_state.skipped_job_ids := v_state.skipped_job_ids || v_all.skipped_job_ids;
            v_slots := ARRAY(SELECT p.slot FROM unnest(v_all.picks) p);
            RETURN QUERY SELECT * FROM record_claim_batches(p_instance, p_nonce, p_queue, p_lane_id, v_slots, v_read, p_places + v_taken);
            SELECT v_taken + coalesce(sum(r.n), 0), v_bytes + coalesce(sum(r.bytes), 0) INTO v_taken, v_bytes FROM unnest(v_read) r;
        END IF;
        IF NOT v_more THEN
            v_state.at_xid := pg_snapshot_xmax(v_state.hi);
            v_state.at_job_id := -1;
        ELSIF v_all.at_xid IS NOT NULL THEN
            v_state.at_xid := v_all.at_xid;
            v_state.at_job_id := v_all.at_job_id;
        END IF;
    END LOOP;
    -- step 7: the new state
    IF v_moved THEN
        v_ok := write_lane_state((enter_queue_slot() & 15)::int, p_lane_id, v_state);
    ELSIF (SELECT bool_or(has_foreign_row(slot, p_lane_id)) FROM unnest(v_open) slot) THEN
        PERFORM refuse_foreign_state(p_queue);
    END IF;
    IF v_taken < p_limit THEN
        v_end.status := CASE WHEN v_more THEN 7 ELSE 2 END;
        RETURN NEXT v_end;
    END IF;
END $$;

-- When the first job of the ranges in one slot became available; blind to tombstones.
SELECT pg_temp.create_slot_function(16, $sig$
    first_available_at(p_slot int, p_lane_id bigint, p_ranges xid_ranges) RETURNS timestamptz
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT coalesce(e.available_at, e.created_at)
                  FROM unnest(p_ranges.from_xids, p_ranges.from_jobs, p_ranges.to_xids) range(from_xid, from_job, to_xid)
                 CROSS JOIN LATERAL (SELECT * FROM ready_entries_00
                                      WHERE lane_id = p_lane_id AND (xid, job_id) > (range.from_xid, range.from_job) AND xid < range.to_xid
                                      ORDER BY xid, job_id LIMIT 1) e
                 LIMIT 1);
$branch$);

-- When the oldest job that a lane could hand out next became available; NULL when none is in sight. A hint for choosing a lane: read
-- without the mutex.
CREATE FUNCTION lane_head(p_lane_id bigint) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_open smallint[] := open_queue_slots();
    v_state lane_state := read_lane_state(v_open, p_lane_id);
    v_head timestamptz;
BEGIN
    FOR round IN 1 .. 2 LOOP
        SELECT min(first_available_at(slot, p_lane_id, window_ranges(v_state))) INTO v_head FROM unnest(v_open) slot;
        EXIT WHEN v_head IS NOT NULL;
        v_state := next_window(v_state);
    END LOOP;
    RETURN v_head;
END $$;

-- The lanes of a queue in the order in which a claim should try them: best aged priority first (a step for each 60 s of waiting),
-- then the oldest head. A queue with one lane needs no look at its head.
CREATE FUNCTION lanes_to_claim(p_queue text) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_base bigint := lane_base(p_queue);
    v_lanes bigint[];
BEGIN
    v_lanes := ARRAY(SELECT lane_id FROM queue_lanes WHERE lane_id BETWEEN v_base AND v_base + 255 AND queue = p_queue);
    IF cardinality(v_lanes) > 1 THEN
        v_lanes := ARRAY(SELECT lane FROM (SELECT lane, lane_head(lane) AS head FROM (SELECT DISTINCT unnest(v_lanes) AS lane) known OFFSET 0) heads
                          ORDER BY greatest(1, lane_priority(lane) - floor(greatest(0, extract(epoch FROM clock_timestamp() - head)) / 60)) NULLS LAST, head, lane);
    END IF;
    RETURN v_lanes;
END $$;

-- Claims up to p_limit jobs, whose args and metadata sum up to at most p_max_bytes (one job at least), from p_queues in listed order.
-- Returns one row a batch (status 1); last, where fewer than p_limit were found, a row of status 2 (nothing more was there) or 7
-- (come back in some milliseconds: a lane was being claimed by another, or a bound was reached). places: NULL, or the 1-based place of each job in
-- the order of handing out, where that is not the order of the rows; bytes: of args and metadata.
-- A job whose stored body cannot be read is handed out with kind and args NULL, to be failed by whoever claimed it; its neighbours as always.
-- Locks: claim mutexes of the lanes, current slots (all tried). Waits for nobody. Not idempotent; after a lost answer p_nonce finds the batches.
CREATE FUNCTION claim(p_instance bigint, p_nonce bigint, p_queues text[], p_limit int, p_max_bytes int) RETURNS SETOF claimed_batch
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_end claimed_batch;
    v_batch claimed_batch;
    v_queue text;
    v_lanes bigint[];
    v_lane bigint;
    v_left int := p_limit;
    v_bytes_left bigint := p_max_bytes;
BEGIN
    PERFORM require_read_committed('claim');
    IF p_limit NOT BETWEEN 1 AND 4096 OR cardinality(p_queues) NOT BETWEEN 1 AND 64 THEN
        RAISE EXCEPTION 'a claim takes 1 to 4096 jobs from 1 to 64 queues' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_end.status := 2;
    FOREACH v_queue IN ARRAY p_queues LOOP
        v_lanes := lanes_to_claim(v_queue);
        IF cardinality(p_queues) = 1 AND cardinality(v_lanes) = 1 THEN
            -- By far the most frequent case: what the lane says is the answer.
            RETURN QUERY SELECT * FROM claim_lane(p_instance, p_nonce, v_queue, v_lanes[1], p_limit, p_max_bytes, 0);
            RETURN;
        END IF;
        FOREACH v_lane IN ARRAY v_lanes LOOP
            FOR v_batch IN SELECT * FROM claim_lane(p_instance, p_nonce, v_queue, v_lane, v_left, v_bytes_left, p_limit - v_left) LOOP
                IF v_batch.status = 1 THEN
                    v_left := v_left - cardinality(v_batch.job_ids);
                    v_bytes_left := v_bytes_left - v_batch.bytes;
                    RETURN NEXT v_batch;
                ELSIF v_batch.status = 7 THEN
                    v_end.status := 7;
                END IF;
            END LOOP;
            EXIT WHEN v_left <= 0 OR v_bytes_left <= 0;
        END LOOP;
        EXIT WHEN v_left <= 0 OR v_bytes_left <= 0;
    END LOOP;
    IF v_left > 0 THEN
        IF v_bytes_left <= 0 THEN
            v_end.status := 7;
        END IF;
        RETURN NEXT v_end;
    END IF;
END $$;
