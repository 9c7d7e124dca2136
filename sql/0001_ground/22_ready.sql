-- The queue ring's live half: job bodies, what was taken out of them, and how far each lane has been handed out.
--
-- A ready row is immutable. Its place in its lane is (xid, job_id), where xid is the transaction that inserted it: nothing is
-- numbered per lane, so an enqueue waits for nobody (40_claim_walk.sql explains how a lane is walked).
-- (job_id, run_lease) names one ready row: the attempt that a claim makes of it has run_lease + 1.

SELECT pg_temp.for_each_slot(16, $ddl$
    CREATE TABLE ready_entries_00 (
        lane_id      bigint NOT NULL,
        xid          xid8 NOT NULL,
        job_id       bigint NOT NULL,
        created_at   timestamptz NOT NULL,       -- when the job was first enqueued
        run_lease    integer NOT NULL,           -- leases spent before this row: 0 for a fresh job
        attempt      smallint NOT NULL,          -- attempts consumed before this row
        max_attempts smallint NOT NULL,
        kind         text NOT NULL,
        args         json NOT NULL,              -- verbatim text
        available_at timestamptz,                -- NULL: created_at
        metadata     json,                       -- verbatim text
        payload      jsonb,                      -- the engine's own history: {"errors": […], "snoozes": n}
        traceparent  text,
        ordering_key text,
        PRIMARY KEY (lane_id, xid, job_id)
    ) WITH (autovacuum_enabled = false);
    CREATE INDEX ready_entries_00_job_id ON ready_entries_00 (job_id);

    -- Excludes a ready row that was never claimed: cancelled, moved or deleted.
    CREATE TABLE ready_tombstones_00 (
        lane_id   bigint NOT NULL,
        xid       xid8 NOT NULL,
        job_id    bigint NOT NULL,
        buried_at timestamptz NOT NULL,
        PRIMARY KEY (lane_id, xid, job_id)
    ) WITH (autovacuum_enabled = false);

    -- How many rows of this slot a claim batch took out (the count that closes a slot).
    CREATE TABLE ready_claim_attempt_batches_00 (
        lane_id  bigint NOT NULL,
        batch_id bigint NOT NULL,
        n        integer NOT NULL
    ) WITH (autovacuum_enabled = false);

    -- How far a lane was handed out. The row with the highest state_no is the lane's whole state; numbers are consecutive, given
    -- under the lane's claim mutex. Written to the current slot, whatever slots the claimed rows are in.
    CREATE TABLE lane_states_00 (
        lane_id   bigint NOT NULL,
        state_no  bigint NOT NULL,
        at_xid    xid8 NOT NULL,                 -- the position: everything up to (at_xid, at_job_id) is handed out
        at_job_id bigint NOT NULL,
        lo        pg_snapshot NOT NULL,          -- the window that the position lies in
        hi        pg_snapshot NOT NULL,
        skipped_xids    xid8[],                  -- keys behind the position that were not handed out, at most 64: somebody
        skipped_job_ids bigint[],                -- was about to invalidate them; NULL: none
        PRIMARY KEY (lane_id, state_no)
    ) WITH (autovacuum_enabled = false);
$ddl$);

SELECT pg_temp.create_ring_view(16, 'ready_slot', 'ready_entries'),
       pg_temp.create_ring_view(16, 'ready_slot', 'ready_tombstones'),
       pg_temp.create_ring_view(16, 'ready_slot', 'ready_claim_attempt_batches'),
       pg_temp.create_ring_view(16, 'ready_slot', 'lane_states');

-- One number line for every job of the schema.
CREATE SEQUENCE job_id_seq AS bigint MAXVALUE 9007199254740991;

-- Reserves p_count job ids and returns them as inclusive runs. Waits for nobody; an id that is not used stays unused. To be
-- committed (and so flushed) before the first id is used: a crash may otherwise give it out twice.
CREATE FUNCTION reserve_job_ids(p_count int) RETURNS TABLE (first_id bigint, last_id bigint)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_ids bigint[];
BEGIN
    IF p_count NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION 'job ids are reserved 1 to 100000 at a time' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- A commit is flushed only if its transaction wrote WAL, and nextval writes none for ids that an earlier record covers, which may
    -- itself not be flushed yet. So write something.
    PERFORM pg_logical_emit_message(true, 'awa', '');
    v_ids := ARRAY(SELECT nextval('job_id_seq') FROM generate_series(1, p_count));
    -- Nearly always one run, and then a third of the price: a proxy's workers wait behind this call.
    IF v_ids[p_count] - v_ids[1] = p_count - 1 THEN
        RETURN QUERY SELECT v_ids[1], v_ids[p_count];
        RETURN;
    END IF;
    RETURN QUERY
    SELECT min(reserved.id), max(reserved.id)
      FROM (SELECT ids.id, ids.id - row_number() OVER (ORDER BY ids.id) AS run FROM unnest(v_ids) ids(id)) reserved
     GROUP BY reserved.run ORDER BY 1;
END $$;

