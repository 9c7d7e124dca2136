"""The regression gate: WAL per job of two short runs against the stored figures, within 5 %.

WAL, unlike time, hardly differs between machines and runs. What differs are the sizes of batches,
which follow the timing and move the few bytes of a claim and a completion: hence NOISE_BYTES, half
a percent of a job's life.
"""
import json
import pathlib
import sys

STORED = pathlib.Path(__file__).with_name("wal_gate.json")
TOLERANCE = 0.05
NOISE_BYTES = 2
RUNS = {"drain": ("drain", "--jobs", "50000", "--inflight", "512"),
        "life": ("life", "--jobs", "50000", "--inflight", "512")}


def add_command(commands):
    summary = "compare WAL per job of a short drain and life with bench/wal_gate.json"
    command = commands.add_parser("gate", help=summary, description=summary)
    command.add_argument("--update", action="store_true", help="store what is measured")


def run(options, measure, print_table):
    measured = {}
    violations = 0
    for name, words in RUNS.items():
        figures = measure(words)
        print_table(figures)
        measured[name] = figures["wal_bytes_per_job"]
        violations += figures["violations"]
    if options.update:
        STORED.write_text(json.dumps(measured, indent=4) + "\n", encoding="utf-8")
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    ok = violations == 0
    for name, value in measured.items():
        within = abs(value - stored[name]) <= max(TOLERANCE * stored[name], NOISE_BYTES)
        ok = ok and within
        print(f"gate: {name} wal_bytes_per_job={value} stored={stored[name]} "
              f"off={value / stored[name] - 1:+.1%} {'ok' if within else 'OUTSIDE'}")
    sys.stdout.flush()
    return 0 if ok else 1
