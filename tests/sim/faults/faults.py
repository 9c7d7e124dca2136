"""Ways to break core, to see that the simulator notices. ../README.md tells what it then says."""
import pathlib

CORE = pathlib.Path(__file__).resolve().parents[3] / "src/core"

# name: (file, text, replacement); the text must be there exactly once.
FAULTS = {
    # transactions and their outcome
    "unknown-enqueue-is-done": ("batcher.c", "    if (reply->backend.pid != 0)\n        raise_doubt(flush, reply);",
        "    if (flush->batcher->ops->ask != NULL)\n        settle(flush, reply);\n    else if (reply->backend.pid != 0)\n        raise_doubt(flush, reply);"),
    "unknown-enqueue-is-replayed": ("batcher.c", "    if (flush->batcher->ops->ask == NULL)\n        return false;", "    if (true)\n        return false;"),
    "unknown-flush-is-forgotten": ("batcher.c", "    if (reply->backend.pid != 0)\n        raise_doubt(flush, reply);",
        "    if (reply->backend.pid != 0) {\n        flush->count = 0;\n        rest(flush);\n    }"),
    "unknown-is-said-to-be-not-done": ("batcher.c", "        flush->items[i]->uncertain = true;\n", "        ;\n"),
    "given-up-in-doubt-and-answered-again": ("batcher.c", "            flush->items[i] = NULL;\n", ""),
    "resolved-before-the-backend-is-gone": ("doubt.c", "    if (!gone) {\n", "    if (false) {\n"),
    "backend-is-not-asked-about": ("doubt.c", "    log_event(LOG_WARN, \"outcome_unknown\", \"call=%s pid=%d\", what, (int)backend->pid);\n    ask_gone(doubt);", "    doubt->is_gone = true;\n    ask_owner(doubt);"),
    "failed-question-is-an-answer": ("doubt.c", "    if (reply->outcome != OUTCOME_DONE)\n", "    if (false)\n"),
    "question-is-not-repeated": ("doubt.c", "        pause_then_ask(doubt, FAILED_PAUSE_US, FAILED_DOUBLINGS_MAX);\n", "        ;\n"),
    "what-exists-is-enqueued-again": ("enqueuer.c", "    if (!reply->rows.exist[at])\n        return RESOLVED_NOT_DONE;", "    if (job != NULL)\n        return RESOLVED_NOT_DONE;"),
    "what-does-not-exist-is-acknowledged": ("enqueuer.c", "    if (!reply->rows.exist[at])\n        return RESOLVED_NOT_DONE;", ""),
    "what-exists-stays-unknown": ("enqueuer.c", "    if (!reply->rows.exist[at])\n        return RESOLVED_NOT_DONE;", "    if (reply->rows.exist[at])\n        return RESOLVED_NEVER;\n    return RESOLVED_NOT_DONE;"),
    "another-server-is-believed": ("enqueuer.c", "    if (!server_run_equal(&flush->doubt.backend.server, &reply->backend.server))\n        return RESOLVED_NEVER;\n", ""),
    "key-is-forgotten": ("enqueuer.c", "    if (request->in.enqueue.key.data != NULL)\n", "    if (false)\n"),
    "known-key-is-taken-for-new": ("keyed.c", "    if (reply->rows.enqueue.known_ids != NULL)\n", "    if (false)\n"),
    "repeat-is-also-put-back": ("batcher.c", "    flush->repeats++;\n",
        "    flush->repeats++;\n    for (size_t i = 0; i < flush->count; i++)\n        list_push_front(&flush->batcher->pending, &flush->items[i]->node);\n"),
    "isolation-loses-items": ("batcher.c", "    batcher_put_back(flush, 0);\n    rest(flush);", "    batcher_put_back(flush, mates_max);\n    flush->count = 0;\n    rest(flush);"),
    "late-isolation-gives-up": ("retry.c", "return failed->outcome == OUTCOME_NOT_DONE && failed->items > 1 &&", "return failed->outcome == OUTCOME_NOT_DONE && failed->items > 1 && !failed->overdue &&"),
    "neighbours-share-the-error": ("retry.c", "return failed->outcome == OUTCOME_NOT_DONE && failed->items > 1 &&", "return failed->outcome == OUTCOME_NOT_DONE && failed->items > 4 &&"),
    # job ids
    "ids-outlive-the-connection": ("ids.c", "    ids->run_count = 0;\n    ids->available = 0;\n", ""),
    "reservation-outlives-the-connection": ("ids.c", "ids->stale = ids->in_flight;", "ids->stale = false;"),
    "id-given-twice": ("ids.c", "int64_t id = run->first++;", "int64_t id = run->first;\n    run->first += (run->last - id) % 7 != 3;\n    ids->available += (run->last - id) % 7 == 3;"),
    # ending attempts
    "busy-is-ignored": ("finisher.c", "    if (status == STORAGE_BUSY)\n        return SETTLE_LATER;\n", ""),
    "busy-is-done": ("finisher.c", "    if (status == STORAGE_BUSY)\n        return SETTLE_LATER;\n", "    if (status == STORAGE_BUSY)\n        status = FINISH_DONE;\n"),
    "put-off-for-ever": ("batcher.c", "if (!timer_is_set(&batcher->later_timer) || batcher->later_timer.at_us > now + pause_us)", "if (batcher->later_timer.at_us > now + pause_us)"),
    "failed-hand-back-is-dropped": ("finisher.c", "    if (given_up > 0)\n        offer_again(work, given_up);\n", ""),
    "orphan-is-not-handed-back": ("finisher.c", "    if (!over && orphaned)\n", "    if (false)\n"),
    "twins-are-both-done": ("finisher.c", "status = FINISH_ALREADY_DONE; /* its twin did it */", ";"),
    "rivals-in-one-flush": ("finisher.c", "batcher_put_back(base, part_rivals(base));", "(void)part_rivals;"),
    "too-many-batches": ("finisher.c", "        if (count == finisher->batches_max)\n            return i;\n        batches[count++] = receipt;", "        if (count < finisher->batches_max)\n            batches[count++] = receipt;"),
    "attempt-forgotten-when-aborted": ("finisher.c", "status != FINISH_ABORTED && status != FINISH_INVALID", "true"),
    # claims
    "demand-shrinks-by-what-it-got": ("group.c", "group->demand -= claim->wanted;", "group->demand -= claim->got;"),
    "reserved-room-leaks": ("broker.c", "    attempts_unreserve(broker->with.attempts, claim->wanted - claim->got);\n", ""),
    "claims-more-than-wanted": ("broker.c", ".limit = group->demand < jobs_max ? (uint32_t)group->demand : jobs_max", ".limit = jobs_max"),
    "leftovers-are-dropped": ("broker.c", "    hand_back(group->broker, reply->rows.claim.jobs + dealt, count - dealt);\n", "    (void)hand_back;\n    (void)dealt;\n"),
    "deadline-while-a-call-is-under-way": ("broker.c", "if (!group->in_flight && may_leave(claim)) {", "if (may_leave(claim)) {"),
    "empty-before-any-call": ("broker.c", "if (!group->in_flight && may_leave(claim)) {", "if (!group->in_flight) {"),
    "failed-call-still-counts": ("broker.c", "    group->broker->calls_in_flight--;\n", "    group->broker->calls_in_flight -= reply->outcome == OUTCOME_DONE;\n"),
    "commit-wakes-nobody": ("enqueuer.c", "    if (at == 0)\n        tell_queues(flush);", "    if (false)\n        tell_queues(flush);"),
    "wake-in-flight-is-lost": ("broker.c", "        group->woken = true;\n", ""),
    "slow-reader-is-dealt-more": ("group.c", "    if (aside == is_aside(seat))\n", "    if (aside || aside == is_aside(seat))\n"),
    "slow-reader-is-forgotten": ("session.c", "        set_behind(session, false);\n", "        session->behind = false;\n"),
    "claim-result-is-dealt-twice": ("broker.c", "    deal_out(group, reply);\n    place(group);\n    return true;", "    deal_out(group, reply);\n    deal_out(group, reply);\n    place(group);\n    return true;"),
    "claim-result-is-looked-for-too-high": ("broker.c", "    mark->batch_id = newest;\n", "    mark->batch_id = newest + 3;\n"),
    "claim-result-is-looked-for-above-all-others": ("broker.c", "if (backend_equal(&broker->marks[i].backend, backend))", "if (i == 0)"),
    "claim-result-is-dropped": ("broker.c", "    deal_out(group, reply);\n    place(group);\n    return true;", "    place(group);\n    return true;"),
    "claim-in-doubt-is-forgotten": ("broker.c", "        if (reply->backend.pid != 0)\n            raise_doubt(group, reply);", "        (void)raise_doubt;"),
    "busy-claim-result-is-nothing": ("broker.c", "    if (reply->rows.claim.end == CLAIM_BUSY)\n        return false;\n", ""),
    "claim-doubts-never-end": ("broker.c", "    group->doubts--;\n", ""),
    "unreadable-job-is-handed-out": ("broker.c", "    size_t dealt = group_deal(group, reply->rows.claim.jobs, count);\n",
        "    size_t dealt = group_deal(group, reply->rows.claim.jobs, count);\n    static struct claimed_job all[CLAIM_JOBS_MAX];\n"
        "    for (size_t i = 0; i < reply->rows.claim.unreadable_count; i++)\n        all[i] = (struct claimed_job){.receipt = reply->rows.claim.unreadable[i].receipt};\n"
        "    group_deal(group, all, reply->rows.claim.unreadable_count);\n"),
    "unreadable-job-is-forgotten": ("broker.c", "    fail_unreadable(group, reply->rows.claim.unreadable, reply->rows.claim.unreadable_count);\n", "    (void)fail_unreadable;\n"),
    "unreadable-job-goes-back": ("broker.c", ".as = JOB_FAIL,", ".as = JOB_RELEASE,"),
    "unreadable-job-is-given-up": ("finisher.c", "    if (given_up > 0)\n        offer_again(work, given_up);\n", "    if (given_up > 0 && back.error == NULL)\n        offer_again(work, given_up);\n"),
    "unreadable-job-fails-twice": ("broker.c", "        finisher_hand_back(group->broker->with.finisher, receipts, same, back);\n", "        finisher_hand_back(group->broker->with.finisher, receipts, same, back);\n        finisher_hand_back(group->broker->with.finisher, receipts, same, back);\n"),
    "unreadable-job-is-never-over": ("broker.c", "    group->unreadable -= count;\n", ""),
    "group-with-unreadable-jobs-is-idle": ("broker.c", "group->doubts > 0 || group->unreadable > 0;", "group->doubts > 0;"),
    "another-nonce-is-asked-for": ("broker.c", "    claimed->nonce = group->call.args.claim.nonce;\n", "    claimed->nonce = group->call.args.claim.nonce ^ 1;\n"),
    # sessions
    "answer-after-the-end": ("session.c", "        if (session_is_connected(session))\n            send_answer(session, request->id, answer);", "        send_answer(session, request->id, answer);"),
    "request-freed-in-flight": ("parting.c", "        owed_leave(session, CONTAINER_OF(session->requests.first, struct request, node));",
        "    {\n        struct request *request = CONTAINER_OF(session->requests.first, struct request, node);\n        owed_remove(session, request);\n        request_free(request);\n    }"),
    "credit-of-outcomes-leaks": ("owed.c", "        session->finish_items -= request->in.finish.count;\n", "        (void)session;\n"),
    "never-read-again": ("owed.c", "        session->finish_items -= request->in.finish.count;\n    update_reading(session);", "        session->finish_items -= request->in.finish.count;"),
    "goodbye-does-not-wait": ("parting.c", "session->state != SESSION_LEAVING || session->requests.count > 0 || session->handing_back", "session->state != SESSION_LEAVING || session->handing_back"),
    "id-in-use-is-accepted": ("session.c", "if (owed_find(session->sessions, session->self, request->id) != NULL ||", "if (false && owed_find(session->sessions, session->self, request->id) != NULL ||"),
    "vanished-keeps-its-jobs": ("parting.c", "    parting_hand_back(session, as, HANDLE_NONE);\n    parting_free(session);", "    while (session->attempts.first != NULL)\n        attempt_orphan(CONTAINER_OF(session->attempts.first, struct attempt, node), as);\n    parting_free(session);"),
    "resumed-without-looking-at-the-id": ("session.c", "    if (id.len != SESSION_ID_BYTES)\n        return NULL;",
        "    if (id.len != SESSION_ID_BYTES)\n        return NULL;\n    for (uint32_t i = 0; i < sessions->table.size; i++) {\n        struct session *any = slots_at(&sessions->table, i);\n        if (any != NULL && session_can_be_resumed(any))\n            return any;\n    }"),
    "nothing-is-resumed": ("session.c", "    if (id.len != SESSION_ID_BYTES)\n        return NULL;", "    if (true)\n        return NULL;"),
    "grace-never-ends": ("parting.c", "    timer_set(sessions->timers, &session->patience, sessions_now_us(sessions) + sessions->grace_us);", "    timer_stop(sessions->timers, &session->patience);"),
    "grace-ends-early": ("parting.c", "    timer_set(sessions->timers, &session->patience, sessions_now_us(sessions) + sessions->grace_us);", "    timer_set(sessions->timers, &session->patience, sessions_now_us(sessions) + sessions->grace_us / 2);"),
    "lost-with-its-worker-costs-nothing": ("session.c", "parting_end_away(session, JOB_WORKER_LOST)", "parting_end_away(session, JOB_RELEASE)"),
    "what-was-never-sent-counts-as-started": ("parting.c", "        if (attempt->sent_at > written)", "        if (written == 0)"),
    "what-was-sent-counts-as-never-sent": ("parting.c", "        if (attempt->sent_at > written)", "        if (attempt->sent_at > 0)"),
    "sent-is-measured-on-the-old-connection": ("attempts.c", "    attempt->owner = owner;\n    attempt->sent_at = 0;\n    list_push_back(owner, &attempt->node);\n}", "    attempt->owner = owner;\n    list_push_back(owner, &attempt->node);\n}"),
    "what-is-not-listed-is-kept": ("session.c", "    while (!request->in.hello.says_held && old->attempts", "    while (old->attempts"),
    "what-is-listed-is-not-kept": ("session.c", "        if (attempt != NULL)\n            attempt_move(attempt, &session->attempts);", "        (void)attempt;"),
    "old-connection-is-left-open": ("session.c", "    env->close(env->ctx, connection);\n", "    (void)connection;\n"),
    "lost-attempt-is-not-told": ("session.c", "            session_send_notice(session, NOTICE_ATTEMPT_LOST, held[i].token);", "            ;"),
    "heartbeat-of-another-session": ("session.c", "return attempt != NULL && attempt->owner == &session->attempts ? attempt : NULL;", "return attempt;"),
    "cancel-ends-another-claim": ("broker.c", "    struct claim *claim = request->work;\n", "    struct claim *claim = request->work;\n    claim = CONTAINER_OF(claim->seat->claims.first, struct claim, node);\n"),
    "cancelled-claim-waits-on": ("broker.c", "    answer_claim(broker, claim);\n    place(group);\n}\n\nvoid broker_init", "    (void)claim;\n    place(group);\n}\n\nvoid broker_init"),
    "orphan-goes-back-as-released": ("finisher.c", "(struct hand_back){.as = leave_as}", "(struct hand_back){.as = leave_as == JOB_RELEASE ? JOB_WORKER_LOST : JOB_RELEASE}"),
    "offered-again-as-lost": ("finisher.c", "    offer->back.told = NULL;\n", "    offer->back.told = NULL;\n    offer->back.as = JOB_WORKER_LOST;\n"),
    "counts-never-end": ("counter.c", "    counter->in_flight--;\n", "    counter->in_flight -= reply->outcome == OUTCOME_DONE;\n"),
    # leader and maintenance
    "leads-without-the-lock": ("leader.c", "    if (!granted)\n        look_for_stuck(leader);", "    if (false)\n        look_for_stuck(leader);"),
    "works-after-resigning": ("leader.c", "    maintenance_stop(&leader->maintenance);\n    set_state(leader, LEADER_RESIGNING);", "    set_state(leader, LEADER_RESIGNING);"),
    "claims-while-taken-for-dead": ("core.c", "if (leader_unknown_us(&core->leader) <= core->unknown_max_us) {", "if (true) {"),
    "announces-to-nobody": ("core.c", "    news_connected(&core->news, false);\n", ""),
    "pointers-follow-late": ("maintenance.c", "        maintenance->synced = false;\n        maintenance->due_us", "        maintenance->due_us"),
    "maintenance-without-control": ("maintenance.c", "    maintenance->running = false;\n    timer_stop(maintenance->with.timers, &maintenance->timer);", "    (void)maintenance;"),
}


def broken(name):
    """The file to break, and what it says then."""
    where, text, replacement = FAULTS[name]
    source = (CORE / where).read_text()
    if source.count(text) != 1:
        raise SystemExit(f"fault {name}: its text is {source.count(text)} times in src/core/{where}")
    return where, source.replace(text, replacement)
