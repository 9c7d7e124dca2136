-- Leadership: one session of all proxies holds the schema's leader key; losing the session loses the lead.

-- The advisory keys that sessions of this database hold in p_mode ('ShareLock', 'ExclusiveLock'), and the pid of each. Looks at the whole lock table: for
-- maintenance only.
CREATE FUNCTION held_keys(p_mode text) RETURNS TABLE (key bigint, pid int)
LANGUAGE sql VOLATILE AS $$
    SELECT l.classid::bigint << 32 | l.objid::bigint, l.pid
      FROM pg_locks l
     WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted AND l.mode = p_mode AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
$$;

CREATE FUNCTION leader_key() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT advisory_key('leader', 0) $$;

CREATE FUNCTION leads() RETURNS boolean
LANGUAGE sql VOLATILE AS $$ SELECT EXISTS (SELECT FROM held_keys('ExclusiveLock') h WHERE h.key = leader_key() AND h.pid = pg_backend_pid()) $$;

-- Whether the calling session leads, from now on or already. A new leader calls sync_ring_pointers() before anything else.
-- Locks: the leader key (tried), a session lock. Waits for nobody. Idempotent: a session holds it once.
CREATE FUNCTION try_lead() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN leads() OR pg_try_advisory_lock(leader_key());
END $$;

-- Gives the lead up; whether there was something to give up. Waits for nobody. Idempotent.
CREATE FUNCTION resign() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN CASE WHEN leads() THEN pg_advisory_unlock(leader_key()) ELSE false END;
END $$;
