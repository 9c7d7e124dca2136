-- Words for the isolation specs: jobs have labels, receipts are found by label, and every answer is one short text, so that the expected
-- outputs hold no number that differs from run to run. Installed into the schema `iso` of the database of the specs, after
-- invariants.sql, with the engine's schema first in search_path.

CREATE SEQUENCE iso.nonces;
CREATE TABLE iso.jobs (job_id bigint PRIMARY KEY, label text NOT NULL);
-- Receipts, written by the transaction that claims.
CREATE TABLE iso.held (label text, claim_slot smallint, batch_id bigint, nonce bigint, idx smallint, job_id bigint, run_lease int);

-- The engine as it was installed, whatever the specs before did to it.
CREATE FUNCTION iso.reset() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_filled text := (SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class c
                       WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
                         AND c.relname ~ '_\d\d$' AND pg_relation_size(c.oid) > 0);
BEGIN
    EXECUTE coalesce('TRUNCATE ' || v_filled, 'SELECT 1');
    DELETE FROM queue_lanes; DELETE FROM queue_terminal_rollups; DELETE FROM deferred_jobs; DELETE FROM promotion_states; DELETE FROM iso.jobs; DELETE FROM iso.held;
    DELETE FROM runtime_instances; DELETE FROM idempotency_keys; UPDATE rescue_states SET newest = 0, lowest = 0, generation = NULL, seen_open = '{}';
    DELETE FROM queue_ring_slots; DELETE FROM queue_ring_sealed; DELETE FROM queue_ring_closed; DELETE FROM claim_ring_slots; DELETE FROM prune_states;
    INSERT INTO queue_ring_slots (generation, slot) VALUES (1, 0);
    INSERT INTO claim_ring_slots (generation, slot) VALUES (1, 0);
    PERFORM setval('queue_ring_pointer', 1 * 16 + 0), setval('claim_ring_pointer', 1 * 16 + 0);
    INSERT INTO promotion_states SELECT 0, '-infinity', 0, '1:1:', '{}';
END $$;

-- Enqueues p_count jobs labelled p_label || 1, 2, …
CREATE FUNCTION iso.enqueue(p_label text, p_count int DEFAULT 1, p_queue text DEFAULT 'q', p_run_at timestamptz DEFAULT NULL, p_priority int DEFAULT 2) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[];
BEGIN
    v_ids := ARRAY(SELECT enqueue_many(p_queue, 'k', ARRAY(SELECT json_build_object('label', p_label || i) FROM generate_series(1, p_count) i), p_priority, 25, p_run_at));
    INSERT INTO iso.jobs SELECT id, p_label || i FROM unnest(v_ids) WITH ORDINALITY u(id, i);
    RETURN p_label || ' x ' || p_count;
END $$;

-- Claims and returns labels in the order of handing out, then EMPTY or BUSY if the claim said so. Label'n is the n-th attempt of a job.
CREATE FUNCTION iso.claim(p_limit int, p_queues text[] DEFAULT '{q,old}') RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_nonce bigint := nextval('iso.nonces');
    v_row record;
    v_labels text[] := '{}';
    v_end text := '';
