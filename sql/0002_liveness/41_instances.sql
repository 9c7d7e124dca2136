-- Proxy instances: who lives, told by a session lock and without heartbeat writes.
--
-- Every proxy's control session holds its instance key, shared (10_guards.sql of 0001). An instance whose key nobody holds is missing; since when, the
-- leader writes here, and clears it when the key is held again. So an idle cluster writes nothing.
-- The leader reads who holds what rather than trying each key: tried from the leader's own session its own key would be free, and a proxy that
-- comes back in that moment would be refused (docs/decisions/0111).

CREATE TABLE runtime_instances (
    instance      bigint PRIMARY KEY,
    started_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    missing_since timestamptz,      -- NULL: its key is held, as far as the leader knows. Time in which nobody looked is left out
    looked_at     timestamptz,      -- when the leader looked last, while it was missing and not settled
    settled_at    timestamptz,      -- since then known to have no open attempt (42_rescue.sql)
    proxy         text              -- what the proxy calls itself, for people
);

-- Makes the calling session the living instance p_instance: its lock, for as long as the session lasts, and its row. False: see instance_lock; ask again.
-- Locks: the instance key (shared, tried, session), the row until commit. Waits for a rescue that is noting this instance's absence, some
-- milliseconds. Idempotent; a proxy calls it on every new control session, with the same number.
CREATE FUNCTION register_instance(p_instance bigint, p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF p_instance IS NULL OR octet_length(p_name) > 200 THEN
        RAISE EXCEPTION 'an instance needs a number, and a name of at most 200 bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT instance_lock(p_instance) THEN
        RETURN false;
    END IF;
    INSERT INTO runtime_instances (instance, proxy) VALUES (p_instance, p_name)
    ON CONFLICT (instance) DO UPDATE SET missing_since = NULL, settled_at = NULL, proxy = excluded.proxy;
    RETURN true;
END $$;

-- Raises, with their names, when instances are alive. Reads only; locks nothing.
CREATE FUNCTION refuse_living_instances() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_alive text := (SELECT string_agg(format('%s (instance %s)', coalesce(r.proxy, 'unnamed'), r.instance), ', ' ORDER BY r.started_at, r.instance)
                       FROM runtime_instances r WHERE advisory_key('instance', r.instance) IN (SELECT key FROM held_keys('ShareLock')));
BEGIN
    IF v_alive IS NOT NULL THEN
        RAISE EXCEPTION 'schema % has proxies connected: %', current_schema(), v_alive USING ERRCODE = 'object_in_use', HINT = 'Stop all of them first.';
    END IF;
END $$;

-- How much counts of the time between two looks. The leader looks every second; while the server is away, or nobody leads, nobody could come back either,
-- and who then comes first would take the others, which are connecting just as he was, for dead.
CREATE FUNCTION longest_look() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT interval '2 seconds' $$;

-- Leaves the time in which nobody looked out of all absences; one that begins in the future, because the clock has gone back, begins now. Locks rows that
-- change until commit (skipped when locked). Waits for nobody.
CREATE FUNCTION discount_absences() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_now CONSTANT timestamptz := clock_timestamp();
BEGIN
    UPDATE runtime_instances
       SET missing_since = least(missing_since + greatest(v_now - greatest(looked_at, missing_since) - longest_look(), interval '0'), v_now), looked_at = v_now
     WHERE instance IN (SELECT r.instance FROM runtime_instances r WHERE r.missing_since > v_now OR r.missing_since IS NOT NULL AND r.settled_at IS NULL
                           FOR UPDATE SKIP LOCKED);
END $$;

-- Writes down who has gone missing and who is back. Locks rows that change until commit (skipped when locked). Waits for nobody.
CREATE FUNCTION note_missing_instances() RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_gone bigint[];
    v_back bigint[];
BEGIN
    -- The rows' snapshot is older than this reading of the locks, so of a row that is seen the lock was taken before.
    WITH held AS MATERIALIZED (SELECT DISTINCT key FROM held_keys('ShareLock')),
    changed AS (
        SELECT r.instance, r.missing_since IS NULL AS gone FROM runtime_instances r
         WHERE (r.missing_since IS NULL) <> (advisory_key('instance', r.instance) IN (SELECT key FROM held)))
    SELECT array_agg(instance) FILTER (WHERE gone), array_agg(instance) FILTER (WHERE NOT gone) INTO v_gone, v_back FROM changed;
    UPDATE runtime_instances SET missing_since = clock_timestamp()
     WHERE instance IN (SELECT r.instance FROM runtime_instances r WHERE r.instance = ANY (v_gone) AND r.missing_since IS NULL FOR UPDATE SKIP LOCKED);
    UPDATE runtime_instances SET missing_since = NULL, settled_at = NULL
     WHERE instance IN (SELECT r.instance FROM runtime_instances r WHERE r.instance = ANY (v_back) AND r.missing_since IS NOT NULL FOR UPDATE SKIP LOCKED);
END $$;
