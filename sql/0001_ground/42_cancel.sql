-- Cancelling jobs, in whatever state they are.
--
-- An unclaimed job is invalidated under the lane's guard, shared, and its own key, exclusive, held until commit. A claim either holds the
-- guard exclusively, and then nobody invalidates in that lane, or it tries the key of each job and steps over those it cannot have. So an operator
-- who cancels in an open transaction delays neither the lane nor anybody else, and if it rolls back, the job is found again in the
-- lane's skip list. A running job is ended like any attempt: the fact is written at once, the worker's outcome becomes STALE.

-- Where a job is: everything that by-id functions need.
CREATE TYPE job_place AS (
    state job_state, slot smallint, lane_id bigint, xid xid8, run_lease int, attempt smallint,
    claim_slot smallint, batch_id bigint, nonce bigint, idx smallint, claimed_at timestamptz, finalized_at timestamptz
);

-- The newest ready row of a job within one slot.
SELECT pg_temp.create_slot_function(16, $sig$
    newest_ready_row(p_slot int, p_job_id bigint) RETURNS job_place
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT (CASE WHEN EXISTS (SELECT FROM ready_tombstones_00 t WHERE t.lane_id = r.lane_id AND t.xid = r.xid AND t.job_id = r.job_id) THEN 'cancelled' ELSE 'available' END,
                        p_slot, r.lane_id, r.xid, r.run_lease, r.attempt, NULL, NULL, NULL, NULL, NULL, NULL)::job_place
                  FROM ready_entries_00 r WHERE r.job_id = p_job_id ORDER BY r.run_lease DESC LIMIT 1);
$branch$);

-- How the attempt (p_job_id, p_run_lease) ended, as far as one queue slot knows.
SELECT pg_temp.create_slot_function(16, $sig$
    terminal_place(p_slot int, p_job_id bigint, p_run_lease int) RETURNS job_place
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN coalesce(
            (SELECT (d.state, p_slot, d.lane_id, NULL, d.run_lease, d.attempt, NULL, NULL, NULL, NULL, d.attempted_at, d.finalized_at)::job_place
               FROM done_entries_00 d WHERE d.job_id = p_job_id AND d.run_lease = p_run_lease),
            (SELECT ('completed', p_slot, c.lane_id, NULL, p_run_lease, coalesce(c.attempts[array_position(c.job_ids, p_job_id)], 1::smallint), c.claim_slot, c.batch_id, NULL, NULL, c.attempted_at, c.finalized_at)::job_place
               FROM receipt_completion_batches_00 c
              WHERE p_job_id = ANY (c.job_ids) AND coalesce(c.run_leases[array_position(c.job_ids, p_job_id)], 1) = p_run_lease LIMIT 1));
$branch$);

-- The claim batch that holds the attempt (p_job_id, p_run_lease), if it is in this claim slot and the attempt has not ended.
SELECT pg_temp.create_slot_function(8, $sig$
    claim_place(p_slot int, p_job_id bigint, p_run_lease int) RETURNS job_place
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT ('running', b.ready_slot, b.lane_id, NULL, p_run_lease, coalesce(b.attempts[b.idx], 1::smallint), p_slot, b.batch_id, b.nonce, b.idx, b.claimed_at, NULL)::job_place
                  FROM (SELECT *, array_position(job_ids, p_job_id) AS idx FROM lease_claim_batches_00 WHERE p_job_id = ANY (job_ids)) b
                 WHERE coalesce(b.run_leases[b.idx], 1) = p_run_lease
                   AND NOT EXISTS (SELECT FROM lease_claim_closure_batches_00 c WHERE c.batch_id = b.batch_id AND get_bit(c.members, b.idx - 1) = 1)
                   AND NOT EXISTS (SELECT FROM lease_claim_closures_00 c WHERE c.batch_id = b.batch_id AND c.idx = b.idx) LIMIT 1);
$branch$);

