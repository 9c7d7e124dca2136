-- Backends: who a session is, whether another one is gone, and which of them sit on locks without a word from their client.
--
-- An outcome that was lost with its connection is looked up only once the backend that may still commit it is gone. A pid is not enough to name a
-- backend, since it is given out again: the pair with its start time is. Nothing here needs a superuser: the role that logged in sees its own backends
-- and may end them. A role that was SET does not, so it is refused: to it a backend that lives would look gone.
-- Statements of the hot path name ring children and so live beside them, in 0001; this migration calls them.

-- Who the calling session is, and which server it speaks to: job ids that were reserved before a change of server_started or timeline may be given out
-- twice. timeline is NULL on a standby. Reads only, waits for nothing.
CREATE FUNCTION backend_identity() RETURNS TABLE (pid int, started timestamptz, server_started timestamptz, timeline int)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    pid := pg_backend_pid();
    started := (SELECT a.backend_start FROM pg_stat_activity a WHERE a.pid = pg_backend_pid());
    IF started IS NULL THEN
        RAISE EXCEPTION 'role % may not see the sessions of %, which has logged in', current_user, session_user
            USING ERRCODE = 'insufficient_privilege', HINT = 'Log in as the owner of the schema, or as a member of it that inherits its rights, without SET ROLE.';
    END IF;
    server_started := pg_postmaster_start_time();
    -- Not the control file's: that is one checkpoint behind after a promotion.
    timeline := CASE WHEN NOT pg_is_in_recovery() THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END;
    RETURN NEXT;
END $$;

-- True when the backend (p_pid, p_started) has ended, and with it whatever it was doing; else asks it to end and returns false: ask again in some
-- milliseconds. Locks nothing, waits for nothing. Idempotent.
CREATE FUNCTION backend_is_gone(p_pid int, p_started timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF p_pid IS NULL OR p_started IS NULL OR p_pid = pg_backend_pid() THEN
        RAISE EXCEPTION 'backend_is_gone needs the pid and start time of another backend' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Within one transaction the view would show the same picture for ever.
    PERFORM pg_stat_clear_snapshot();
    -- A backend leaves this view only after its transaction has ended and its locks are gone.
    IF NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = p_pid AND a.backend_start = p_started) THEN
        RETURN true;
    END IF;
    PERFORM pg_terminate_backend(p_pid);
    RETURN false;
END $$;

-- Ends backends of our role in this database that have waited longer than p_older for their client, which has stopped or is gone without a word:
--   in the middle of what it began to send (ClientRead), or of what it should read (ClientWrite): they hold the locks of a statement, and no server
--   timeout covers either, because the Sync is missing or the backend is stuck in a write;
--   between statements, with notifications that it does not read: so a proxy's control session would never idle out.
-- Other programs of the role may rest in the middle of a result; COPY waits in the same way. Both are spared.
CREATE FUNCTION end_backends_stuck_for(p_older interval) RETURNS int
LANGUAGE sql VOLATILE AS $$
    SELECT (count(*) FILTER (WHERE pg_terminate_backend(stuck.pid)))::int
      FROM (SELECT a.pid FROM pg_stat_activity a
             WHERE a.usesysid = (SELECT oid FROM pg_roles WHERE rolname = current_user) AND a.datname = current_database() AND a.pid <> pg_backend_pid()
               AND a.wait_event_type = 'Client'
               AND (a.state = 'active' AND a.wait_event = 'ClientRead' AND a.query_start < clock_timestamp() - p_older
                    OR a.state = 'active' AND a.wait_event = 'ClientWrite' AND a.query_start < clock_timestamp() - p_older AND a.application_name = 'awa-proxy'
                    OR a.state = 'idle' AND a.wait_event = 'ClientWrite' AND a.state_change < clock_timestamp() - p_older AND a.application_name = 'awa-proxy')
               AND NOT EXISTS (SELECT FROM pg_stat_progress_copy c WHERE c.pid = a.pid) OFFSET 0) stuck
$$;

-- The leader's step, with the limit of ten seconds; how many it ended. Locks nothing, waits for nothing. Idempotent.
CREATE FUNCTION end_stuck_backends() RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_stat_clear_snapshot();
    RETURN end_backends_stuck_for(interval '10 s');
END $$;
