-- Install-time helpers: write one function whose statements name ring children.
--
-- Why: a statement on the hot path must name the child table it touches. A scan
-- of a parent, or a cached plan over all children, locks every child and then
-- waits for the TRUNCATE of any of them. plpgsql keeps one cached plan for each
-- static statement, so a function with one branch a slot gives us both: static
-- plans, and locks on one child only.
-- How: the branch is written once, for slot 00, as ordinary SQL; every "_00" in
-- it becomes the suffix of the slot.
-- These helpers live in pg_temp: they are gone when the migration's session ends.

CREATE FUNCTION pg_temp.slot_suffix(p_slot int) RETURNS text
LANGUAGE sql IMMUTABLE AS $$ SELECT '_' || to_char(p_slot, 'FM00') $$;

-- Runs a statement, written for slot 00, once for every slot of a ring.
CREATE FUNCTION pg_temp.for_each_slot(p_slots int, p_statement text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    FOR slot IN 0 .. p_slots - 1 LOOP
        EXECUTE replace(p_statement, '_00', pg_temp.slot_suffix(slot));
    END LOOP;
END $$;

-- A plpgsql statement that runs p_branch for the value of p_slot, which lies in p_from .. p_to. Halving: plpgsql prepares each expression
-- that it meets anew in every transaction, so sixteen comparisons in a row would cost more than the statement they choose.
CREATE FUNCTION pg_temp.choose_slot(p_branch text, p_from int, p_to int) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_middle int := (p_from + p_to + 1) / 2;
BEGIN
    IF p_from = p_to THEN
        RETURN replace(p_branch, '_00', pg_temp.slot_suffix(p_from));
    END IF;
    RETURN format(E'IF p_slot < %s THEN\n%s\nELSE\n%s\nEND IF;', v_middle, pg_temp.choose_slot(p_branch, p_from, v_middle - 1), pg_temp.choose_slot(p_branch, v_middle, p_to));
END $$;

-- Creates a plpgsql function whose body is p_branch, once for every value of its parameter p_slot. p_signature is everything between
-- "CREATE FUNCTION" and "AS". (Writers return true rather than nothing: `ok := f()` is a plain expression, PERFORM f() a query of its own.)
CREATE FUNCTION pg_temp.create_slot_function(p_slots int, p_signature text, p_branch text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format(E'CREATE FUNCTION %s AS $function$\nBEGIN\n    IF p_slot IS NULL OR p_slot < 0 OR p_slot >= %s THEN\n        RAISE EXCEPTION ''slot %% does not exist'', p_slot;\n    END IF;\n%s\nEND $function$',
                   p_signature, p_slots, pg_temp.choose_slot(p_branch, 0, p_slots - 1));
END $$;

-- Creates a read-only view over all children of a ring, with the slot as its first column.
CREATE FUNCTION pg_temp.create_ring_view(p_slots int, p_slot_column text, p_table text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE VIEW %I AS %s', p_table,
        (SELECT string_agg(format('SELECT %s::smallint AS %I, t.* FROM %I t', slot, p_slot_column, p_table || pg_temp.slot_suffix(slot)), ' UNION ALL ' ORDER BY slot)
           FROM generate_series(0, p_slots - 1) slot));
END $$;