-- Whether a lane in this state has handed out the row at (p_xid, p_job_id).
CREATE FUNCTION is_handed_out(p_state lane_state, p_xid xid8, p_job_id bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT (pg_visible_in_snapshot(p_xid, (p_state).lo) OR pg_visible_in_snapshot(p_xid, (p_state).hi) AND (p_xid, p_job_id) <= ((p_state).at_xid, (p_state).at_job_id))
           AND NOT EXISTS (SELECT FROM unnest((p_state).skipped_xids, (p_state).skipped_job_ids) s(xid, job_id) WHERE s.xid = p_xid AND s.job_id = p_job_id)
$$;

-- Looks for a job in one place after the other. o_lease: the newest ready row, NULL: none; o_place: NULL when the attempt that a claim made of that
-- row has ended, and the job was in none of the places when they were looked at.
CREATE FUNCTION look_for_job(p_job_id bigint, OUT o_place job_place, OUT o_lease int)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_found job_place;
    v_row job_place;
BEGIN
    SELECT d.state, NULL, d.lane_id, d.xid, d.run_lease, d.attempt, NULL, NULL, NULL, NULL, NULL, NULL INTO v_found FROM deferred_jobs d WHERE d.job_id = p_job_id;
    IF FOUND THEN
        o_place := v_found;
        RETURN;
    END IF;
    FOR s IN 0 .. 15 LOOP
        v_row := newest_ready_row(s, p_job_id);
        IF v_row.slot IS NOT NULL AND (v_found.slot IS NULL OR v_row.run_lease > v_found.run_lease) THEN
            v_found := v_row;
        END IF;
    END LOOP;
    IF v_found.state = 'available' AND NOT is_handed_out(read_lane_state(open_queue_slots(), v_found.lane_id), v_found.xid, p_job_id) THEN
        o_place := v_found;
        RETURN;
    END IF;
    IF v_found.state = 'available' THEN
        o_lease := v_found.run_lease;
        o_place := terminal_place(v_found.slot, p_job_id, o_lease + 1);
        FOR s IN 0 .. 7 LOOP
            EXIT WHEN o_place.state IS NOT NULL;
            o_place := claim_place(s, p_job_id, o_lease + 1);
        END LOOP;
    END IF;
    IF o_place.state IS NULL THEN
        o_place := find_wide_terminal(p_job_id);
    END IF;
END $$;

-- Finds a job; NULL when it never existed or was pruned. One index probe a slot, and for a job that was handed out a scan of the
-- batches of the slots concerned. A job that moves on meanwhile is looked for again: it leaves its ready rows behind, so when the newest is
-- the same as before, there is no more of it.
CREATE FUNCTION locate_job(p_job_id bigint) RETURNS job_place
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_look record;
    v_lease int;
BEGIN
    LOOP
        v_look := look_for_job(p_job_id);
        IF (v_look.o_place).state IS NOT NULL OR v_look.o_lease IS NOT DISTINCT FROM v_lease THEN
            RETURN v_look.o_place;
        END IF;
        v_lease := v_look.o_lease;
    END LOOP;
END $$;

-- A terminal fact of a job that ended without a claimed attempt: run_lease names no ready row there.
CREATE FUNCTION find_wide_terminal(p_job_id bigint) RETURNS job_place
LANGUAGE sql VOLATILE AS $$
    SELECT (d.state, d.ready_slot, d.lane_id, NULL, d.run_lease, d.attempt, NULL, NULL, NULL, NULL, d.attempted_at, d.finalized_at)::job_place
      FROM done_entries d WHERE d.job_id = p_job_id AND d.args IS NOT NULL ORDER BY d.run_lease DESC LIMIT 1
$$;

-- Buries a ready row. The caller holds the lane's guard and the job's key.
SELECT pg_temp.create_slot_function(16, $sig$
    bury_ready_row(p_slot int, p_lane_id bigint, p_xid xid8, p_job_id bigint) RETURNS boolean
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO ready_tombstones_00 (lane_id, xid, job_id, buried_at) VALUES (p_lane_id, p_xid, p_job_id, clock_timestamp());
        RETURN true;
$branch$);

-- Writes the terminal fact of a job that ends without a claimed attempt, with its body, or what is left of it: args are null then, and its history says so.
SELECT pg_temp.create_slot_function(16, $sig$
    insert_wide_done_entry(p_slot int, p_job_id bigint, p_lane_id bigint, p_run_lease int, p_attempt smallint, p_state job_state, p_body job_body) RETURNS boolean
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO done_entries_00 (job_id, run_lease, lane_id, finalized_at, state, attempt, kind, payload, args, metadata, max_attempts, created_at, traceparent, ordering_key)
        VALUES (p_job_id, p_run_lease, p_lane_id, clock_timestamp(), p_state, p_attempt, coalesce(p_body.kind, ''),
                CASE WHEN p_body.args IS NULL THEN unreadable_history(p_attempt, clock_timestamp()) ELSE p_body.payload END, coalesce(p_body.args, 'null'), p_body.metadata,
                p_body.max_attempts, p_body.created_at, p_body.traceparent, p_body.ordering_key);
        RETURN true;
$branch$);

-- Cancels an unclaimed ready job, if it still is one under the locks.
CREATE FUNCTION cancel_available(p_job_id bigint, p_place job_place) RETURNS smallint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_place job_place;
BEGIN
    -- Waits for a claim of the lane in progress, some milliseconds; claims never wait for us.
    PERFORM pg_advisory_xact_lock_shared(advisory_key('lane_guard', p_place.lane_id));
    IF NOT pg_try_advisory_xact_lock(advisory_key('job', p_job_id)) THEN
        RETURN 7;
    END IF;
    v_place := locate_job(p_job_id);
    IF v_place.state IS DISTINCT FROM 'available' OR v_place.xid <> p_place.xid THEN
        RETURN 7;   -- it moved on meanwhile: look again
    END IF;
    PERFORM bury_ready_row(v_place.slot, v_place.lane_id, v_place.xid, p_job_id);
    PERFORM insert_wide_done_entry((enter_queue_slot() & 15)::int, p_job_id, v_place.lane_id, v_place.run_lease, v_place.attempt, 'cancelled',
                                   read_what_is_left(v_place.slot, p_job_id, v_place.run_lease));
    RETURN 1;
END $$;

-- Ends a deferred job, whose row the caller has locked, as p_state.
CREATE FUNCTION end_deferred(p_job_id bigint, p_state job_state) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_body job_body := read_deferred_body(p_job_id);
    v_job record;
BEGIN
    DELETE FROM deferred_jobs WHERE job_id = p_job_id RETURNING lane_id, run_lease, attempt INTO v_job;
    PERFORM insert_wide_done_entry((enter_queue_slot() & 15)::int, p_job_id, v_job.lane_id, v_job.run_lease, v_job.attempt, p_state, v_body);
END $$;

-- Cancels a deferred job; a row that somebody else is moving or cancelling is BUSY.
CREATE FUNCTION cancel_deferred(p_job_id bigint) RETURNS smallint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM deferred_jobs WHERE job_id = p_job_id FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 7;
    END IF;
    PERFORM end_deferred(p_job_id, 'cancelled');
    RETURN 1;
END $$;

-- Cancels jobs by id. Returns a status for each distinct id: 1 cancelled now, 2 was cancelled before, 3 had ended otherwise, 4 not found,
-- 7 somebody else is ending or claiming it in this moment: ask again.
-- Locks: for an unclaimed job the lane's guard (shared) and the job's key, for a deferred one its row, for a running one its claim slot
-- and batch (shared) and its attempt; all until commit. Waits for a claim of the same lane, some milliseconds. Idempotent.
CREATE FUNCTION cancel_jobs(p_job_ids bigint[]) RETURNS TABLE (job_id bigint, status smallint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_place job_place;
BEGIN
    PERFORM require_read_committed('cancel_jobs');
    FOR job_id IN SELECT DISTINCT k FROM unnest(p_job_ids) k ORDER BY k LOOP
        v_place := locate_job(job_id);
        status := CASE
            WHEN v_place.state IS NULL THEN 4
            WHEN v_place.state = 'cancelled' THEN 2
            WHEN v_place.state IN ('completed', 'failed') THEN 3
            WHEN v_place.state = 'available' THEN cancel_available(job_id, v_place)
            WHEN v_place.state IN ('scheduled', 'retryable') THEN cancel_deferred(job_id)
            ELSE finish_item(v_place.claim_slot, v_place.batch_id, v_place.nonce, v_place.idx, job_id, v_place.run_lease, 5::smallint, NULL, NULL) END;
        IF v_place.state = 'running' AND status <> 1 THEN
            status := 7;    -- its attempt has ended meanwhile, which need not be the end of the job
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
