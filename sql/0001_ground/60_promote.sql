-- Promotion: moves due jobs from deferred_jobs into their lanes.
--
-- Walks (due_at, job_id) from where the last pass stopped, so rows it has deleted are never visited again, however long a pinned
-- snapshot keeps them. Rows that were not visible then and are due before that point are found by their transaction: those that were
-- running at the last pass's snapshot and have ended, and those that began after it. A due row that somebody holds locked is
-- stepped over and remembered; while more than 64 are, the position stays, and a pass walks again over what was moved since.
-- When the clock has gone back since the last pass, the walk goes on from the present: what was due by the clock of then has been moved.

-- Moves the given deferred jobs, whose rows the caller has locked, into the current slot (which it has entered); the lane of each.
SELECT pg_temp.create_slot_function(16, $sig$
    move_deferred(p_slot int, p_now timestamptz, p_job_ids bigint[], OUT o_lane_ids bigint[])
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        WITH gone AS (
            DELETE FROM deferred_jobs d USING unnest(p_job_ids) k(job_id) WHERE d.job_id = k.job_id RETURNING d.*),
        moved AS (
            INSERT INTO ready_entries_00 (lane_id, xid, job_id, created_at, run_lease, attempt, max_attempts, kind, args, available_at, metadata, payload, traceparent, ordering_key)
            SELECT lane_id, pg_current_xact_id(), job_id, created_at, run_lease, attempt, max_attempts, kind, args, p_now, metadata, payload, traceparent, ordering_key FROM gone
            RETURNING lane_id)
        SELECT array_agg(lane_id) INTO o_lane_ids FROM moved;
$branch$);

-- How long a job waits that could not be moved.
CREATE FUNCTION promote_again_after() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT interval '1 minute' $$;

