-- How a lane is walked: windows between snapshots, so that no row needs a number and nobody waits for a producer.
--
-- A window (lo, hi] is the set of committed rows that snapshot hi sees and snapshot lo did not. It is fixed the moment hi is taken,
-- whoever commits when; each committed row lies in exactly one window of its lane. It is walked in the order of (xid, job_id), as a
-- list of ranges: one for each transaction that was running at lo and has ended by hi (the late ones, all below lo's xmax), then the
-- stretches from lo's xmax to hi's, around the transactions still running at hi. So rows of a running transaction are not even
-- visited, however many there are. A position is one key, and it does not matter which slot a row lies in.
--
-- The functions below only read, but are VOLATILE: each statement must see what committed before it. None of them waits.

-- A lane's state. no = 0: nothing was ever claimed. A window is exhausted once at_xid has reached hi's xmax.
CREATE TYPE lane_state AS (no bigint, slot smallint, at_xid xid8, at_job_id bigint, lo pg_snapshot, hi pg_snapshot, skipped_xids xid8[], skipped_job_ids bigint[]);

-- Ranges, ascending: (xid, job_id) > (from_xid, from_job) AND xid < to_xid. The end is a transaction id alone: an index scan goes on past
-- a row comparison that fails in its second column, through all rows of that transaction.
CREATE TYPE xid_ranges AS (from_xids xid8[], from_jobs bigint[], to_xids xid8[]);

-- Ready rows of one slot, parallel arrays in walking order. plain: all of them are fresh jobs (no
-- lease spent: run_leases and attempts are NULL, for all 1), and the lane has no tombstone in this slot.
CREATE TYPE ready_rows AS (
    n int, xids xid8[], job_ids bigint[], run_leases int[], attempts smallint[], max_attempts smallint[],
    created_ats timestamptz[], kinds text[], args json[], metadata json[], traceparents text[], bytes bigint, plain boolean, places int[]
);
-- Keys of live rows of one slot. examined_*: the last key looked at, when the bound on that ended the search.
CREATE TYPE ready_keys AS (xids xid8[], job_ids bigint[], sizes int[], examined_xid xid8, examined_job_id bigint);

-- How many rows one claim looks at in a slot with tombstones before it saves its progress and leaves.
CREATE FUNCTION claim_examine_limit() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 20000 $$;

-- The newest state of a lane within one slot, NULL if there is none.
SELECT pg_temp.create_slot_function(16, $sig$
    newest_lane_state(p_slot int, p_lane_id bigint) RETURNS lane_state
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (SELECT (state_no, p_slot, at_xid, at_job_id, lo, hi, skipped_xids, skipped_job_ids)::lane_state
                  FROM lane_states_00 WHERE lane_id = p_lane_id ORDER BY state_no DESC LIMIT 1);
$branch$);

-- The newest state of a lane over the given slots. Reliable under the lane's claim mutex only.
CREATE FUNCTION read_lane_state(p_slots smallint[], p_lane_id bigint) RETURNS lane_state
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    -- Before the first claim: an exhausted window that has seen nothing.
    v_newest lane_state := (0, NULL, '1', 0, '1:1:', '1:1:', NULL, NULL);
    v_state lane_state;
    v_slot smallint;
BEGIN
    IF cardinality(p_slots) = 1 THEN
        v_state := newest_lane_state(p_slots[1], p_lane_id);
        RETURN CASE WHEN v_state.no IS NULL THEN v_newest ELSE v_state END;
    END IF;
    FOREACH v_slot IN ARRAY p_slots LOOP
        v_state := newest_lane_state(v_slot, p_lane_id);
        IF v_state.no > v_newest.no THEN
            v_newest := v_state;
        END IF;
    END LOOP;
    RETURN v_newest;
END $$;

-- Writes a lane's next state into the current slot, which the caller has entered, under the lane's claim mutex.
SELECT pg_temp.create_slot_function(16, $sig$
    write_lane_state(p_slot int, p_lane_id bigint, p_state lane_state) RETURNS boolean
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        INSERT INTO lane_states_00 (lane_id, state_no, at_xid, at_job_id, lo, hi, skipped_xids, skipped_job_ids)
        VALUES (p_lane_id, p_state.no + 1, p_state.at_xid, p_state.at_job_id, p_state.lo, p_state.hi, p_state.skipped_xids, p_state.skipped_job_ids);
        RETURN true;
$branch$);

-- The present, as the end of a window. A transaction does not list itself as running: ours is added if it has an id, since what it
-- writes from now on must fall into a later window.
CREATE FUNCTION window_end() RETURNS pg_snapshot
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now pg_snapshot := pg_current_snapshot();
    v_own xid8 := pg_current_xact_id_if_assigned();
BEGIN
    IF v_own IS NULL OR v_own >= pg_snapshot_xmax(v_now) THEN
        RETURN v_now;
    END IF;
    RETURN (SELECT format('%s:%s:%s', CASE WHEN v_own < pg_snapshot_xmin(v_now) THEN v_own ELSE pg_snapshot_xmin(v_now) END,
                          pg_snapshot_xmax(v_now), string_agg(x::text, ',' ORDER BY x))::pg_snapshot
              FROM (SELECT pg_snapshot_xip(v_now) AS x UNION SELECT v_own) running);
END $$;

-- The window after an exhausted one. Whatever is older than lo's xmin was seen by lo, so the walk begins there.
CREATE FUNCTION next_window(p_state lane_state) RETURNS lane_state
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (p_state.no, p_state.slot, pg_snapshot_xmin(p_state.hi), -1, p_state.hi, window_end(), p_state.skipped_xids, p_state.skipped_job_ids)::lane_state;
END $$;

-- What is left of a window.
CREATE FUNCTION window_ranges(p_state lane_state) RETURNS xid_ranges
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_last_job CONSTANT bigint := 9223372036854775807;
    v_late xid8[] := '{}';
    v_late_jobs bigint[] := '{}';
    v_start_xid xid8 := p_state.at_xid;
    v_start_job bigint := p_state.at_job_id;
    v_running xid8[];
BEGIN
    IF p_state.at_xid >= pg_snapshot_xmax(p_state.lo) AND pg_snapshot_xmin(p_state.hi) = pg_snapshot_xmax(p_state.hi) THEN
        -- Nothing late, nothing running: one range, by far the most frequent case.
        RETURN (ARRAY[v_start_xid], ARRAY[v_start_job], ARRAY[pg_snapshot_xmax(p_state.hi)])::xid_ranges;
    END IF;
    IF p_state.at_xid < pg_snapshot_xmax(p_state.lo) THEN
        v_late := ARRAY(SELECT x FROM pg_snapshot_xip(p_state.lo) x WHERE x >= p_state.at_xid AND pg_visible_in_snapshot(x, p_state.hi) ORDER BY x);
        v_late_jobs := ARRAY(SELECT CASE WHEN x = p_state.at_xid THEN p_state.at_job_id ELSE -1 END FROM unnest(v_late) x);
        v_start_xid := pg_snapshot_xmax(p_state.lo);
        v_start_job := -1;
    END IF;
    v_running := ARRAY(SELECT x FROM pg_snapshot_xip(p_state.hi) x WHERE x >= v_start_xid ORDER BY x);
    RETURN (v_late || v_start_xid || v_running,
            v_late_jobs || v_start_job || array_fill(v_last_job, ARRAY[cardinality(v_running)]),
            ARRAY(SELECT (x::text::bigint + 1)::text::xid8 FROM unnest(v_late) x) || v_running || pg_snapshot_xmax(p_state.hi))::xid_ranges;
END $$;

-- The first p_limit rows of the ranges in one slot (nested loops over ordered index scans keep the order); to be handed out only if
-- they are plain. Each aggregate costs more to set up than a row costs to fetch, so this has no more than that case needs. bytes is an
-- upper bound here: the size of the arrays.
SELECT pg_temp.create_slot_function(16, $sig$
    find_ready_rows(p_slot int, p_lane_id bigint, p_ranges xid_ranges, p_limit int) RETURNS ready_rows
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (
            SELECT (coalesce(cardinality(array_agg(r.job_id)), 0), array_agg(r.xid), array_agg(r.job_id), NULL, NULL, array_agg(r.max_attempts), array_agg(r.created_at),
                    array_agg(r.kind), array_agg(r.args), array_agg(r.metadata), array_agg(r.traceparent),
                    pg_column_size(array_agg(r.args)) + pg_column_size(array_agg(r.metadata)),
                    coalesce(max(r.run_lease), 0) = 0 AND NOT EXISTS (SELECT FROM ready_tombstones_00 WHERE lane_id = p_lane_id), NULL)::ready_rows
              FROM (SELECT e.*
                      FROM unnest(p_ranges.from_xids, p_ranges.from_jobs, p_ranges.to_xids) range(from_xid, from_job, to_xid)
                     CROSS JOIN LATERAL (SELECT * FROM ready_entries_00
                                          WHERE lane_id = p_lane_id AND (xid, job_id) > (range.from_xid, range.from_job) AND xid < range.to_xid
                                          ORDER BY xid, job_id LIMIT p_limit) e
                     LIMIT p_limit) r);
$branch$);

-- Keys of the first p_limit rows of the ranges in one slot that have no tombstone; looks at claim_examine_limit() rows at most.
-- p_sized: with their sizes, for which the bodies have to be read; else 0.
SELECT pg_temp.create_slot_function(16, $sig$
    find_ready_keys(p_slot int, p_lane_id bigint, p_ranges xid_ranges, p_limit int, p_sized boolean) RETURNS ready_keys
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (
            WITH examined AS MATERIALIZED (
                SELECT e.*
                  FROM unnest(p_ranges.from_xids, p_ranges.from_jobs, p_ranges.to_xids) range(from_xid, from_job, to_xid)
                 CROSS JOIN LATERAL (SELECT xid, job_id, CASE WHEN p_sized THEN octet_length(args::text) + coalesce(octet_length(metadata::text), 0) ELSE 0 END AS size FROM ready_entries_00
                                      WHERE lane_id = p_lane_id AND (xid, job_id) > (range.from_xid, range.from_job) AND xid < range.to_xid
                                      ORDER BY xid, job_id LIMIT claim_examine_limit()) e
                 LIMIT CASE WHEN EXISTS (SELECT FROM ready_tombstones_00 WHERE lane_id = p_lane_id) THEN claim_examine_limit() ELSE p_limit END),
            live AS MATERIALIZED (
                SELECT * FROM examined x
                 WHERE NOT EXISTS (SELECT FROM ready_tombstones_00 t WHERE t.lane_id = p_lane_id AND t.xid = x.xid AND t.job_id = x.job_id)
                 LIMIT p_limit),
            last_examined AS (
                SELECT xid, job_id FROM examined WHERE (SELECT count(*) FROM live) < p_limit OFFSET claim_examine_limit() - 1 LIMIT 1)
            SELECT (array_agg(live.xid), array_agg(live.job_id), array_agg(live.size),
                    (SELECT xid FROM last_examined), (SELECT job_id FROM last_examined))::ready_keys
              FROM live);
$branch$);

-- The rows of given keys, in their order; those that are not in this slot, or were buried meanwhile, are left out. p_bodies: else kinds, args,
-- metadata and traceparents are NULL, and not read.
SELECT pg_temp.create_slot_function(16, $sig$
    read_ready_rows(p_slot int, p_lane_id bigint, p_xids xid8[], p_job_ids bigint[], p_places int[], p_bodies boolean) RETURNS ready_rows
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN (
            SELECT (count(*), array_agg(r.xid), array_agg(r.job_id), array_agg(r.run_lease + 1), array_agg((r.attempt + 1)::smallint), array_agg(r.max_attempts),
                    array_agg(r.created_at), array_agg(r.kind), array_agg(r.args),
                    array_agg(r.metadata), array_agg(r.traceparent), sum(r.size), max(r.run_lease) = 0, array_agg(r.place))::ready_rows
              FROM (SELECT e.xid, e.job_id, e.run_lease, e.attempt, e.max_attempts, e.created_at, CASE WHEN p_bodies THEN e.kind END AS kind, CASE WHEN p_bodies THEN e.args END AS args,
                           CASE WHEN p_bodies THEN e.metadata END AS metadata, CASE WHEN p_bodies THEN e.traceparent END AS traceparent, key.place,
                           CASE WHEN p_bodies THEN octet_length(e.args::text) + coalesce(octet_length(e.metadata::text), 0) ELSE 0 END AS size
                      FROM unnest(p_xids, p_job_ids, p_places) key(xid, job_id, place)
                     CROSS JOIN LATERAL (SELECT * FROM ready_entries_00 WHERE lane_id = p_lane_id AND xid = key.xid AND job_id = key.job_id LIMIT 1) e
                     WHERE NOT EXISTS (SELECT FROM ready_tombstones_00 t WHERE t.lane_id = p_lane_id AND t.xid = key.xid AND t.job_id = key.job_id)) r);
$branch$);

-- The same one by one, for when a body among them cannot be read: that job comes with kind and args NULL, and its neighbours as always.
CREATE FUNCTION read_ready_rows_singly(p_slot int, p_lane_id bigint, p_xids xid8[], p_job_ids bigint[], p_places int[]) RETURNS ready_rows
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_all ready_rows := (0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, true, NULL);
    v_one ready_rows;
BEGIN
    FOR i IN 1 .. coalesce(cardinality(p_job_ids), 0) LOOP
        BEGIN
            v_one := read_ready_rows(p_slot, p_lane_id, p_xids[i:i], p_job_ids[i:i], p_places[i:i], true);
        EXCEPTION WHEN internal_error THEN
            RAISE WARNING 'the body of job % cannot be read: % (SQLSTATE %)', p_job_ids[i], SQLERRM, SQLSTATE;
            v_one := read_ready_rows(p_slot, p_lane_id, p_xids[i:i], p_job_ids[i:i], p_places[i:i], false);
        END;
        CONTINUE WHEN v_one.n = 0;
        v_all := (v_all.n + 1, v_all.xids || v_one.xids, v_all.job_ids || v_one.job_ids, v_all.run_leases || v_one.run_leases, v_all.attempts || v_one.attempts,
                  v_all.max_attempts || v_one.max_attempts, v_all.created_ats || v_one.created_ats, v_all.kinds || v_one.kinds, v_all.args || v_one.args,
                  v_all.metadata || v_one.metadata, v_all.traceparents || v_one.traceparents, v_all.bytes + v_one.bytes, v_all.plain AND v_one.plain,
                  v_all.places || v_one.places)::ready_rows;
    END LOOP;
    RETURN v_all;
END $$;

-- Whether a lane has a visible row in this slot that no transaction of this cluster can have written.
SELECT pg_temp.create_slot_function(16, $sig$
    has_foreign_row(p_slot int, p_lane_id bigint) RETURNS boolean
    LANGUAGE plpgsql VOLATILE $sig$, $branch$
        RETURN EXISTS (SELECT FROM ready_entries_00
                        WHERE lane_id = p_lane_id AND xid >= pg_snapshot_xmax(pg_current_snapshot()) AND xid IS DISTINCT FROM pg_current_xact_id_if_assigned());
$branch$);
