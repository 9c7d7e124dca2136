"""What bench/run reads from the outside: WAL, CPU time, and the floor of the machine."""
import os
import pathlib
import re
import statistics
import subprocess
import tempfile
import threading
import time

FLOOR_CLIENTS = 32
FLOOR_S = 3
SYNC_WRITES = 500
PACED_WRITES = 300
PACE_S = 0.01
BLOCK_BYTES = 8192
# The calls that make up each stage, by the name of the function (design: the SQL the proxy calls).
STAGES = {"enqueue": ("enqueue_batch", "reserve_job_ids"), "claim": ("claim",),
          "finish": ("complete_batch", "finish_items")}


def find_server_program(name):
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    if not found:
        raise SystemExit(f"{name} not found below /usr/lib/postgresql: run ./dev setup")
    return found[-1]


def floor_insert_tps(url):
    """One-row INSERTs, each its own durable commit, by 32 pgbench clients."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write("INSERT INTO bench_floor (args) VALUES (repeat('x', 80));\n")
        script.flush()
        done = subprocess.run(
            [find_server_program("pgbench"), "-n", "-M", "prepared", "-c", str(FLOOR_CLIENTS),
             "-j", "2", "-T", str(FLOOR_S), "-f", script.name, url],
            check=True, text=True, capture_output=True, start_new_session=True)
    return float(re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)[1])


def sync_times_ms(folder, writes, pause_s):
    """Each write + fdatasync of one block, in place, as a WAL file is written."""
    times_ms = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(bytes(BLOCK_BYTES * writes))
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(writes):
            time.sleep(pause_s)
            start = time.perf_counter()
            file.write(b"x" * BLOCK_BYTES)
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - start) * 1000)
    return times_ms


def sync_floor(folder):
    """What one sync costs: back to back, and with the machine at rest in between, as at low rates."""
    paced = sync_times_ms(folder, PACED_WRITES, PACE_S)
    return {"fdatasync_ms": round(statistics.median(sync_times_ms(folder, SYNC_WRITES, 0)), 3),
            "paced_fdatasync_p50_ms": round(statistics.median(paced), 3),
            "paced_fdatasync_p99_ms": round(statistics.quantiles(paced, n=100)[98], 3)}


def stolen_s():
    """Processor time that the hypervisor gave to others, of all processors, since boot."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def scalar(cursor, query, *arguments):
    cursor.execute(query, arguments)
    return cursor.fetchone()[0]


class DiskWatch:
    """For how long the disk below a folder stood still: requests under way, and none ended, between
    two looks 10 ms apart. A disk that others share does so for tens or hundreds of milliseconds, and
    every commit with it. None where Linux does not tell, as for a file system without a device."""
    PERIOD_S = 0.01

    def __init__(self, folder):
        device = os.stat(folder).st_dev
        self.file = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
        self.stalled_s = 0.0
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def start(self):
        self.thread.start()

    def stop(self):
        """Seconds of standstill since the start."""
        self.done.set()
        self.thread.join()
        return None if self.stalled_s is None else round(self.stalled_s, 2)

    def watch(self):
        try:
            before = self.look()
            while not self.done.wait(self.PERIOD_S):
                now = self.look()
                self.stalled_s += self.standstill_s(before, now)
                before = now
        except OSError:
            self.stalled_s = None

    def look(self):
        """The time, how many requests have ended, how many are under way."""
        fields = [int(field) for field in self.file.read_text().split()]
        return time.monotonic(), fields[0] + fields[4], fields[8]

    @staticmethod
    def standstill_s(before, now):
        stands_still = now[1] == before[1] and before[2] > 0 and now[2] > 0
        return now[0] - before[0] if stands_still else 0


class Meter:
    """Readings before and after the measured part, and their difference a job."""

    def __init__(self, cursor, folder, proxy_pid, load_pid):
        self.cursor = cursor
        self.disk = DiskWatch(folder)
        self.pids = {"proxy": proxy_pid, "load": load_pid}

    def start(self):
        self.cursor.execute("CHECKPOINT")
        self.cursor.execute("SELECT pg_stat_statements_reset()")
        self.cpu_before = self.cpu_s()
        self.stolen_before_s = stolen_s()
        self.lsn_before = scalar(self.cursor, "SELECT pg_current_wal_insert_lsn()")
        self.disk.start()

    def stop(self, jobs):
        disk_stalled_s = self.disk.stop()
        wal_bytes = int(scalar(self.cursor,
                               "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)",
                               self.lsn_before))
        cpu_after = self.cpu_s()
        stolen = stolen_s() - self.stolen_before_s
        stages = {stage: self.stage(names) for stage, names in STAGES.items()}
        split = {stage: found["wal_bytes"] / jobs for stage, found in stages.items()}
        split["other"] = wal_bytes / jobs - sum(split.values())
        return {"wal_bytes_per_job": round(wal_bytes / jobs, 1),
                "wal_split": {stage: round(value, 1) for stage, value in split.items()},
                "sql": {stage: {"calls": found["calls"],
                                "ms_per_call": round(found["ms"] / max(1, found["calls"]), 3)}
                        for stage, found in stages.items()},
                "stolen_s": round(stolen, 2),
                "disk_stalled_s": disk_stalled_s,
                "cpu_s": {name: round(cpu_after[name] - self.cpu_before[name], 2)
                          for name in cpu_after}}

    def stage(self, names):
        """Calls, time and WAL of the functions of one stage, what they call included."""
        self.cursor.execute("SELECT coalesce(sum(calls), 0), coalesce(sum(total_exec_time), 0),"
                            " coalesce(sum(wal_bytes), 0) FROM pg_stat_statements"
                            " WHERE toplevel AND query ~ %s", [r'\W(' + "|".join(names) + r')"?\('])
        calls, time_ms, wal_bytes = self.cursor.fetchone()
        return {"calls": int(calls), "ms": float(time_ms), "wal_bytes": int(wal_bytes)}

    def cpu_s(self):
        self.cursor.execute("SELECT pid, backend_type FROM pg_stat_activity"
                            " WHERE pid <> pg_backend_pid()")
        seconds = {"backends": 0.0, "background": 0.0}
        for pid, kind in self.cursor.fetchall():
            seconds["backends" if kind == "client backend" else "background"] += process_cpu_s(pid)
        return seconds | {name: process_cpu_s(pid) for name, pid in self.pids.items()}


def process_cpu_s(pid):
    """User and system time; 0 for a process that has ended meanwhile."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
