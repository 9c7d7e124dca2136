-- Rescue: ends the attempts of proxies that are gone, so that their jobs run again.
--
-- Rescue is a predicate, not an event: on every tick, an open attempt of an instance that has been missing for long enough is ended as a retry whose
-- error is "proxy lost"; that error in the job's history is the record of the rescue. It is ended like any attempt (51_finish.sql of 0001): the batch key shared and
-- the attempt's key, both tried, then durable evidence, so it meets a completion in flight, and another rescue, at the keys, and one wins.
--
-- Where the open attempts are is found by walking the claim batches of all slots from the newest to the oldest, a bounded number a call; rescue_states
-- says how far. Another instance that is lost meanwhile makes it begin anew. There are two sorts of pass:
--   full   over everything, while there is a missing instance that is not settled. An instance is settled once a full pass that began after its time was
--          up saw nothing of it open; a settled one is forgotten after the resend window.
--   short  over the batches that came since the last pass began, otherwise: it finds instances that have no row (these count as missing, from then on), and
--          claims that committed after their instance was settled.
-- Without new batches and missing instances nothing is walked and nothing written.

-- One row: the pass that is under way, or the last one.
CREATE TABLE rescue_states (
    started_at  timestamptz NOT NULL,
    walks_all   boolean NOT NULL,            -- a full pass
    newest      bigint NOT NULL,             -- the batch sequence when it began
    lowest      bigint NOT NULL,             -- batches up to here are not visited
    generation  bigint,                      -- visited down to this slot of the claim ring; NULL: the pass is over
    below       bigint NOT NULL,             -- in it, down to this batch, which is visited next if member > 0
    member      smallint NOT NULL,           -- of that batch, up to this index
    seen_open   bigint[] NOT NULL,           -- missing instances of which something was open in this pass
    undecided   boolean NOT NULL             -- some slot could not be read: the pass proves nothing
);
-- It has no key: for publications, which refuse the update of a row they could not name.
ALTER TABLE rescue_states REPLICA IDENTITY FULL;
INSERT INTO rescue_states VALUES ('-infinity', false, 0, 0, NULL, 0, 0, '{}', false);

-- How many claim batches one call looks at: 2 ms also when each has to be checked for open attempts, and below 20 on a busy machine.
CREATE FUNCTION max_rescue_batches() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 1000 $$;
-- Batch numbers are taken before the commit: a short pass goes so far back behind the last one's beginning.
CREATE FUNCTION rescue_overlap() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 1000 $$;
-- How long a settled instance is remembered: as long as a resent outcome is answered, by default.
CREATE FUNCTION instance_retention() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT interval '15 minutes' $$;

-- Ends one open attempt in a subtransaction of its own; a status of finish_item. What cannot be ended is reported as a warning, every time it is tried,
-- and costs its neighbours nothing.
CREATE FUNCTION rescue_attempt(p_claim_slot smallint, p_batch_id bigint, p_nonce bigint, p_index smallint, p_job_id bigint, p_run_lease int) RETURNS smallint
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN finish_item(p_claim_slot, p_batch_id, p_nonce, p_index, p_job_id, p_run_lease, 8::smallint, NULL, NULL);
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'job % could not be rescued from a lost proxy: % (SQLSTATE %)', p_job_id, SQLERRM, SQLSTATE
        USING DETAIL = format('Attempt with run_lease %s, index %s of claim batch %s.', p_run_lease, p_index, p_batch_id);
    RETURN 5;
END $$;

-- Ends the open attempts of one batch from index p_from on, trying p_limit at most.
CREATE FUNCTION rescue_batch(p_claim_slot smallint, p_batch_id bigint, p_from smallint, p_limit int, OUT o_tried int, OUT o_ended int, OUT o_member smallint)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_batch claim_batch;
BEGIN
    o_tried := 0;
    o_ended := 0;
    o_member := p_from;
    BEGIN
        v_batch := read_claim_batch(p_claim_slot, p_batch_id);
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'claim batch % of a lost proxy could not be read: % (SQLSTATE %)', p_batch_id, SQLERRM, SQLSTATE;
        RETURN;
    END;
    FOR i IN p_from .. v_batch.n LOOP
        CONTINUE WHEN get_bit(v_batch.completed | v_batch.otherwise, i - 1) = 1;
        EXIT WHEN o_tried = p_limit;
        o_tried := o_tried + 1;
        o_member := i;
        IF rescue_attempt(p_claim_slot, p_batch_id, v_batch.nonce, i::smallint, v_batch.job_ids[i], coalesce(v_batch.run_leases[i], 1)) = 1 THEN
            o_ended := o_ended + 1;
        END IF;
    END LOOP;
