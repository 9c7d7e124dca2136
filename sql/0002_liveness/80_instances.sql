-- What an operator asks about the proxies (`awa-proxy status`).

-- The proxies that registered and are not forgotten yet, oldest first. missing_since: nobody has seen it live since then. Locks nothing
-- that anybody waits for.
CREATE FUNCTION instances()
RETURNS TABLE (instance bigint, proxy text, started_at timestamptz, missing_since timestamptz)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT AS $$
    SELECT i.instance, i.proxy, i.started_at, i.missing_since FROM runtime_instances i ORDER BY i.started_at, i.instance
$$;
