-- Guards and advisory keys: what every function of the hot path stands on.
--
-- Advisory keys are 64-bit hashes of (schema, space, number), so two schemas of
-- one database never meet, and neither do two kinds of lock. All locks that the
-- storage takes are transaction locks: one that outlives its transaction would
-- leak when a statement_timeout fires (the instance lock below and the leader's are
-- the exceptions: their session is the thing they stand for).
--
-- Order in which any transaction takes them (a later one never before an earlier):
--   lane claim mutex -> lane guard -> claim batch keys, ascending -> attempt and job keys -> rows.
-- Ring slot keys are only ever tried, so they have no place in the order.

CREATE TYPE key_space AS ENUM (
    'queue_slot',    -- shared: a writer of the current queue slot; exclusive: the closer
    'claim_slot',    -- shared: a claim or an ending that uses the slot; exclusive: prune
    'lane',          -- the lane's claim mutex
    'lane_guard',    -- shared: somebody invalidates an unclaimed job of the lane; exclusive: a claim that knows that nobody does
    'job',           -- one unclaimed job
    'batch',         -- one claim batch
    'attempt',       -- one (job_id, run_lease)
    'maintenance',   -- one maintenance step at a time
    'instance',      -- shared, session: this proxy lives
    'leader'         -- exclusive, session: this proxy leads
);

DO $do$
BEGIN
    -- The schema's hash is a constant of the installed function: computing it at run time would cost a lookup on every lock.
    EXECUTE format($fn$
        CREATE FUNCTION advisory_key(p_space key_space, p_number bigint) RETURNS bigint
        LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
        $body$ SELECT hashint8extended(p_number, hashenumextended(p_space, %s)) $body$
    $fn$, hashtextextended(current_schema(), 0));
END $do$;

-- Every function that decides by what it sees refuses any isolation but READ COMMITTED: under an older snapshot two claims, or a
-- completion and a rescue, could both be right. Locks nothing, waits for nothing.
CREATE FUNCTION require_read_committed(p_function text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION '% must run under READ COMMITTED, this transaction is %', p_function, upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Start the transaction with BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;
END $$;

-- Names this schema as it stands, the database (upper half) and the schema by their oids: one that was dropped and made anew has another number, and so has
-- one that has come back to this name, or a copy of the database. (One that was made under another name works under that name only: its functions pin it.)
-- NULL where there is none. Reads only, waits for nothing.
CREATE FUNCTION schema_id() RETURNS bigint
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$
    SELECT d.oid::bigint << 32 | n.oid::bigint FROM pg_database d, pg_namespace n WHERE d.datname = current_database() AND n.nspname = current_schema()
$$;

-- True; raises JQ001 where p_id is not this schema's. The proxy puts it, with the number that it has read when it connected, behind every statement that it
-- prepares: what it knows (ids reserved, what it claimed, locks of its session) is of that schema. Not immutable at all, and called so for a reason:
-- so the planner calls it, once for each plan, and a plan lasts until the functions that it calls are dropped or come by another name.
-- Reads only, waits for nothing.
CREATE FUNCTION require_schema(p_id bigint) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
BEGIN
    IF p_id IS DISTINCT FROM schema_id() THEN
        RAISE EXCEPTION 'schema % was made anew', current_schema() USING ERRCODE = 'JQ001';
    END IF;
    RETURN true;
END $$;

-- Marks the calling session as the living proxy instance p_instance, for as long as the session lasts. False when somebody holds that
-- key exclusively, which nothing in this schema does. Idempotent in effect: each call adds one hold, and all go with the session. Waits for nothing.
CREATE FUNCTION instance_lock(p_instance bigint) RETURNS boolean
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT pg_try_advisory_lock_shared(advisory_key('instance', p_instance))
$$;
