-- The claim ring: who holds which attempts, and the evidence that they ended.
--
-- A claim batch is one row for all jobs that one claim took from one lane and one ready slot. A job's place in its arrays (1-based)
-- is the index in its receipt. Evidence only ever grows: an attempt is open as long as neither a closure batch's bit nor a closure row
-- says otherwise, and whoever writes one holds the batch key exclusively, or shared together with the attempt's key.

SELECT pg_temp.for_each_slot(8, $ddl$
    CREATE TABLE lease_claim_batches_00 (
        batch_id   bigint PRIMARY KEY,
        nonce      bigint NOT NULL,        -- random, given by the proxy; a receipt without it is nobody's
        instance   bigint NOT NULL,        -- the proxy that claimed
        lane_id    bigint NOT NULL,
        claimed_at timestamptz NOT NULL,
        ready_slot smallint NOT NULL,      -- where the bodies lie; prune leaves it while an attempt is open
        n          smallint NOT NULL,
        job_ids    bigint[] NOT NULL,
        run_leases integer[],              -- NULL: all 1
        attempts   smallint[]              -- NULL: all 1
    ) WITH (autovacuum_enabled = false, toast_tuple_target = 8160);

    -- Compact completions: bit i - 1 stands for index i of the batch. Bits of two rows of one batch never overlap.
    CREATE TABLE lease_claim_closure_batches_00 (
        batch_id  bigint NOT NULL,
        closed_at timestamptz NOT NULL,
        n         smallint NOT NULL CHECK (n = bit_count(members)),
        members   bit varying NOT NULL
    ) WITH (autovacuum_enabled = false);
    CREATE INDEX lease_claim_closure_batches_00_batch_id ON lease_claim_closure_batches_00 (batch_id);

    -- Every other end of an attempt.
    CREATE TABLE lease_claim_closures_00 (
        batch_id  bigint NOT NULL,
        idx       smallint NOT NULL,
        outcome   smallint NOT NULL,             -- as in finish_items
        closed_at timestamptz NOT NULL,
        PRIMARY KEY (batch_id, idx)
    ) WITH (autovacuum_enabled = false);
$ddl$);

SELECT pg_temp.create_ring_view(8, 'claim_slot', 'lease_claim_batches'),
       pg_temp.create_ring_view(8, 'claim_slot', 'lease_claim_closure_batches'),
       pg_temp.create_ring_view(8, 'claim_slot', 'lease_claim_closures');

CREATE SEQUENCE lease_claim_batch_id_seq AS bigint;

SELECT pg_temp.create_slot_function(8, $sig$
    insert_claim_batch(p_slot int, p_batch_id bigint, p_nonce bigint, p_instance bigint, p_lane_id bigint, p_ready_slot smallint, p_claimed_at timestamptz, p_job_ids bigint[], p_run_leases int[], p_attempts smallint[]) RETURNS boolean
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO lease_claim_batches_00 (batch_id, nonce, instance, lane_id, claimed_at, ready_slot, n, job_ids, run_leases, attempts)
        VALUES (p_batch_id, p_nonce, p_instance, p_lane_id, p_claimed_at, p_ready_slot, cardinality(p_job_ids), p_job_ids, p_run_leases, p_attempts);
        RETURN true;
$branch$);

-- A claim batch with what is known of its ends. `completed` and `otherwise` have n bits each.
CREATE TYPE claim_batch AS (
    nonce bigint, lane_id bigint, ready_slot smallint, claimed_at timestamptz, n smallint,
    job_ids bigint[], run_leases int[], attempts smallint[], none bit varying, completed bit varying, otherwise bit varying
);

-- Reads a batch and its closures; all NULL when it is not there.
SELECT pg_temp.create_slot_function(8, $sig$
    read_claim_batch(p_slot int, p_batch_id bigint) RETURNS claim_batch
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (
            SELECT (b.nonce, b.lane_id, b.ready_slot, b.claimed_at, b.n, b.job_ids, b.run_leases, b.attempts, b.none,
                    b.none | coalesce((SELECT bit_or(c.members) FROM lease_claim_closure_batches_00 c WHERE c.batch_id = p_batch_id), b.none),
                    b.none | coalesce((SELECT bit_or(set_bit(b.none, c.idx - 1, 1)) FROM lease_claim_closures_00 c WHERE c.batch_id = p_batch_id), b.none))::claim_batch
              FROM (SELECT cb.*, repeat('0', cb.n)::bit varying AS none FROM lease_claim_batches_00 cb WHERE cb.batch_id = p_batch_id) b);
$branch$);

