-- Limits of a job, in one place, with the words that the proxy uses too (src/base/limits.h has the same numbers).
--
-- job_refusal() is written to be cheap for good jobs: the nesting of args is counted only where args are long enough to be nested
-- too deeply. Well-formedness of args is the json type's work, when the row is inserted.

-- How many brackets open in p_json, those inside strings included: a cheap upper bound of its nesting.
CREATE FUNCTION json_openings(p_json text) RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT octet_length(p_json) - octet_length(replace(replace(p_json, '[', ''), '{', ''))
$$;

-- Whether p_json is nested deeper than p_limit: strings and scalars removed, each pass of the loop peels the innermost level off.
-- (E'': the text of a function is read under the caller's settings, standard_conforming_strings too.)
CREATE FUNCTION json_depth_exceeds(p_json text, p_limit int) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    v_brackets text := translate(regexp_replace(p_json, E'"(?:[^"\\\\]|\\\\.)*"', '', 'g'), '{}', '[]');
    v_before text;
BEGIN
    v_brackets := regexp_replace(v_brackets, '[^][]', '', 'g');
    FOR level IN 1 .. p_limit LOOP
        EXIT WHEN v_brackets = '';
        v_before := v_brackets;
        v_brackets := replace(v_brackets, '[]', '');
        EXIT WHEN v_brackets = v_before;
    END LOOP;
    -- What is left was nested deeper, or is not balanced; the json type refuses the latter with a better sentence.
    RETURN v_brackets <> '' AND v_brackets <> v_before;
END $$;

-- Whether a text is a name: 1 to 200 bytes of [A-Za-z0-9_.:/-]. (A bounded repetition in the pattern would be a hundred times slower.)
CREATE FUNCTION is_name(p_text text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT coalesce(octet_length(p_text) <= 200 AND p_text ~ '^[A-Za-z0-9_.:/-]+$', false) $$;

-- Why jobs may not be stored in a queue of this name, as a sentence; NULL when they may.
CREATE FUNCTION queue_refusal(p_queue text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN NOT is_name(p_queue) THEN 'queue must be 1 to 200 bytes of [A-Za-z0-9_.:/-]' END
$$;

-- Why a job may not be stored, as a sentence that names the thing and the limit; NULL when it may.
-- Pure: locks nothing, waits for nothing.
CREATE FUNCTION job_refusal(p_kind text, p_args text, p_priority int, p_max_attempts int, p_ordering_key text, p_metadata text, p_traceparent text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN NOT is_name(p_kind) THEN 'kind must be 1 to 200 bytes of [A-Za-z0-9_.:/-]'
        WHEN p_priority IS NULL OR p_priority NOT BETWEEN 1 AND 4 THEN 'priority must be 1 to 4'
        WHEN p_max_attempts IS NULL OR p_max_attempts NOT BETWEEN 1 AND 1000 THEN 'max_attempts must be 1 to 1000'
        WHEN p_args IS NULL THEN 'args must be JSON text'
        WHEN octet_length(p_args) > 1048576 THEN 'args must be at most 1048576 bytes'
        WHEN octet_length(p_args) > 128 AND json_openings(p_args) > 64 AND json_depth_exceeds(p_args, 64) THEN 'args must be nested at most 64 levels deep'
        WHEN octet_length(p_ordering_key) > 200 THEN 'ordering_key must be at most 200 bytes'
        WHEN octet_length(p_traceparent) > 128 THEN 'traceparent must be at most 128 bytes'
        WHEN p_metadata IS NULL THEN NULL
        WHEN octet_length(p_metadata) > 16384 THEN 'metadata must be at most 16384 bytes'
        WHEN left(ltrim(p_metadata, E' \t\r\n'), 1) <> '{' THEN 'metadata must be a JSON object'
        WHEN json_openings(p_metadata) > 64 AND json_depth_exceeds(p_metadata, 64) THEN 'metadata must be nested at most 64 levels deep'
    END
$$;