-- Stores ready rows of transaction p_xid in slot p_slot. Arrays are parallel; those that may be NULL as a whole are. The caller
-- has entered the slot. Waits for nobody.
SELECT pg_temp.create_slot_function(16, $sig$
    insert_ready(p_slot int, p_xid xid8, p_now timestamptz, p_lane_ids bigint[], p_job_ids bigint[], p_kinds text[], p_args text[],
                 p_max_attempts smallint[], p_ordering_keys text[], p_metadata text[], p_traceparents text[]) RETURNS void
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO ready_entries_00 (lane_id, xid, job_id, created_at, run_lease, attempt, max_attempts, kind, args, metadata, traceparent, ordering_key)
        SELECT j.lane_id, p_xid, j.job_id, p_now, 0, 0, j.max_attempts, j.kind, j.args::json, j.metadata::json, j.traceparent, j.ordering_key
          FROM unnest(p_lane_ids, p_job_ids, p_kinds, p_args, p_max_attempts, p_ordering_keys, p_metadata, p_traceparents)
               j(lane_id, job_id, kind, args, max_attempts, ordering_key, metadata, traceparent);
$branch$);

-- The body of a job, as it travels between the tables.
CREATE TYPE job_body AS (
    lane_id bigint, created_at timestamptz, max_attempts smallint, kind text, args json, metadata json, payload jsonb, traceparent text, ordering_key text
);

-- The retained body of the attempt that a claim made of ready row (p_job_id, p_run_lease).
SELECT pg_temp.create_slot_function(16, $sig$
    read_job_body(p_slot int, p_job_id bigint, p_run_lease int) RETURNS job_body
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT (lane_id, created_at, max_attempts, kind, args, metadata, payload, traceparent, ordering_key)::job_body
                  FROM ready_entries_00 WHERE job_id = p_job_id AND run_lease = p_run_lease);
$branch$);

-- The small columns of the same row, which no damage to the large ones makes unreadable.
SELECT pg_temp.create_slot_function(16, $sig$
    read_job_head(p_slot int, p_job_id bigint, p_run_lease int) RETURNS job_body
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT (lane_id, created_at, max_attempts, kind, NULL, NULL, NULL, NULL, NULL)::job_body
                  FROM ready_entries_00 WHERE job_id = p_job_id AND run_lease = p_run_lease);
$branch$);

-- read_job_body, or where that fails or finds nothing what is left of the job, with args NULL, and a warning. Damage is an error of class XX
-- (internal_error names the class); any other error, a lack of memory say, is not the job's fault and is raised.
CREATE FUNCTION read_what_is_left(p_slot int, p_job_id bigint, p_run_lease int) RETURNS job_body
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_body job_body;
    v_problem text := 'it is gone';
BEGIN
    BEGIN
        v_body := read_job_body(p_slot, p_job_id, p_run_lease);
        IF v_body.args IS NOT NULL THEN
            RETURN v_body;
        END IF;
    EXCEPTION WHEN internal_error THEN
        v_problem := format('%s (SQLSTATE %s)', SQLERRM, SQLSTATE);
        BEGIN
            v_body := read_job_head(p_slot, p_job_id, p_run_lease);
        EXCEPTION WHEN internal_error THEN
            NULL;
        END;
    END;
    RAISE WARNING 'the body of job % cannot be read: %', p_job_id, v_problem;
    RETURN v_body;
END $$;

-- The retained bodies of the attempts of one claim batch, in its order; NULL where they were pruned.
CREATE TYPE job_bodies AS (
    max_attempts smallint[], created_ats timestamptz[], kinds text[], args json[], metadata json[], traceparents text[], bytes bigint
);
SELECT pg_temp.create_slot_function(16, $sig$
    read_job_bodies(p_slot int, p_job_ids bigint[], p_run_leases int[]) RETURNS job_bodies
    LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off $sig$, $branch$
        RETURN (SELECT (array_agg(r.max_attempts ORDER BY u.i), array_agg(r.created_at ORDER BY u.i), array_agg(r.kind ORDER BY u.i), array_agg(r.args ORDER BY u.i),
                        array_agg(r.metadata ORDER BY u.i), array_agg(r.traceparent ORDER BY u.i),
                        sum(octet_length(r.args::text) + coalesce(octet_length(r.metadata::text), 0)))::job_bodies
                  FROM unnest(p_job_ids, p_run_leases) WITH ORDINALITY u(job_id, run_lease, i)
                  JOIN ready_entries_00 r ON r.job_id = u.job_id AND r.run_lease = coalesce(u.run_lease, 1) - 1);
$branch$);

-- Which of these jobs have, or had, a body in this slot.
SELECT pg_temp.create_slot_function(16, $sig$
    jobs_with_body(p_slot int, p_job_ids bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN ARRAY(SELECT k.job_id FROM unnest(p_job_ids) k(job_id) CROSS JOIN LATERAL (SELECT FROM ready_entries_00 r WHERE r.job_id = k.job_id LIMIT 1) found);
$branch$);

-- Makes a job available again, at the end of its lane. The caller has entered the slot.
SELECT pg_temp.create_slot_function(16, $sig$
    insert_returned(p_slot int, p_job_id bigint, p_run_lease int, p_attempt smallint, p_now timestamptz, p_body job_body) RETURNS void
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO ready_entries_00 (lane_id, xid, job_id, created_at, run_lease, attempt, max_attempts, kind, args, available_at, metadata, payload, traceparent, ordering_key)
        VALUES (p_body.lane_id, pg_current_xact_id(), p_job_id, p_body.created_at, p_run_lease, p_attempt, p_body.max_attempts, p_body.kind, p_body.args, p_now,
                p_body.metadata, p_body.payload, p_body.traceparent, p_body.ordering_key);
$branch$);
