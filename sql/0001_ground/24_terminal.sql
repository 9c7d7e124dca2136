-- The queue ring's other half: how jobs ended.
--
-- A successful completion adds no row of its own: a whole group of one claim batch is one row of receipt_completion_batches, in the
-- slot that holds the bodies. Every other end is one row of done_entries: narrow where the body is retained in the same slot (body
-- columns NULL, hydrated from it), wide where the job never had a claimed attempt there. terminal_jobs is the one place to read.

CREATE TYPE job_state AS ENUM ('scheduled', 'available', 'running', 'waiting_external', 'retryable', 'completed', 'failed', 'cancelled');

SELECT pg_temp.for_each_slot(16, $ddl$
    CREATE TABLE receipt_completion_batches_00 (
        lane_id      bigint NOT NULL,
        batch_id     bigint NOT NULL,
        attempted_at timestamptz NOT NULL,
        finalized_at timestamptz NOT NULL,
        claim_slot   smallint NOT NULL,
        n            smallint NOT NULL,
        job_ids      bigint[] NOT NULL,
        run_leases   integer[],                  -- NULL: all 1
        attempts     smallint[]                  -- NULL: all 1
    ) WITH (autovacuum_enabled = false, toast_tuple_target = 8160);

    CREATE TABLE done_entries_00 (
        job_id       bigint NOT NULL,
        run_lease    integer NOT NULL,           -- of the ended attempt; 0 where there was none
        lane_id      bigint NOT NULL,
        attempted_at timestamptz,
        finalized_at timestamptz NOT NULL,
        state        job_state NOT NULL,
        attempt      smallint NOT NULL,
        kind         text NOT NULL,
        payload      jsonb,                      -- the job's history with this end in it
        args         json,                       -- this and the rest: NULL where the body is retained
        metadata     json,
        max_attempts smallint,
        created_at   timestamptz,
        traceparent  text,
        ordering_key text,
        PRIMARY KEY (job_id, run_lease)
    ) WITH (autovacuum_enabled = false);
$ddl$);

SELECT pg_temp.create_ring_view(16, 'ready_slot', 'receipt_completion_batches'),
       pg_temp.create_ring_view(16, 'ready_slot', 'done_entries');

-- What prune folded: jobs that ended and whose segment is gone.
CREATE TABLE queue_terminal_rollups (
    lane_id bigint NOT NULL,
    state   job_state NOT NULL,
    n       bigint NOT NULL,
    PRIMARY KEY (lane_id, state)
);

SELECT pg_temp.create_slot_function(16, $sig$
    insert_done_entry(p_slot int, p_job_id bigint, p_run_lease int, p_lane_id bigint, p_attempted_at timestamptz, p_finalized_at timestamptz,
                      p_state job_state, p_attempt smallint, p_kind text, p_payload jsonb) RETURNS void
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO done_entries_00 (job_id, run_lease, lane_id, attempted_at, finalized_at, state, attempt, kind, payload)
        VALUES (p_job_id, p_run_lease, p_lane_id, p_attempted_at, p_finalized_at, p_state, p_attempt, p_kind, p_payload);
$branch$);

-- Which of these jobs have a terminal fact of their own in this slot.
SELECT pg_temp.create_slot_function(16, $sig$
    jobs_with_done_entry(p_slot int, p_job_ids bigint[]) RETURNS bigint[]
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN ARRAY(SELECT k.job_id FROM unnest(p_job_ids) k(job_id) CROSS JOIN LATERAL (SELECT FROM done_entries_00 d WHERE d.job_id = k.job_id LIMIT 1) found);
$branch$);

-- Terminal jobs with their bodies. Read-only; scans, so for inspection and tools. The join always includes job_id.
DO $do$
BEGIN
    EXECUTE 'CREATE VIEW terminal_jobs AS ' || (
        SELECT string_agg(replace(replace($view$
            SELECT c.job_id, lane_queue(b.lane_id) AS queue, lane_priority(b.lane_id) AS priority, r.kind, 'completed'::job_state AS state, c.run_lease, c.attempt,
                   r.max_attempts, r.args, r.metadata, r.payload, r.traceparent, r.ordering_key, r.created_at, b.attempted_at, b.finalized_at, SLOT::smallint AS ready_slot
              FROM receipt_completion_batches_00 b
             CROSS JOIN LATERAL (SELECT u.job_id, coalesce(u.run_lease, 1) AS run_lease, coalesce(u.attempt, 1::smallint) AS attempt
                                   FROM unnest(b.job_ids, b.run_leases, b.attempts) u(job_id, run_lease, attempt)) c
              LEFT JOIN ready_entries_00 r ON r.job_id = c.job_id AND r.run_lease = c.run_lease - 1
            UNION ALL
            SELECT d.job_id, lane_queue(d.lane_id), lane_priority(d.lane_id), d.kind, d.state, d.run_lease, d.attempt,
                   coalesce(d.max_attempts, r.max_attempts), coalesce(d.args, r.args), coalesce(d.metadata, r.metadata), d.payload,
                   coalesce(d.traceparent, r.traceparent), coalesce(d.ordering_key, r.ordering_key), coalesce(d.created_at, r.created_at),
                   d.attempted_at, d.finalized_at, SLOT::smallint
              FROM done_entries_00 d
              LEFT JOIN ready_entries_00 r ON d.args IS NULL AND r.job_id = d.job_id AND r.run_lease = d.run_lease - 1
        $view$, '_00', pg_temp.slot_suffix(slot)), 'SLOT', slot::text), ' UNION ALL ' ORDER BY slot)
        FROM generate_series(0, 15) slot);
END $do$;