BEGIN
    FOR v_row IN SELECT * FROM claim(1, v_nonce, p_queues, p_limit, 1000000) LOOP
        IF v_row.status = 1 THEN
            INSERT INTO iso.held SELECT u.args ->> 'label', v_row.claim_slot, v_row.batch_id, v_nonce, u.idx, u.job_id, u.run_lease
              FROM unnest(v_row.job_ids, v_row.run_leases, v_row.args) WITH ORDINALITY u(job_id, run_lease, args, idx);
            FOR i IN 1 .. cardinality(v_row.job_ids) LOOP
                v_labels[coalesce(v_row.places[i], cardinality(v_labels) + 1)] := (v_row.args[i] ->> 'label') || repeat('''', v_row.run_leases[i] - 1);
            END LOOP;
        ELSE
            v_end := CASE v_row.status WHEN 2 THEN 'EMPTY' ELSE 'BUSY' END;
        END IF;
    END LOOP;
    RETURN concat_ws(' ', nullif(array_to_string(v_labels, ' ', '?'), ''), nullif(v_end, ''));
END $$;

CREATE FUNCTION iso.status_word(p_status int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT (ARRAY['DONE', 'ALREADY_DONE', 'STALE', 'NOT_FOUND', 'INVALID', 'ABORTED', 'BUSY'])[p_status]
$$;

-- Completes the newest attempts of jobs with complete_batch(), the proxy's way.
CREATE FUNCTION iso.complete(VARIADIC p_labels text[]) RETURNS text
LANGUAGE sql AS $$
    WITH item AS (
        SELECT DISTINCT ON (label) * FROM iso.held WHERE label = ANY (p_labels) ORDER BY label, run_lease DESC),
    batch AS (
        SELECT claim_slot, batch_id, nonce, count(*)::int AS n FROM item GROUP BY 1, 2, 3),
    items AS (
        SELECT array_agg(idx ORDER BY claim_slot, batch_id, idx) AS idx, array_agg(job_id ORDER BY claim_slot, batch_id, idx) AS job_ids,
               array_agg(run_lease ORDER BY claim_slot, batch_id, idx) AS leases, array_agg(label ORDER BY claim_slot, batch_id, idx) AS labels FROM item),
    batches AS (
        SELECT array_agg(claim_slot ORDER BY claim_slot, batch_id) AS slots, array_agg(batch_id ORDER BY claim_slot, batch_id) AS ids,
               array_agg(nonce ORDER BY claim_slot, batch_id) AS nonces, array_agg(n ORDER BY claim_slot, batch_id) AS counts FROM batch),
    answer AS MATERIALIZED (
        SELECT items.labels, complete_batch(slots, ids, nonces, counts, idx, job_ids, leases) AS statuses FROM items, batches)
    SELECT string_agg(u.label || ' ' || iso.status_word(u.status), ', ' ORDER BY u.label) FROM answer, unnest(answer.labels, answer.statuses) u(label, status)
$$;

-- Ends the newest attempts of jobs with finish_items(); what is put aside is due in an hour, or when time_passes().
CREATE FUNCTION iso.finish(p_outcome text, VARIADIC p_labels text[]) RETURNS text
LANGUAGE sql AS $$
    WITH item AS (
        SELECT DISTINCT ON (label) * FROM iso.held WHERE label = ANY (p_labels) ORDER BY label, run_lease DESC),
    answer AS MATERIALIZED (
        SELECT array_agg(label ORDER BY label) AS labels, finish_items(array_agg(claim_slot ORDER BY label), array_agg(batch_id ORDER BY label), array_agg(nonce ORDER BY label),
                   array_agg(idx ORDER BY label), array_agg(job_id ORDER BY label), array_agg(run_lease ORDER BY label),
                   array_agg(array_position('{complete,retry,snooze,fail,cancel,release,worker lost}', p_outcome)::smallint), array_agg(3600000::bigint), array_agg('e'::text)) AS statuses
          FROM item)
    SELECT string_agg(u.label || ' ' || iso.status_word(u.status), ', ' ORDER BY u.label) FROM answer, unnest(answer.labels, answer.statuses) u(label, status)
$$;

-- Cancels jobs by id; the statuses of cancel_jobs(): 1 now, 2 before, 3 ended otherwise, 4 not found, 7 in somebody's hands.
CREATE FUNCTION iso.cancel(VARIADIC p_labels text[]) RETURNS text LANGUAGE sql AS $$
    SELECT string_agg(j.label || ' ' || c.status, ', ' ORDER BY j.label)
      FROM cancel_jobs(ARRAY(SELECT job_id FROM iso.jobs WHERE label = ANY (p_labels))) c JOIN iso.jobs j USING (job_id)
$$;

-- The maintenance steps, with laps and delays of zero.
CREATE FUNCTION iso.rotate() RETURNS text LANGUAGE sql AS $$ SELECT CASE WHEN rotate_rings(0, 0) THEN 'rotated' ELSE 'not rotated' END $$;
CREATE FUNCTION iso.sync() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM sync_ring_pointers();
    RETURN 'current: ' || (SELECT last_value >> 4 FROM queue_ring_pointer);
END $$;
CREATE FUNCTION iso.carry() RETURNS text LANGUAGE sql AS $$ SELECT 'carried ' || carry_lanes(100) $$;
CREATE FUNCTION iso.close() RETURNS text LANGUAGE sql AS $$ SELECT 'closed ' || closed FROM close_slots() $$;
CREATE FUNCTION iso.prune() RETURNS text LANGUAGE sql AS $$ SELECT 'pruned ' || pruned FROM prune_slots(0, 0) $$;
CREATE FUNCTION iso.promote() RETURNS text LANGUAGE sql AS $$ SELECT 'promoted ' || promote_due(100) $$;

-- The proxy of all claims is gone, long since; and the leader's step that ends what it held.
CREATE FUNCTION iso.lose_proxy() RETURNS void LANGUAGE sql AS $$ INSERT INTO runtime_instances (instance, missing_since, looked_at) VALUES (1, clock_timestamp() - interval '1 hour', clock_timestamp()) $$;
CREATE FUNCTION iso.rescue() RETURNS text LANGUAGE sql AS $$ SELECT 'rescued ' || rescue_instances(100, 30000) $$;

-- What the newest claim handed out, by its nonce; "nothing" if it did not commit.
CREATE FUNCTION iso.claim_result() RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(CASE r.status WHEN 7 THEN 'BUSY' ELSE u.args ->> 'label' END, ' ' ORDER BY r.batch_id, u.i), 'nothing')
      FROM claim_result(1, (SELECT last_value FROM iso.nonces), 0) r LEFT JOIN LATERAL unnest(r.args) WITH ORDINALITY u(args, i) ON true
$$;

-- The use of an idempotency key for two jobs of its own label: enqueues them if the key is new, else says whose jobs it stands for.
CREATE FUNCTION iso.enqueue_once(p_key text, p_label text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_ids bigint[] := ARRAY(SELECT nextval('job_id_seq') FROM generate_series(1, 2));
    v_known bigint[] := claim_idempotency_key(p_key, v_ids);
BEGIN
    IF v_known IS NOT NULL THEN
        RETURN 'known: ' || (SELECT string_agg(label, ' ' ORDER BY label) FROM iso.jobs WHERE job_id = ANY (v_known));
    END IF;
    PERFORM enqueue_batch('{q}', '{1,1}', v_ids, '{2,2}', '{k,k}', ARRAY(SELECT json_build_object('label', p_label || i)::text FROM generate_series(1, 2) i), '{25,25}', NULL, NULL, NULL, NULL);
    INSERT INTO iso.jobs SELECT id, p_label || i FROM unnest(v_ids) WITH ORDINALITY u(id, i);
    RETURN 'new: ' || p_label;
END $$;

-- Every deferred job is due now.
CREATE FUNCTION iso.time_passes() RETURNS void LANGUAGE sql AS $$ UPDATE deferred_jobs SET due_at = clock_timestamp() $$;

-- A state in which every step has something to do:
--   generation 1: p1 p2 of queue p, which ended; closed, and so ready for prune, as is its claim slot
--   generation 2: o1 of queue old, which ended, and that lane's newest state: close and carry have work; the claim slot can go too
--   generation 3, current: of queue q h1 h2 h3 claimed in one batch, r1 r2 r3 available, d1 deferred and due
CREATE PROCEDURE iso.scene() LANGUAGE plpgsql AS $$
BEGIN
    PERFORM iso.reset();                    COMMIT;
    PERFORM iso.enqueue('p', 2, 'p');       COMMIT;
    PERFORM iso.claim(2, '{p}');            COMMIT;
    PERFORM iso.complete('p1', 'p2');       COMMIT;
    PERFORM iso.rotate();                   COMMIT;
    PERFORM iso.sync();                     COMMIT;
    PERFORM iso.close();                    COMMIT;
    PERFORM iso.carry();                    COMMIT;
    PERFORM iso.close();                    COMMIT;
    PERFORM iso.enqueue('o', 1, 'old');     COMMIT;
    PERFORM iso.claim(1, '{old}');          COMMIT;
    PERFORM iso.complete('o1');             COMMIT;
    PERFORM iso.rotate();                   COMMIT;
    PERFORM iso.sync();                     COMMIT;
    PERFORM iso.enqueue('h', 3);            COMMIT;
    PERFORM iso.claim(3, '{q}');            COMMIT;
    PERFORM iso.enqueue('r', 3);            COMMIT;
    PERFORM iso.enqueue('d', 1, 'q', now() + interval '1 hour');  COMMIT;
    PERFORM iso.time_passes();              COMMIT;
END $$;

-- The exact counts of a queue that are not zero.
CREATE FUNCTION iso.counts(p_queue text DEFAULT 'q') RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT string_agg(key || ' ' || value, ', ' ORDER BY key) FROM queue_counts_exact(p_queue) c, jsonb_each(to_jsonb(c)) WHERE value <> '0'
$$;

-- The end of every permutation, with no transaction left open: counts, then everything is promoted, claimed and completed.
-- handed_out: the labels in the order in which a repeating claimer got them; problems: what was wrong before or after, NULL is right.
CREATE PROCEDURE iso.settle(INOUT counts text DEFAULT NULL, INOUT handed_out text DEFAULT NULL, INOUT problems text DEFAULT NULL) LANGUAGE plpgsql AS $$
DECLARE
    v_claimed text;
    v_open text[];
BEGIN
    counts := iso.counts();
    problems := (SELECT string_agg(p, '; ') FROM iso.problems() p);
    COMMIT;
    PERFORM iso.sync();                     COMMIT;
    PERFORM iso.time_passes();              COMMIT;
    PERFORM iso.promote();                  COMMIT;
    FOR round IN 1 .. 20 LOOP
        v_claimed := iso.claim(100, '{q,old,p}');  COMMIT;
        handed_out := concat_ws(' ', handed_out, v_claimed);
        EXIT WHEN v_claimed ~ 'EMPTY$';
    END LOOP;
    PERFORM iso.look();
    v_open := ARRAY(SELECT h.label FROM attempts a JOIN iso.held h USING (batch_id, idx) WHERE a.outcome IS NULL);
    PERFORM iso.complete(VARIADIC v_open);  COMMIT;
    problems := nullif(concat_ws('; ', problems, (SELECT string_agg(p, '; ') FROM iso.problems() p),
        (SELECT format('%s jobs were enqueued and %s ended', jobs, ended)
           FROM (SELECT count(*) AS jobs FROM iso.jobs) j,
                (SELECT sum(c.completed + c.failed + c.cancelled) AS ended FROM unnest('{q,old,p}'::text[]) q CROSS JOIN LATERAL queue_counts_exact(q) c) e WHERE jobs <> ended),
        (SELECT 'another body: job ' || string_agg(t.job_id::text, ' ') FROM terminal_jobs t JOIN iso.jobs j USING (job_id) WHERE t.args ->> 'label' IS DISTINCT FROM j.label)), '');
END $$;

-- Lets the test stop a claim between two of its steps: gate(n) waits as long as another session holds the gate, in sessions that said
-- SET iso.gated = n. gate_claim() puts a gate in front of every "-- step n" of claim_lane().
CREATE FUNCTION iso.gate(p_step int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('iso.gated', true) = p_step::text THEN
        PERFORM pg_advisory_lock_shared(50, p_step);
        PERFORM pg_advisory_unlock_shared(50, p_step);
    END IF;
END $$;
CREATE FUNCTION iso.gate_claim() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_source text := pg_get_functiondef('claim_lane'::regproc);
    v_gated text := regexp_replace(v_source, '^( *)-- step (\d)', E'\\1PERFORM iso.gate(\\2);\n\\1-- step \\2', 'gn');
BEGIN
    IF v_source ~ 'iso.gate' THEN
        RETURN;
    ELSIF (SELECT count(*) FROM regexp_matches(v_gated, 'iso\.gate\(', 'g')) <> 7 THEN
        RAISE EXCEPTION 'claim_lane() is expected to have 7 steps';
    END IF;
    EXECUTE v_gated;
END $$;
