"""The faults: what each does, and how soon after it the service must be whole again.

A kind is a function of the world and of random numbers of its own; it returns when all is well again, with a Figure: the
seconds from the fault until a job is accepted (enqueued and acknowledged, through the proxy that was hit; where that is dead or
stopped, through the other), and until the jobs that a worker held through that proxy either run again, where they were lost to it
(`again`), or are ended by that worker, where they must not be (`kept`).

The bounds are sums of what the mechanisms may take, and SLACK_S for a busy machine.
"""
import contextlib
import dataclasses
import os
import signal
import threading
import time

from world import GRACE_MS, MISSING_MS, Trouble, wait_for

SLACK_S = 5.0
BACKOFF_S = 2.5         # of a first attempt: 2 s and up to a quarter more
GRACE_S = GRACE_MS / 1000
MISSING_S = MISSING_MS / 1000
RESCUE_S = 2.0          # the leader looks every second, once to note who is missing and once to end what he held
ELECTION_S = 5.0        # until another proxy leads: tried every 2 to 4 s
AWAY_S = 15.0           # a control session whose proxy says nothing, or reads nothing, ends
RECONNECT_S = 4.8       # longest pause of a proxy between two tries to connect
SERVER_S = 10.0         # a server of this size recovers and starts
AWAY_SERVER_S = SERVER_S + RECONNECT_S  # also of faults that run beside: the server may be restarted meanwhile
CLIENT_BACKOFF_S = 5.0  # the same of a client
PROXY_START_S = 1.0
CALL_S = 15.0           # a call to Postgres without an answer is given up
RESOLVE_S = 1.0         # then the proxy finds out what became of it
IDLE_S = 60.0           # a proxy gives a silent client up
CLIENT_IDLE_S = 50.0    # a worker gives a silent proxy up: two thirds of that, and it looks every sixth

STALLED_CALLS = ("awa_COMPLETE_BATCH", "awa_ENQUEUE_BATCH", "awa_ENQUEUE_ONCE", "awa_FINISH_ITEMS")
CLAIM_WITH_JOBS = 2     # rows: a batch, and the one that says that there is no more
TERMINATED = 8


@dataclasses.dataclass
class Figure:
    what: str           # was done, for people
    accepted_s: float
    held_s: float


@dataclasses.dataclass
class Kind:
    run: object
    accepted_within_s: float
    held_within_s: float
    held: str           # "again" or "kept"
    long: bool = False  # only when asked for
    beside: bool = False  # waits most of its time: runs beside the others


def kill_worker(world, rng):
    """kill -9 of two worker processes: one of the load, and one whose jobs are watched."""
    place = rng.choice(world.proxies)
    held = world.hold(place)
    victim = rng.choice(world.workers)
    began = time.monotonic()
    held.process.kill()
    victim.kill()
    accepted_s = world.accepted(place, began)
    held_s = held.run_again(rng.choice(world.proxies), began)
    world.replace(victim)
    return Figure(f"{victim.journal.stem}, {held.process.journal.stem}", accepted_s, held_s)


def kill_proxy(world, rng, spared=None):
    """kill -9 of a proxy; another one is started in its place. Its workers go on with that one."""
    place = rng.choice([p for p in world.proxies if p is not spared])
    other = next(p for p in world.proxies if p is not place)
    leads = world.wait_leader() is place
    held = world.hold(place)
    began = time.monotonic()
    place.kill()
    place.start()
    accepted_s = world.accepted(place, began)
    held_s = held.run_again(other, began)
    held.leave()
    return Figure(f"{place.name}, {'leader' if leads else 'follower'}", accepted_s, held_s)


def hit_backend(world, place, pool, hit):
    """hit(pid) ends a server process of a proxy. When that was."""
    pid = wait_for(lambda: world.live_backends(place, pool), "a backend")[-1]
    began = time.monotonic()
    hit(pid)
    wait_for(lambda: not world.ask("SELECT FROM pg_stat_activity WHERE pid = %s", pid), "the end of the backend")
    return began


