"""Limits of a job: what is refused, in which words, and that good neighbours do not notice.

Each limit is tried one below, at, and one above. Trap 45: args come back byte for byte or are
refused when they are enqueued; nothing stored can fail a claim.
"""
import psycopg2
import pytest

from engine import DONE, Item

NAME = "must be 1 to 200 bytes of [A-Za-z0-9_.:/-]"
DEPTH = "must be nested at most 64 levels deep"
DATA_ERRORS = ("22", "54")  # classes: data exception, program limit exceeded


def nested(levels):
    return "[" * levels + "]" * levels


def nested_objects(levels):
    return '{"a":' * levels + "1" + "}" * levels


def sized(size):
    return '{"a":"' + "x" * (size - 8) + '"}'


LIMITS = {
    "queue length": ("queue", ["q" * 199, "q" * 200], {"q" * 201: f"queue {NAME}", "": f"queue {NAME}"}),
    "queue letters": ("queue", ["aZ09_.:/-"], {"a b": f"queue {NAME}", "ä": f"queue {NAME}", "a\n": f"queue {NAME}"}),
    "kind length": ("kind", ["k" * 199, "k" * 200], {"k" * 201: f"kind {NAME}", "": f"kind {NAME}", None: f"kind {NAME}"}),
    "kind letters": ("kind", ["aZ09_.:/-"], {"a;b": f"kind {NAME}", "é": f"kind {NAME}", "a\n": f"kind {NAME}"}),
    "priority": ("priority", [1, 2, 3, 4], {0: "priority must be 1 to 4", 5: "priority must be 1 to 4",
                                            None: "priority must be 1 to 4"}),
    "max_attempts": ("max_attempts", [1, 2, 999, 1000], {0: "max_attempts must be 1 to 1000",
                                                         1001: "max_attempts must be 1 to 1000",
                                                         None: "max_attempts must be 1 to 1000"}),
    "args size": ("args", [sized(1048575), sized(1048576)], {sized(1048577): "args must be at most 1048576 bytes",
                                                             None: "args must be JSON text"}),
    "args nesting": ("args", [nested(63), nested(64), nested_objects(64)],
                     {nested(65): f"args {DEPTH}", nested_objects(65): f"args {DEPTH}",
                      nested(200_000): f"args {DEPTH}"}),
    "args brackets in strings": ("args", ['"' + "[" * 300 + '"', '["\\"' + "{" * 300 + '"]'], {}),
    "ordering_key": ("ordering_key", ["o" * 199, "ä" * 100], {"o" * 201: "ordering_key must be at most 200 bytes",
                                                             "ä" * 101: "ordering_key must be at most 200 bytes"}),
    "traceparent": ("traceparent", ["t" * 127, "t" * 128], {"t" * 129: "traceparent must be at most 128 bytes"}),
    "metadata size": ("metadata", [sized(16383), sized(16384)], {sized(16385): "metadata must be at most 16384 bytes"}),
    "metadata nesting": ("metadata", [nested_objects(63), nested_objects(64)], {nested_objects(65): f"metadata {DEPTH}"}),
    "metadata type": ("metadata", [' \t\r\n{"a":1}', "{}"], {"[1]": "metadata must be a JSON object",
                                                             "1": "metadata must be a JSON object",
                                                             "null": "metadata must be a JSON object"}),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_limit_refuses_the_bad_and_stores_the_good(shared_db, limit):
    field, good, bad = LIMITS[limit]
    queue = limit.replace(" ", "-")
    values = [*good, *bad]
    items = [Item(**{"queue": queue, "args": f"{{\"n\": {n}}}", field: value}) for n, value in enumerate(values)]
    ids, refused = shared_db.enqueue_items(items)
    assert {values[place - 1]: why for place, why in refused.items()} == {
        value: ("22023", words) for value, words in bad.items()}
    queues = [queue] if field != "queue" else good
    stored = {job.job_id: job for job in shared_db.claim(queues=queues)}
    assert stored.keys() == set(ids[:len(good)])
    assert [getattr(stored[job_id], field) for job_id in ids[:len(good)] if field != "ordering_key"] == [
        value for value in good if field != "ordering_key"]


@pytest.mark.parametrize("limit", [name for name, (_, _, bad) in LIMITS.items() if bad])
def test_limit_has_the_same_words_in_an_application(shared_db, limit):
    field, good, bad = LIMITS[limit]
    call = {"queue": "words", "kind": "k", "args": "{}"}

    def enqueue(value):
        named = ", ".join(f"{name} => %({name})s" + ("::json" if name in ("args", "metadata") else "")
                          for name in call | {field: value})
        return shared_db.value(f"SELECT awa.enqueue({named})", call | {field: value})
    assert enqueue(good[-1]) > 0
    for value, words in bad.items():
        with pytest.raises(psycopg2.Error) as refusal:
            enqueue(value)
        if value == nested(200_000):  # the json parameter's own parser comes first
            assert refusal.value.pgcode == "54001"
        elif value is not None:
            assert (refusal.value.pgcode, refusal.value.diag.message_primary) == ("22023", f"job 1: {words}")


AWKWARD = {
    "huge exponent": "[1e131071, 1e131072, 1e999999, -1E-999999]",
    "big integers": "[9007199254740993, 18446744073709551617, 123456789012345678901234567890]",
    "number spelling": "[1.0, 1.00, 1e0, -0, 0.10e+01]",
    "duplicate keys": '{"a": 1, "a": 2, "b": 0, "a": 3}',
    "key order": '{"zz": 1, "a": 2, "m": {"y": 1, "x": 2}}',
    "white space": ' \t\n\r{ "a" :\t1 , "b":[ ] }  ',
    "lone high surrogate": '["\\ud800"]',
    "lone low surrogate": '["\\udc00x"]',
    "escaped nul": '["\\u0000", {"\\u0000": 1}]',
    "escapes": '"\\u00e4\\/\\b\\ud83d\\ude00"',
    "scalar": "17",
    "null": "null",
    "many elements": "[" + ",".join(["1e131071"] * 3000) + "]",
    "deep": nested(200_000),
    "not JSON": '{"a": 01}',
    "truncated": '{"a": [1',
    "empty": "",
    "unbalanced": "[" * 200,
    "NaN": "[NaN]",
}


@pytest.mark.parametrize("what", AWKWARD)
def test_trap_45_args_are_refused_or_kept_byte_for_byte(shared_db, what):
    queue = "awkward-" + what.replace(" ", "-")
    args = AWKWARD[what]
    ids, refused = shared_db.enqueue_items([Item(queue=queue, args="[1]"), Item(queue=queue, args=args),
                                            Item(queue=queue, args="[2]")])
    if what in ("deep", "not JSON", "truncated", "empty", "unbalanced", "NaN"):
        assert list(refused) == [2]
        code, reason = refused[2]
        assert code.startswith(DATA_ERRORS) and reason
        expected = {ids[0]: "[1]", ids[2]: "[2]"}
    else:
        assert refused == {}
        expected = {ids[0]: "[1]", ids[1]: args, ids[2]: "[2]"}
    claimed = shared_db.claim(queues=[queue])
    assert {job.job_id: job.args for job in claimed} == expected
    # Through a retry and into history: the general path first, then the compact one.
    assert set(shared_db.finish(claimed, 2, delay_ms=1)) == {DONE}
    shared_db.rows("SELECT pg_sleep(0.002)")  # the delay itself
    assert shared_db.promote() == len(expected)
    again = shared_db.claim(queues=[queue])
    assert {job.job_id: job.args for job in again} == expected
    assert set(shared_db.complete(again)) == {DONE}
    assert dict(shared_db.rows("SELECT job_id, args::text FROM awa.terminal_jobs WHERE queue = %s", (queue,))) == expected


@pytest.mark.parametrize("metadata", ['{"zz": 1, "a": 1e131071, "zz": 2}', '{"s": "\\ud800"}', '{"n": "\\u0000"}'])
def test_metadata_is_kept_byte_for_byte(shared_db, metadata):
    shared_db.enqueue(queue="bytes", metadata=metadata, traceparent="00-1")
    [job] = shared_db.claim(queues=["bytes"])
    assert (job.metadata, job.traceparent) == (metadata, "00-1")


def test_malformed_metadata_fails_alone(shared_db):
    ids, refused = shared_db.enqueue_items([Item(queue="meta", metadata='{"a":'), Item(queue="meta", metadata="{}")])
    assert {place: code for place, (code, _) in refused.items()} == {1: "22P02"}
    assert shared_db.claim(queues=["meta"]).ids == [ids[1]]


@pytest.mark.parametrize("shards, is_good", [(0, False), (1, True), (64, True), (65, False), (None, False)])
def test_enqueue_shards(db, shards, is_good):
    if is_good:
        db.rows("SELECT awa.configure_queue('q', %s)", (shards,))
        return
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="enqueue_shards must be 1 to 64"):
        db.rows("SELECT awa.configure_queue('q', %s)", (shards,))
