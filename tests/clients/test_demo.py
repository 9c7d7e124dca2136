"""The summary of ./dev demo tells the truth about lost and repeated jobs."""
import pathlib
import re
import runpy
import sys

import pytest

import awa

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def demo():
    sys.path.insert(0, str(BENCH))
    try:
        return runpy.run_path(str(BENCH / "demo"))
    finally:
        sys.path.remove(str(BENCH))


def summary(demo, folder, executed, completed=3, failed=0):
    """(ok, figures) for jobs 1, 2, 3 enqueued and these executions."""
    (folder / "enqueued-c").write_text("1 1000\n2 2000\n3 3000\n", encoding="ascii")
    (folder / "executed-c").write_text("".join(f"{job_id} 5000\n" for job_id in executed),
                                       encoding="ascii")
    counts = awa.QueueCounts(0, 0, 0, 0, 0, completed, failed, 0)
    ok, line = demo["summarise"](demo["Records"](folder), counts, 1200, 1_001_000)
    return ok, dict(re.findall(r"(\w+)=(\S+)", line))


def test_all_is_well(demo, tmp_path):
    ok, figures = summary(demo, tmp_path, (3, 1, 2))
    assert ok
    assert figures == {"jobs": "3", "completed": "3", "failed": "0", "lost": "0",
                       "duplicates": "0", "jobs_per_s": "3", "p50_ms": "3.0", "p99_ms": "3.0",
                       "wal_bytes_per_job": "400"}


@pytest.mark.parametrize("executed,counts,figure,value", [
    ((1, 2), {}, "lost", "1"), ((), {}, "lost", "3"), ((1, 2, 3, 3), {}, "duplicates", "1"),
    ((1, 2, 3), {"completed": 2}, "completed", "2"), ((1, 2, 3), {"failed": 1}, "failed", "1")])
def test_what_is_not_well(demo, tmp_path, executed, counts, figure, value):
    ok, figures = summary(demo, tmp_path, executed, **counts)
    assert not ok
    assert figures[figure] == value
