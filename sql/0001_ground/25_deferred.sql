-- Jobs that wait for a time: scheduled by their producer, retryable after a failed attempt, or snoozed.
--
-- Promotion (60_promote.sql) deletes what it moves, and under a pinned snapshot the dead rows stay; its cost must not grow with
-- them. So it never scans from the beginning: it walks (due_at, job_id) from where it last stopped, and finds what was committed
-- behind its back by the transactions that were open then. promotion_states holds these two facts; the newest row is valid.

CREATE TABLE deferred_jobs (
    job_id       bigint PRIMARY KEY,
    xid          xid8 NOT NULL,                  -- the transaction that wrote this row
    due_at       timestamptz NOT NULL,
    lane_id      bigint NOT NULL,
    created_at   timestamptz NOT NULL,
    run_lease    integer NOT NULL,
    attempt      smallint NOT NULL,
    max_attempts smallint NOT NULL,
    state        job_state NOT NULL CHECK (state IN ('scheduled', 'retryable')),
    kind         text NOT NULL,
    args         json NOT NULL,
    metadata     json,
    payload      jsonb,
    traceparent  text,
    ordering_key text
);
CREATE INDEX deferred_jobs_due_at ON deferred_jobs (due_at, job_id);
CREATE INDEX deferred_jobs_xid ON deferred_jobs (xid);

-- The body of a deferred job, or what is left of it (22_ready.sql).
CREATE FUNCTION read_deferred_body(p_job_id bigint) RETURNS job_body
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT (lane_id, created_at, max_attempts, kind, args, metadata, payload, traceparent, ordering_key)::job_body FROM deferred_jobs WHERE job_id = p_job_id);
EXCEPTION WHEN internal_error THEN
    RAISE WARNING 'the body of job % cannot be read: % (SQLSTATE %)', p_job_id, SQLERRM, SQLSTATE;
    RETURN (SELECT (lane_id, created_at, max_attempts, kind, NULL, NULL, NULL, NULL, NULL)::job_body FROM deferred_jobs WHERE job_id = p_job_id);
END $$;

CREATE TABLE promotion_states (
    pass_no bigint PRIMARY KEY,
    due_at  timestamptz NOT NULL,                -- walked up to here, this key included …
    job_id  bigint NOT NULL,
    seen    pg_snapshot NOT NULL,                -- … of what this snapshot sees
    skipped bigint[] NOT NULL                    -- due jobs that somebody held locked, at most 64
);
INSERT INTO promotion_states VALUES (0, '-infinity', 0, '1:1:', '{}');