SELECT pg_temp.create_slot_function(8, $sig$
    insert_closure(p_slot int, p_batch_id bigint, p_idx smallint, p_outcome smallint, p_closed_at timestamptz) RETURNS void
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO lease_claim_closures_00 (batch_id, idx, outcome, closed_at) VALUES (p_batch_id, p_idx, p_outcome, p_closed_at);
$branch$);

-- The outcome that a closure row records for one attempt; NULL when there is no such row.
SELECT pg_temp.create_slot_function(8, $sig$
    closure_outcome(p_slot int, p_batch_id bigint, p_idx smallint) RETURNS smallint
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT outcome FROM lease_claim_closures_00 WHERE batch_id = p_batch_id AND idx = p_idx);
$branch$);

-- The batches that one claim wrote into a slot, whose numbers are above p_above. No index leads to them, so all of those numbers are read. (A batch's
-- arrays may lie outside the row; only those of what is found are fetched.)
CREATE TYPE found_batch AS (batch_id bigint, lane_id bigint, ready_slot smallint, job_ids bigint[], run_leases int[], attempts smallint[]);
SELECT pg_temp.create_slot_function(8, $sig$
    find_claim_batches(p_slot int, p_instance bigint, p_nonce bigint, p_above bigint) RETURNS SETOF found_batch
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN QUERY SELECT b.batch_id, b.lane_id, b.ready_slot, b.job_ids, b.run_leases, b.attempts
                       FROM lease_claim_batches_00 b WHERE b.batch_id > p_above AND b.nonce = p_nonce AND b.instance = p_instance ORDER BY b.batch_id;
$branch$);

-- Looks at p_limit batches of a slot at most, from the newest below p_below down to the first above p_floor: how many that were, the
-- last of them, and those which are not of an instance in p_quiet and have an attempt that has not ended, newest first. Ends of one batch
-- never overlap, so counting them is enough. Their ends are read as one range and joined by hash: looking up each batch takes five buffers and four times as long.
CREATE TYPE open_batches AS (examined int, last_batch bigint, batch_ids bigint[], instances bigint[]);
SELECT pg_temp.create_slot_function(8, $sig$
    find_open_batches(p_slot int, p_below bigint, p_floor bigint, p_limit int, p_quiet bigint[]) RETURNS open_batches
    LANGUAGE plpgsql VOLATILE SET enable_nestloop = off $sig$, $branch$
        RETURN (
            WITH walked AS MATERIALIZED (
                SELECT batch_id, instance, n FROM lease_claim_batches_00 WHERE batch_id < p_below AND batch_id > p_floor ORDER BY batch_id DESC LIMIT p_limit),
            asked AS MATERIALIZED (SELECT * FROM walked WHERE instance <> ALL (p_quiet)),
            reach AS MATERIALIZED (SELECT min(batch_id) AS lowest, max(batch_id) AS highest FROM asked),
            ended AS (
                SELECT e.batch_id, sum(e.n) AS n
                  FROM (SELECT c.batch_id, c.n FROM lease_claim_closure_batches_00 c WHERE c.batch_id BETWEEN (SELECT lowest FROM reach) AND (SELECT highest FROM reach)
                        UNION ALL
                        SELECT o.batch_id, 1 FROM lease_claim_closures_00 o WHERE o.batch_id BETWEEN (SELECT lowest FROM reach) AND (SELECT highest FROM reach)) e
                 GROUP BY e.batch_id),
            opened AS MATERIALIZED (
                SELECT a.batch_id, a.instance FROM asked a LEFT JOIN ended e ON e.batch_id = a.batch_id WHERE a.n > coalesce(e.n, 0))
            SELECT ((SELECT count(*) FROM walked), (SELECT min(batch_id) FROM walked), (SELECT array_agg(batch_id ORDER BY batch_id DESC) FROM opened),
                    (SELECT array_agg(instance ORDER BY batch_id DESC) FROM opened))::open_batches);
$branch$);