-- The same, in subtransactions. A job that cannot be moved (its row is damaged, say) is found by halving, so its neighbours are moved now; it is reported as a
-- warning, and put off. What is not the fault of a row, like a full disk, fails the call.
CREATE FUNCTION move_what_can_be(p_slot int, p_now timestamptz, p_job_ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_half CONSTANT int := cardinality(p_job_ids) / 2;
    v_damaged boolean;      -- class XX: the body cannot be read, and never will be
BEGIN
    BEGIN
        RETURN move_deferred(p_slot, p_now, p_job_ids);
    EXCEPTION WHEN data_exception OR integrity_constraint_violation OR program_limit_exceeded OR internal_error THEN
        v_damaged := SQLSTATE LIKE 'XX%';
        IF v_half = 0 THEN
            RAISE WARNING 'job % could not be promoted: % (SQLSTATE %)', p_job_ids[1], SQLERRM, SQLSTATE;
        END IF;
    END;
    IF v_half > 0 THEN
        RETURN move_what_can_be(p_slot, p_now, p_job_ids[:v_half]) || move_what_can_be(p_slot, p_now, p_job_ids[v_half + 1:]);
    END IF;
    IF v_damaged THEN
        PERFORM end_deferred(p_job_ids[1], 'failed');
    ELSE
        UPDATE deferred_jobs SET due_at = p_now + promote_again_after() WHERE job_id = p_job_ids[1];
    END IF;
    RETURN '{}';
END $$;

-- Due jobs behind the last pass's position: those it stepped over, and those that became visible since. STABLE so that it is inlined
-- and a LIMIT stops it; the caller's statement gives the snapshot. The last two branches must be walked by xid, never by due_at, where the
-- dead rows lie: + interval '0' hides the column from that index.
CREATE FUNCTION due_behind(p_last promotion_states, p_seen pg_snapshot) RETURNS TABLE (job_id bigint)
LANGUAGE sql STABLE AS $$
    SELECT d.job_id FROM unnest((p_last).skipped) s(job_id) JOIN deferred_jobs d ON d.job_id = s.job_id
    UNION ALL
    SELECT d.job_id FROM pg_snapshot_xip((p_last).seen) late(xid) JOIN deferred_jobs d ON d.xid = late.xid AND (d.due_at + interval '0', d.job_id) <= ((p_last).due_at, (p_last).job_id)
     WHERE pg_visible_in_snapshot(late.xid, p_seen)
    UNION ALL
    SELECT d.job_id FROM deferred_jobs d
     WHERE d.xid >= pg_snapshot_xmax((p_last).seen) AND (d.due_at + interval '0', d.job_id) <= ((p_last).due_at, (p_last).job_id)
       AND pg_visible_in_snapshot(d.xid, p_seen)
$$;

-- Moves up to p_limit due jobs into their lanes and returns how many; call again at once while it returns p_limit.
-- Locks: the maintenance key of promotion (tried: another promoter makes it return 0), the current queue slot (shared, tried), rows it
-- moves (skipped when locked). Waits for nobody, except at its commit for other commits that notify (26_wake.sql). Idempotent: a job is moved by
-- deleting its row, and a crash undoes both halves.
CREATE FUNCTION promote_due(p_limit int) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_last promotion_states;
    v_next promotion_states;
    v_now timestamptz := clock_timestamp();
    v_behind bigint[];
    v_due bigint[];
    v_last_due timestamptz;
    v_lanes bigint[];
    v_moved int := 0;
BEGIN
    PERFORM require_read_committed('promote_due');
    IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 1)) THEN
        RETURN 0;
    END IF;
    SELECT * INTO v_last FROM promotion_states ORDER BY pass_no DESC LIMIT 1;
    IF v_last.due_at > v_now THEN
        v_last.due_at := v_now;
        v_last.job_id := 9223372036854775807;
    END IF;
    v_next := (v_last.pass_no + 1, v_now, 9223372036854775807, window_end(), '{}');
    v_behind := ARRAY(SELECT d.job_id FROM due_behind(v_last, v_next.seen) b
                       CROSS JOIN LATERAL (SELECT job_id FROM deferred_jobs WHERE job_id = b.job_id FOR UPDATE SKIP LOCKED) d LIMIT p_limit);
    SELECT array_agg(d.job_id ORDER BY d.due_at, d.job_id), max(d.due_at) INTO v_due, v_last_due
      FROM (SELECT due_at, job_id FROM deferred_jobs
             WHERE (due_at, job_id) > (v_last.due_at, v_last.job_id) AND due_at <= v_now AND pg_visible_in_snapshot(xid, v_next.seen)
             ORDER BY due_at, job_id LIMIT p_limit - cardinality(v_behind) FOR UPDATE SKIP LOCKED) d;
    IF cardinality(v_behind) > 0 OR v_due IS NOT NULL THEN
        v_lanes := move_what_can_be((enter_queue_slot() & 15)::int, v_now, v_behind || v_due);
        v_moved := coalesce(cardinality(v_lanes), 0);
        PERFORM wake_lanes(v_lanes);
    ELSIF NOT EXISTS (SELECT FROM deferred_jobs WHERE xid >= pg_snapshot_xmax(v_last.seen)) THEN
        RETURN 0;   -- nothing new: an idle database writes nothing
    END IF;
    IF cardinality(v_behind || v_due) = p_limit AND v_due IS NOT NULL THEN
        v_next.due_at := v_last_due;
        v_next.job_id := v_due[cardinality(v_due)];
    END IF;
    -- What is still there of all that was walked is locked by others, or did not fit into the limit.
    v_next.skipped := ARRAY(
        SELECT b.job_id FROM due_behind(v_last, v_next.seen) b
        UNION ALL
        (SELECT job_id FROM deferred_jobs WHERE (due_at, job_id) > (v_last.due_at, v_last.job_id) AND (due_at, job_id) <= (v_next.due_at, v_next.job_id)
            AND pg_visible_in_snapshot(xid, v_next.seen) ORDER BY due_at, job_id LIMIT 65)
        LIMIT 65);
    IF cardinality(v_next.skipped) <= 64 THEN
        INSERT INTO promotion_states SELECT v_next.*;
        DELETE FROM promotion_states WHERE pass_no < v_next.pass_no;
    END IF;     -- else too many to remember: the position waits for them, the walk does not
    RETURN v_moved;
END $$;