END $$;

-- Says of instances that they are settled, or with p_at NULL that they are not. Locks their rows (skipped when locked).
CREATE FUNCTION settle_instances(p_instances bigint[], p_at timestamptz) RETURNS void
LANGUAGE sql VOLATILE AS $$
    UPDATE runtime_instances SET settled_at = p_at
     WHERE instance IN (SELECT r.instance FROM runtime_instances r
                         WHERE r.instance = ANY (p_instances) AND r.missing_since IS NOT NULL AND (r.settled_at IS NULL) <> (p_at IS NULL) FOR UPDATE SKIP LOCKED)
$$;

-- The beginning of a new pass, if one is needed; else NULL.
CREATE FUNCTION next_rescue_pass(p_last rescue_states, p_overdue bigint[]) RETURNS rescue_states
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_newest CONSTANT bigint := (SELECT last_value FROM lease_claim_batch_id_seq);
    -- The sequence may have been set back, by a move of the schema to another cluster.
    v_last_newest CONSTANT bigint := least(p_last.newest, v_newest);
    v_all CONSTANT boolean := EXISTS (SELECT FROM runtime_instances WHERE instance = ANY (p_overdue) AND settled_at IS NULL);
BEGIN
    -- Not after two passes in a row that began at the same number: a claim that had its number and was not committed in the one is found by the other.
    IF NOT v_all AND v_newest = p_last.newest AND p_last.lowest >= v_newest - rescue_overlap() THEN
        RETURN NULL;
    END IF;
    RETURN (clock_timestamp(), v_all, v_newest, CASE WHEN v_all THEN 0 ELSE v_last_newest - rescue_overlap() END,
            (SELECT max(generation) FROM claim_ring_slots), 9223372036854775807, 0, '{}', false)::rescue_states;
END $$;

-- Ends open attempts of instances that have been missing for longer than p_missing_ms, p_limit of them or 64 at most (the lock table's share of one
-- transaction), and returns how many; call again at once while that is more than 0.
-- Locks: the maintenance key (tried: another rescuer makes it return 0), claim slots (shared, tried), per attempt its batch (shared) and its key (tried),
-- rows of runtime_instances that change (skipped when locked); all until commit. Waits for nobody, except for the registration of a number
-- that had open claims before it ever had a row. Idempotent: what has ended is not open.
CREATE FUNCTION rescue_instances(p_limit int, p_missing_ms int) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_last rescue_states;
    v_pass rescue_states;
    v_overdue bigint[];
    v_quiet bigint[];
    v_held bigint[];
    v_slot claim_ring_slots;
    v_found open_batches;
    v_batch record;
    v_batches_left int := max_rescue_batches();
    v_left int := least(p_limit, max_single_keys());
    v_ended int := 0;
    v_over boolean := true;
