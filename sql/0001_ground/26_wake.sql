-- Wake-ups: tells the proxies that a queue has become worth a claim.
--
-- A notification is a hint: it saves waiting for the next poll and decides nothing, so one that is lost costs at most a poll's interval.
-- Every proxy listens on the schema's channel; the payload is the name of a queue.
-- A commit that notifies holds one lock of the whole database from before its flush until after it, so such commits follow each
-- other, one flush at a time (docs/decisions/0110). Therefore no enqueue notifies: the proxy calls wake_queues() in a statement of its own
-- after the commit, once for many enqueues. Promotion and release, which make jobs available at a lower rate, notify in their own transaction.

DO $do$
BEGIN
    EXECUTE format($fn$
        CREATE FUNCTION wake_channel() RETURNS text
        LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $body$ SELECT %L::text $body$
    $fn$, 'awa_' || to_hex(hashtextextended(current_schema(), 0)));
END $do$;

-- Notifies of each queue once, when the transaction commits. Waits, at the commit, for other commits that notify, each as long as its
-- flush. Idempotent: a wake-up too many costs one claim that finds nothing.
CREATE FUNCTION wake_queues(p_queues text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_notify(wake_channel(), q.queue) FROM (SELECT DISTINCT queue FROM unnest(p_queues) queue WHERE queue IS NOT NULL) q;
END $$;

-- The same for lanes that this transaction has put jobs into.
CREATE FUNCTION wake_lanes(p_lane_ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM wake_queues(ARRAY(SELECT lane_queue(l.lane_id) FROM (SELECT DISTINCT lane_id FROM unnest(p_lane_ids) lane_id) l));
END $$;

-- The calling session listens on the schema's channel from now on. Locks nothing. Idempotent.
CREATE FUNCTION listen() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format('LISTEN %I', wake_channel());
END $$;
