-- Rings: fixed sets of child tables that are filled in turn and emptied by TRUNCATE.
--
-- Two rings: 16 queue slots (job bodies, lane states, terminal facts) and 8 claim slots (claim batches and the evidence that they
-- ended). A slot's lap has a generation, which only grows. The ledger names the slot of each generation that has not been pruned;
-- the next generation takes any clean slot, so one slot that cannot be emptied yet does not hold up the others.
-- The current generation is read from a sequence, whose value is generation · 16 + slot: a sequence is not MVCC, so a writer under
-- any isolation level and any snapshot age sees where to write, and never reads the ledger. The ledger is the record, the pointer
-- follows it (70_rotate.sql), and a slot counts as sealed only once the pointer has moved past it.
-- Invariant: whoever writes into the current queue slot holds the slot's key, shared, until commit; so a closer that gets it
-- exclusively, after the pointer moved, knows that no writer is left.

CREATE SEQUENCE queue_ring_pointer AS bigint;
CREATE SEQUENCE claim_ring_pointer AS bigint;

CREATE TABLE queue_ring_slots (
    generation bigint PRIMARY KEY,
    slot       smallint NOT NULL CHECK (slot BETWEEN 0 AND 15),
    opened_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    above_batch bigint NOT NULL DEFAULT 0        -- claim batches made of its bodies have larger numbers
);
-- Appended once a slot is sealed and its last writer gone: from then on its ready rows are a fixed set. The rest says how far closing has come:
-- what was once found spent or moved stays so.
CREATE TABLE queue_ring_sealed (
    generation bigint PRIMARY KEY,
    sealed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    spent_lane bigint NOT NULL DEFAULT 0,        -- ready rows of the lanes below were all claimed or buried,
    spent_xid  xid8 NOT NULL DEFAULT '0',        -- and those of this one up to here
    spent_job  bigint NOT NULL DEFAULT -1,
    moved_lane bigint NOT NULL DEFAULT -1        -- the newest states of the lanes up to this one lie in other slots
);
-- Appended once a sealed slot holds nothing that a claim may need (71_close.sql). The hot path never looks there again.
CREATE TABLE queue_ring_closed (
    generation bigint PRIMARY KEY,
    closed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    upto_batch bigint NOT NULL                   -- claim batches made of its bodies have no larger numbers
);
CREATE TABLE claim_ring_slots (
    generation bigint PRIMARY KEY,
    slot       smallint NOT NULL CHECK (slot BETWEEN 0 AND 7),
    opened_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

INSERT INTO queue_ring_slots (generation, slot) VALUES (1, 0);
INSERT INTO claim_ring_slots (generation, slot) VALUES (1, 0);
SELECT setval('queue_ring_pointer', 1 * 16 + 0), setval('claim_ring_pointer', 1 * 16 + 0);

-- Takes part in the current slot of the queue ring until commit; returns generation · 16 + slot. Tries the slot's key and reads the
-- pointer again: if it moved meanwhile, starts over with the new slot. Never waits; a refusal means that the closer looks at a slot
-- which the pointer has left, so the next reading differs.
CREATE FUNCTION enter_queue_slot() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_pointer bigint;
BEGIN
    FOR attempt IN 1 .. 1000 LOOP
        v_pointer := pg_sequence_last_value('queue_ring_pointer');
        IF pg_try_advisory_xact_lock_shared(advisory_key('queue_slot', v_pointer & 15))
           AND v_pointer = pg_sequence_last_value('queue_ring_pointer') THEN
            RETURN v_pointer;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'the current queue slot could not be entered' USING ERRCODE = 'lock_not_available';
END $$;

-- The same for the claim ring.
CREATE FUNCTION enter_claim_slot() RETURNS smallint
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    v_pointer bigint;
BEGIN
    FOR attempt IN 1 .. 1000 LOOP
        v_pointer := pg_sequence_last_value('claim_ring_pointer');
        IF pg_try_advisory_xact_lock_shared(advisory_key('claim_slot', v_pointer & 15))
           AND v_pointer = pg_sequence_last_value('claim_ring_pointer') THEN
            RETURN (v_pointer & 15)::smallint;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'the current claim slot could not be entered' USING ERRCODE = 'lock_not_available';
END $$;