def terminate_backend(world, rng):
    """The server processes of several connections of a proxy, one after the other, data and control."""
    place = rng.choice(world.proxies)
    held = world.hold(place)
    slowest = 0.0
    for _ in range(TERMINATED):
        pool = rng.choice(("data", "data", "control"))
        began = hit_backend(world, place, pool, lambda pid: world.ask("SELECT pg_terminate_backend(%s)", pid))
        slowest = max(slowest, world.accepted(place, began))
    return Figure(f"{place.name}, {TERMINATED} times, the slowest", slowest, held.end(began))


def kill_backend(world, rng):
    """kill -9 of one: Postgres then ends all its sessions, and recovers by itself."""
    place = rng.choice(world.proxies)
    pool = rng.choice(("data", "control"))
    held = world.hold(place)
    began = hit_backend(world, place, pool, lambda pid: os.kill(pid, signal.SIGKILL))
    return Figure(f"{place.name}, {pool}", world.accepted(place, began), held.end(began))


def end_server(world, rng, end):
    place = rng.choice(world.proxies)
    held = world.hold(place)
    began = time.monotonic()
    end()
    world.cluster.tool("start")
    return Figure(place.name, world.accepted(place, began), held.end(began))


def kill_server(world, rng):
    """kill -9 of Postgres with all its processes; then it is started."""
    return end_server(world, rng, lambda: world.cluster.tool("kill9"))


def restart_server(world, rng):
    return end_server(world, rng, lambda: world.cluster.tool("stop", "--mode", "fast"))


def counted(place, event):
    return place.proxy.log().count(f"event={event} ")


def stall_server(world, rng):
    """Two connections between proxy and Postgres fall silent and stay open: one when a claim with jobs has committed, one when another
    call has, or before it can (the same one, if that call was sent behind the claim). What those calls were about has to wait until
    the proxy has given them up and found out: that is what is measured here besides the held jobs."""
    place = world.proxies[1]  # behind the relay
    held = world.hold(place)
    where, statement = rng.choice(("stall", "no_sync")), rng.choice(STALLED_CALLS)
    before = counted(place, "pg_lost")
    faults = world.relay.inject("stall", "awa_CLAIM", rows=CLAIM_WITH_JOBS), world.relay.inject(where, statement)
    for fault in faults:
        fault.wait()
    began = time.monotonic()
    accepted_s = world.accepted(place, began)
    held.end(began)
    silent = {fault.link for fault in faults}
    wait_for(lambda: counted(place, "pg_lost") >= before + len(silent), "the loss of the stalled connections")
    wait_for(lambda: counted(place, "outcome_unknown") == counted(place, "outcome_resolved"), "the outcome of the stalled calls")
    return Figure(f"{place.name}, claim, {'after' if where == 'stall' else 'before'} the commit of {statement}", accepted_s, time.monotonic() - began)


def stop_leader(world, rng, spared=None):
    """SIGSTOP to the proxy that leads, for as long as it takes to replace it; then SIGCONT."""
    if spared is not None:
        world.move_lead_from(spared)
    place = world.wait_leader()
    other = next(p for p in world.proxies if p is not place)
    held = world.hold(place)
    began = time.monotonic()
    world.lost_proxies.add(place.proxy.process.pid)
    place.proxy.process.send_signal(signal.SIGSTOP)
    try:
        accepted_s = world.accepted(other, began)
        held_s = held.run_again(other, began)
    finally:
        place.proxy.process.send_signal(signal.SIGCONT)
    world.accepted(place, time.monotonic())
    held.leave()
    return Figure(place.name, accepted_s, held_s)


def cut_client(world, rng):
    """The connection of a worker is closed in the middle of its jobs; it resumes its session within the grace."""
    place = rng.choice(world.proxies)
    relay, address = world.front(place)
    held = world.hold(place, address)
    began = time.monotonic()
    relay.cut()
    return Figure(place.name, world.accepted(place, began), held.end(began))


def stall_client(world, rng, spared):
    """A connection between worker and proxy falls silent and stays open. The worker gives it up before the proxy does, and resumes its session."""
    relay, address = world.front(spared)
    held = world.hold(spared, address)
    began = time.monotonic()
    relay.stall()
    return Figure(spared.name, world.accepted(spared, began), held.end(began))


def lose_client(world, rng, spared):
    """The same, and the worker dies: nobody tells the proxy, as when its machine vanishes."""
    relay, address = world.front(spared)
    held = world.hold(spared, address)
    began = time.monotonic()
    relay.stall()
    held.process.kill()
    return Figure(spared.name, world.accepted(spared, began), held.run_again(spared, began))