BEGIN
    PERFORM require_read_committed('rescue_instances');
    IF (p_limit > 0 AND p_missing_ms >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'rescue_instances needs a limit above 0, and a time that is not negative' USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 6)) THEN
        RETURN 0;
    END IF;
    PERFORM discount_absences();
    PERFORM note_missing_instances();
    DELETE FROM runtime_instances
     WHERE instance IN (SELECT r.instance FROM runtime_instances r WHERE r.settled_at < clock_timestamp() - instance_retention() LIMIT 100 FOR UPDATE SKIP LOCKED);
    v_overdue := ARRAY(SELECT instance FROM runtime_instances WHERE missing_since <= clock_timestamp() - p_missing_ms * interval '1 ms');
    SELECT * INTO v_last FROM rescue_states;
    v_pass := v_last;
    -- Once for each instance whose time was up only after a pass began: what it held is among the newest batches, behind which that pass may be already.
    -- And when the clock has gone back since the pass began, because then nobody knows for whom that holds.
    IF v_pass.generation IS NULL OR v_pass.started_at > clock_timestamp() OR EXISTS (SELECT FROM runtime_instances WHERE instance = ANY (v_overdue) AND settled_at IS NULL
                                               AND missing_since > v_pass.started_at - p_missing_ms * interval '1 ms') THEN
        v_pass := next_rescue_pass(v_last, v_overdue);
        IF v_pass.started_at IS NULL THEN
            RETURN 0;   -- nothing to look for: an idle database writes nothing
        END IF;
    END IF;
    v_quiet := ARRAY(SELECT instance FROM runtime_instances WHERE instance <> ALL (v_overdue));
    v_held := ARRAY(SELECT key FROM held_keys('ShareLock'));
    <<walk>>
    FOR v_slot IN SELECT * FROM claim_ring_slots WHERE generation <= v_pass.generation ORDER BY generation DESC LOOP
        IF v_slot.generation < v_pass.generation THEN
            v_pass.generation := v_slot.generation;
            v_pass.below := 9223372036854775807;
            v_pass.member := 0;
        END IF;
        IF NOT pg_try_advisory_xact_lock_shared(advisory_key('claim_slot', v_slot.slot)) THEN
            v_pass.undecided := true;   -- it is being pruned, or a prune has just found that it may not
            CONTINUE;
        END IF;
        v_found := find_open_batches(v_slot.slot, v_pass.below + (v_pass.member > 0)::int, v_pass.lowest, v_batches_left, v_quiet);
        FOR i IN 1 .. coalesce(cardinality(v_found.batch_ids), 0) LOOP
            IF v_found.instances[i] = ANY (v_overdue) THEN
                IF v_found.instances[i] <> ALL (v_pass.seen_open) THEN
                    v_pass.seen_open := v_pass.seen_open || v_found.instances[i];
                    PERFORM settle_instances(v_found.instances[i:i], NULL);
                END IF;
                SELECT * INTO v_batch
                  FROM rescue_batch(v_slot.slot, v_found.batch_ids[i], (CASE WHEN v_found.batch_ids[i] = v_pass.below THEN v_pass.member ELSE 0 END + 1)::smallint, v_left);
                v_ended := v_ended + v_batch.o_ended;
                v_left := v_left - v_batch.o_tried;
                IF v_left = 0 THEN
                    v_pass.below := v_found.batch_ids[i];
                    v_pass.member := v_batch.o_member;
                    v_over := false;
                    EXIT walk;
                END IF;
            ELSIF advisory_key('instance', v_found.instances[i]) <> ALL (v_held) THEN
                INSERT INTO runtime_instances (instance, missing_since) VALUES (v_found.instances[i], clock_timestamp()) ON CONFLICT DO NOTHING;
            END IF;
        END LOOP;
        v_batches_left := v_batches_left - v_found.examined;
        v_pass.below := coalesce(v_found.last_batch, v_pass.below);
        v_pass.member := 0;
        IF v_batches_left = 0 THEN
            v_over := false;
            EXIT walk;
        END IF;
    END LOOP;
    IF v_over THEN
        v_pass.generation := NULL;
        IF v_pass.undecided THEN
            v_pass.newest := v_pass.lowest + rescue_overlap();   -- so that the next pass covers this one's part again
        ELSIF v_pass.walks_all THEN
            PERFORM settle_instances(ARRAY(SELECT instance FROM runtime_instances
                WHERE missing_since <= v_pass.started_at - p_missing_ms * interval '1 ms' AND instance <> ALL (v_pass.seen_open)), clock_timestamp());
        END IF;
    END IF;
    UPDATE rescue_states SET (started_at, walks_all, newest, lowest, generation, below, member, seen_open, undecided) = (SELECT v_pass.*);
    RETURN v_ended;
END $$;
