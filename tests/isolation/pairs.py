"""Every two steps of the engine that can meet, in every order that matters.

Each step runs in a transaction of its own, on the scene of helpers.sql. For two steps A
and B: one after the other, overlapping with either first and either committing first,
and overlapping where one rolls back. Nothing may wait, and iso.settle() finds nothing wrong.
"""
# What a step does, as SQL. Two sessions run the same text.
STEPS = {
    "enqueue": "SELECT iso.enqueue('{s}', 2);",
    "claim": "SELECT iso.claim(2);",
    "complete": "SELECT iso.complete('h1', 'h2');",
    "retry": "SELECT iso.finish('retry', 'h2');",
    "promote": "SELECT iso.promote();",
    "rotate": "SELECT iso.rotate();",
    "sync": "SELECT iso.sync();",
    "close": "SELECT iso.close(); SELECT iso.carry(); SELECT iso.close();",
    "prune": "SELECT iso.prune();",
    "rescue": "SELECT iso.rescue();",
}
# The scene a step needs beside the common one.
PREPARE = {"sync": "SELECT iso.rotate();", "rescue": "SELECT iso.lose_proxy();"}

MUST_HOLD = {
    ("enqueue", "enqueue"): "Two producers in one lane: neither waits, each keeps its own order.",
    ("enqueue", "claim"): "A claim hands out what is committed; what commits later is found later.",
    ("enqueue", "promote"): "Two writers of the current slot, in one lane.",
    ("enqueue", "rotate"): "A producer open across a rotation keeps its slot.",
    ("enqueue", "sync"): "A producer that entered before the pointer moved keeps its slot; the next has the new one.",
    ("enqueue", "close"): "A producer writes where the pointer is, which close never looks at.",
    ("enqueue", "prune"): "Prune empties slots that no producer can enter.",
    ("claim", "claim"): "One lane, two claimers: the second is told BUSY, and no job goes to both.",
    ("claim", "complete"): "An open claim does not keep attempts of another batch from ending.",
    ("claim", "retry"): "An open claim does not keep attempts of another batch from ending.",
    ("claim", "promote"): "A promoted job is claimed once, by whoever sees its commit.",
    ("claim", "rotate"): "Claims write states and batches into whichever slot is current.",
    ("claim", "sync"): "A state written behind the pointer's back is still the newest.",
    ("claim", "close"): "Carry leaves alone a lane that is being claimed, a claim a lane that is being carried.",
    ("claim", "prune"): "A claim never looks at a closed slot, so it does not wait for a TRUNCATE.",
    ("complete", "complete"): "One attempt, two outcomes: one DONE; the other is BUSY, then ALREADY_DONE.",
    ("complete", "retry"): "One attempt, two different outcomes: one DONE; the other is BUSY, then STALE.",
    ("complete", "rotate"): "An end is written beside its body, whatever slot is current.",
    ("complete", "sync"): "An end is written beside its body, whatever slot is current.",
    ("complete", "close"): "An attempt may end in a slot that is being closed.",
    ("complete", "prune"): "A slot with an attempt that has not ended is not pruned; an open end counts as none.",
    ("retry", "retry"): "One attempt, the same outcome twice: it is deferred once.",
    ("retry", "promote"): "A job retried while a promotion runs is promoted by a later one.",
    ("retry", "rotate"): "A retried job leaves the ring.",
    ("retry", "sync"): "A retried job leaves the ring.",
    ("retry", "close"): "A retried job leaves the ring.",
    ("retry", "prune"): "A slot with an attempt that has not ended is not pruned.",
    ("promote", "promote"): "Two promoters: one works, the other goes away; a job is moved once.",
    ("promote", "rotate"): "Promotion writes to the slot that is current for it.",
    ("promote", "sync"): "Promotion writes to the slot that is current for it.",
    ("promote", "close"): "Promotion writes where the pointer is, which close never looks at.",
    ("promote", "prune"): "Prune empties slots that promotion cannot enter.",
    ("rotate", "rotate"): "Two leaders: a ring moves on by one generation, not by two.",
    ("rotate", "sync"): "The pointer follows what is committed in the ledger.",
    ("rotate", "close"): "Close looks at generations the pointer has left: a rotation that is not synced yet changes nothing.",
    ("rotate", "prune"): "A slot is clean once its prune is committed; a rotation does not wait for that.",
    ("sync", "sync"): "Two leaders: the pointer moves once and never back.",
    ("sync", "close"): "A slot counts as left only once the pointer is seen to be past it.",
    ("sync", "prune"): "They touch nothing in common but the claim ring's pointer.",
    ("close", "close"): "Two leaders: facts are appended once.",
    ("close", "prune"): "Only what is committed as closed is pruned.",
    ("prune", "prune"): "Two leaders: what ended is counted once.",
    ("enqueue", "rescue"): "They touch nothing in common.",
    ("claim", "rescue"): "An open claim is no attempt yet; once it is committed, it is found.",
    ("complete", "rescue"): "One attempt, its outcome and its rescue: one wins; the other is STALE, or finds nothing open.",
    ("retry", "rescue"): "One attempt, two retries: one counts.",
    ("promote", "rescue"): "A rescued job is promoted by a later promotion.",
    ("rotate", "rescue"): "A rescued job leaves the ring, whatever slot is current.",
    ("sync", "rescue"): "A rescued job leaves the ring, whatever slot is current.",
    ("close", "rescue"): "An attempt may be rescued in a slot that is being closed.",
    ("prune", "rescue"): "A slot with an attempt that has not ended is not pruned; what is being pruned has nothing to rescue.",
    ("rescue", "rescue"): "Two leaders: an attempt is rescued once.",
}
ORDERS = [
    "a ac b bc", "b bc a ac",
    "a b ac bc", "a b bc ac", "b a ac bc", "b a bc ac",
    "a b ar bc", "b a br ac",
]


def spec(first, second):
    orders = [o for o in ORDERS if first != second or o.startswith("a")]
    ends = {step: f"step {step} {{ {end}; }}" for step, end in
            (("ac", "COMMIT"), ("ar", "ROLLBACK"), ("bc", "COMMIT"), ("br", "ROLLBACK"))
            if any(step in order.split() for order in orders)}
    end_a, end_b = ("\n".join(text for step, text in ends.items() if step[0] == s) for s in "ab")
    prepare = "\n".join(f"setup {{ {PREPARE[s]} }}"
                        for s in PREPARE if s in (first, second))
    permutations = "\n".join(f"permutation {order} settle" for order in orders)
    return f"""# {first} meets {second}. {MUST_HOLD[first, second]}
# Nothing waits; settle hands out every job that was not claimed before, once, and finds no problem.
setup {{ CALL iso.scene(); }}
{prepare}
session a
step a {{ BEGIN; {STEPS[first].format(s="a")} }}
{end_a}
session b
step b {{ BEGIN; {STEPS[second].format(s="b")} }}
{end_b}
session end
step settle {{ CALL iso.settle(); }}
{permutations}
"""


def specs():
    """name → text."""
    return {f"pair-{a}-{b}": spec(a, b) for a, b in MUST_HOLD}