def restart_often(world, rng):
    """Twenty restarts in a row (ptrap_06): after each both proxies accept jobs and live, and one leads. Neither was restarted."""
    held = world.hold(world.proxies[0])
    accepted_s = 0.0
    for _ in range(20):
        mode = rng.choice(("fast", "immediate"))
        began = time.monotonic()
        world.cluster.tool("stop", "--mode", mode)
        world.cluster.tool("start")
        for place in world.proxies:
            accepted_s = max(accepted_s, world.accepted(place, began))
        world.wait_living()
        world.wait_leader()
    return Figure("20 restarts, the slowest", accepted_s, held.end(time.monotonic()))


SATURATED_S = 60
FROZEN_S, THAWED_S = 1.0, 0.05


def freeze(world, place, over):
    """Until `over` the data connections of a proxy are always busy: each call takes a second."""
    while not over.is_set():
        frozen = world.live_backends(place, "data")
        for number, pause_s in ((signal.SIGSTOP, FROZEN_S), (signal.SIGCONT, THAWED_S)):
            for pid in frozen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(pause_s)


def saturate(world, rng):
    """The data connections of the leader are saturated for a minute (ptrap_11). It goes on leading, is never seen as missing, and
    all the time jobs are accepted; what is held can be ended."""
    place = world.wait_leader()
    held = world.hold(place)
    slowest = 0.0
    over = threading.Event()
    freezer = threading.Thread(target=freeze, args=(world, place, over))
    freezer.start()
    try:
        until = time.monotonic() + SATURATED_S
        while time.monotonic() < until:
            slowest = max(slowest, world.accepted(place, time.monotonic()))
            if world.leader() is not place:
                raise Trouble("leadership starved")
            if world.ask("SELECT FROM awa.runtime_instances WHERE missing_since IS NOT NULL"):
                raise Trouble("liveness starved")
        held_s = held.end(time.monotonic())
    finally:
        over.set()
        freezer.join()
    return Figure(f"{place.name}, for {SATURATED_S} s, the slowest", slowest, held_s)


KINDS = {
    "worker": Kind(kill_worker, SLACK_S, GRACE_S + BACKOFF_S + SLACK_S, "again"),
    "proxy": Kind(kill_proxy, PROXY_START_S + SLACK_S, ELECTION_S + MISSING_S + RESCUE_S + BACKOFF_S + SLACK_S, "again"),
    "terminate": Kind(terminate_backend, RESOLVE_S + SLACK_S, RESOLVE_S + SLACK_S, "kept"),
    "backend": Kind(kill_backend, AWAY_SERVER_S + SLACK_S, AWAY_SERVER_S + SLACK_S, "kept"),
    "postgres": Kind(kill_server, AWAY_SERVER_S + SLACK_S, AWAY_SERVER_S + SLACK_S, "kept"),
    "restart": Kind(restart_server, AWAY_SERVER_S + SLACK_S, AWAY_SERVER_S + SLACK_S, "kept"),
    "stall": Kind(stall_server, CALL_S + RESOLVE_S + SLACK_S, CALL_S + RESOLVE_S + SLACK_S, "kept"),
    "stop": Kind(stop_leader, SLACK_S, AWAY_S + ELECTION_S + MISSING_S + RESCUE_S + BACKOFF_S + SLACK_S, "again"),
    "cut": Kind(cut_client, SLACK_S, GRACE_S + SLACK_S, "kept"),
    "client": Kind(stall_client, AWAY_SERVER_S + SLACK_S, CLIENT_IDLE_S + CLIENT_BACKOFF_S + AWAY_SERVER_S + SLACK_S, "kept", beside=True),
    "vanish": Kind(lose_client, AWAY_SERVER_S + SLACK_S, IDLE_S + GRACE_S + BACKOFF_S + AWAY_SERVER_S + SLACK_S, "again", beside=True),
    "restarts20": Kind(restart_often, AWAY_SERVER_S + SLACK_S, SLACK_S, "kept", long=True),
    "saturated": Kind(saturate, CALL_S + SLACK_S, CALL_S + SLACK_S, "kept", long=True),
}
