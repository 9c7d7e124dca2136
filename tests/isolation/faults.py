"""Ways to break the engine, to see that the tests notice. README.md tells which test noticed which."""
import engine

# name: (file, text, replacement); the text must be there exactly once.
FAULTS = {
    "claim-without-mutex": ("41_claim.sql", "IF NOT pg_try_advisory_xact_lock(advisory_key('lane', p_lane_id)) THEN", "IF false THEN"),
    "claim-without-second-listing": ("41_claim.sql", "            -- step 5: the open slots again\n            IF pg_sequence_last_value('queue_ring_pointer') <> v_pointer THEN", "            IF false THEN"),
    "window-without-own-xid": ("40_claim_walk.sql", "IF v_own IS NULL OR v_own >= pg_snapshot_xmax(v_now) THEN", "IF true THEN"),
    "window-forgets-late": ("40_claim_walk.sql", "v_late := ARRAY(SELECT x FROM pg_snapshot_xip(p_state.lo) x WHERE", "v_late := ARRAY(SELECT x FROM pg_snapshot_xip(p_state.lo) x WHERE false AND"),
    "window-ignores-running": ("40_claim_walk.sql", "v_running := ARRAY(SELECT x FROM pg_snapshot_xip(p_state.hi) x WHERE", "v_running := ARRAY(SELECT x FROM pg_snapshot_xip(p_state.hi) x WHERE false AND"),
    "position-behind": ("40_claim_walk.sql", "v_start_job bigint := p_state.at_job_id;", "v_start_job bigint := p_state.at_job_id - 1;"),
    "position-ahead": ("40_claim_walk.sql", "v_start_job bigint := p_state.at_job_id;", "v_start_job bigint := p_state.at_job_id + 1;"),
    "late-position-ahead": ("40_claim_walk.sql", "WHEN x = p_state.at_xid THEN p_state.at_job_id ELSE -1", "WHEN x = p_state.at_xid THEN p_state.at_job_id + 1 ELSE -1"),
    "state-lags": ("40_claim_walk.sql", "p_state.no + 1, p_state.at_xid,", "p_state.no + CASE WHEN p_state.slot <> p_slot THEN 0 ELSE 1 END, p_state.at_xid,"),
    "carry-without-mutex": ("71_close.sql", "IF NOT pg_try_advisory_xact_lock(advisory_key('lane', v_lane)) THEN", "IF false THEN"),
    "close-hides-states": ("71_close.sql", " AND v_sealed.moved_lane = no_lane() THEN", " THEN"),
    "close-ignores-writers": ("71_close.sql", "RETURN pg_try_advisory_xact_lock(advisory_key('queue_slot', p_slot)) AND", "RETURN"),
    "close-forgets-skipped": ("71_close.sql", "EXIT WHEN v_state.skipped_job_ids IS NOT NULL AND holds", "EXIT WHEN false AND holds"),
    "close-sees-one-window": ("71_close.sql", "v_next xid_ranges := window_ranges(next_window(p_state));", "v_next xid_ranges := v_now;"),
    "close-forgets-the-rest": ("71_close.sql", "    v_now xid_ranges := window_ranges(p_state);", "    v_now xid_ranges := window_ranges(next_window(p_state));"),
    "enqueue-without-slot-key": ("21_rings.sql", "IF pg_try_advisory_xact_lock_shared(advisory_key('queue_slot', v_pointer & 15))\n", "IF true\n"),
    "complete-without-batch-key": ("50_complete.sql", "WHEN pg_try_advisory_xact_lock(advisory_key('batch', p_batch_ids[g])) THEN", "WHEN true THEN"),
    "complete-only-exclusive": ("50_complete.sql", "IF NOT pg_try_advisory_xact_lock_shared(advisory_key('batch', p_batch_id)) THEN", "IF true THEN"),
    "finish-without-attempt-key": ("51_finish.sql", "\n            AND pg_try_advisory_xact_lock(attempt_key(p_job_id, p_run_lease))", ""),
    "finish-without-batch-key": ("51_finish.sql", " AND pg_try_advisory_xact_lock_shared(advisory_key('batch', p_batch_id))\n", "\n"),
    "prune-ignores-open-attempts": ("72_prune.sql", "            IF v_found.is_open THEN\n                RETURN;", "            IF false THEN\n                RETURN;"),
    "prune-forgets-writers": ("72_prune.sql", "        IF NOT claim_slot_is_quiet(p_slot) THEN", "        IF false THEN"),
    "prune-forgets-to-fold": ("72_prune.sql", "PERFORM fold_terminal_counts(p_slot);", ""),
    "promotion-forgets-late": ("60_promote.sql", "WHERE pg_visible_in_snapshot(late.xid, p_seen)", "WHERE false"),
    "promotion-without-key": ("60_promote.sql", "IF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 1)) THEN", "IF false THEN"),
    "rescue-without-key": ("42_rescue.sql", "ELSIF NOT pg_try_advisory_xact_lock(advisory_key('maintenance', 6)) THEN", "ELSIF false THEN"),
    "rescue-looks-into-prune": ("42_rescue.sql", "IF NOT pg_try_advisory_xact_lock_shared(advisory_key('claim_slot', v_slot.slot)) THEN", "IF false THEN"),
    "rescue-takes-the-living": ("42_rescue.sql", "WHERE missing_since <= clock_timestamp() - p_missing_ms * interval '1 ms');\n    SELECT", ");\n    SELECT"),
    "result-looks-into-prune": ("20_claim_result.sql", "IF NOT pg_try_advisory_xact_lock_shared(advisory_key('claim_slot', v_slot)) THEN", "IF false THEN"),
    "key-forgets-its-jobs": ("30_idempotency.sql", "RETURN v_job_ids;", "RETURN NULL;"),
    "counts-are-stable": ("80_counts.sql", "LANGUAGE plpgsql VOLATILE", "LANGUAGE plpgsql STABLE"),
    "any-isolation-level": ("10_guards.sql", "IF current_setting('transaction_isolation') NOT IN", "IF false AND current_setting('transaction_isolation') NOT IN"),
}


def sources(name):
    """The engine's SQL with one fault."""
    where, text, replacement = FAULTS[name]
    texts = []
    for path, source in engine.sources():
        if path.name == where:
            if source.count(text) != 1:
                raise SystemExit(f"fault {name}: its text is {source.count(text)} times in {where}")
            source = source.replace(text, replacement)
        texts.append(source)
    return texts
