-- Lanes: one FIFO stream for each (queue, priority, shard), named by a computed number.
--
-- lane_id = 52 bits of sha256(queue) · 256 + (priority - 1) · 64 + shard. Anyone can compute it, so no row has to exist before a
-- job does and no two transactions that first use a queue meet. queue_lanes only remembers the names; it is append-only and has
-- no constraint: a duplicate, written by two producers at once, is collapsed on read.

CREATE TABLE queue_lanes (
    lane_id    bigint NOT NULL,
    queue      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX queue_lanes_lane_id ON queue_lanes (lane_id);

-- What an operator configured for a queue. A queue without a row has the defaults.
CREATE TABLE queue_meta (
    queue          text PRIMARY KEY,
    enqueue_shards smallint NOT NULL DEFAULT 1 CHECK (enqueue_shards BETWEEN 1 AND 64),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The lane of priority 1 and shard 0; the queue's others are the next 255 numbers.
-- STABLE because convert_to is: a function declared stricter than its body is never inlined, which costs ten times the hash.
CREATE FUNCTION lane_base(p_queue text) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (('x' || encode(substr(sha256(convert_to(p_queue, 'UTF8')), 1, 7), 'hex'))::bit(56)::bigint >> 4) << 8
$$;
CREATE FUNCTION lane_id(p_queue text, p_priority int, p_shard int) RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT lane_base(p_queue) + (p_priority - 1) * 64 + p_shard $$;
CREATE FUNCTION lane_priority(p_lane_id bigint) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT (((p_lane_id >> 6) & 3) + 1)::smallint $$;

-- The queue of a lane; NULL for a lane nobody has used.
CREATE FUNCTION lane_queue(p_lane_id bigint) RETURNS text
LANGUAGE sql STABLE SET search_path FROM CURRENT AS $$ SELECT queue FROM queue_lanes WHERE lane_id = p_lane_id LIMIT 1 $$;

-- Writes down the names of lanes that are not there yet. Two transactions may both write one: neither waits for the other.
-- p_lane_ids may repeat; the queue of a lane is the one in p_queues (distinct) whose number it carries.
CREATE FUNCTION register_lanes(p_lane_ids bigint[], p_queues text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_new bigint[] := ARRAY(SELECT l.lane_id FROM (SELECT DISTINCT lane_id FROM unnest(p_lane_ids) lane_id OFFSET 0) l
                             WHERE NOT EXISTS (SELECT FROM queue_lanes known WHERE known.lane_id = l.lane_id));
BEGIN
    IF v_new = '{}' THEN
        RETURN;
    END IF;
    INSERT INTO queue_lanes (lane_id, queue)
    SELECT l.lane_id, q.queue
      FROM unnest(v_new) l(lane_id) JOIN (SELECT queue, lane_base(queue) AS base FROM unnest(p_queues) queue OFFSET 0) q ON q.base = l.lane_id >> 8 << 8;
END $$;

-- Sets how many shards new jobs of a queue with ordering keys are spread over. Jobs already enqueued stay where they are.
-- Refuses a queue whose number collides with another name's (52 bits: never, in practice; check reports it).
-- Locks the queue's row of queue_meta until commit; waits for another configuration of the same queue only. Idempotent.
CREATE FUNCTION configure_queue(p_queue text, p_enqueue_shards int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    v_refusal text := queue_refusal(p_queue);
    v_other text;
BEGIN
    IF v_refusal IS NOT NULL THEN
        RAISE EXCEPTION '%', v_refusal USING ERRCODE = 'invalid_parameter_value';
    ELSIF (p_enqueue_shards BETWEEN 1 AND 64) IS NOT TRUE THEN
        RAISE EXCEPTION 'enqueue_shards must be 1 to 64' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT queue INTO v_other FROM queue_lanes
     WHERE lane_id BETWEEN lane_base(p_queue) AND lane_base(p_queue) + 255 AND queue <> p_queue LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'queue % shares its lane number with queue %; choose another name', p_queue, v_other USING ERRCODE = 'unique_violation';
    END IF;
    INSERT INTO queue_meta (queue, enqueue_shards) VALUES (p_queue, p_enqueue_shards)
    ON CONFLICT (queue) DO UPDATE SET enqueue_shards = excluded.enqueue_shards;
END $$;
