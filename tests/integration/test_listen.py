"""Where `awa-proxy serve` listens: several addresses, TCP, and files of sockets that are in the way."""
import fcntl
import os
import re
import signal
import socket
import stat
import subprocess

import pytest

from proxy_process import Proxy, wait_for
from wire_client import Client, pb

DRAIN = ("--drain-timeout-ms", "50")


def addresses(proxy):
    """What the ready line says, as `Client` wants it."""
    listed = re.search(r"^ready listen=(\S+) ", proxy.log(), re.MULTILINE)[1].split(",")
    return [address.removeprefix("unix:") if address.startswith("unix:") else tcp(address) for address in listed]


def tcp(address):
    host, _, port = address.removeprefix("tcp:").rpartition(":")
    return host.strip("[]"), int(port)


def serve(awa_proxy, *options):
    """Runs one that is expected to refuse."""
    return subprocess.run([awa_proxy, "serve", "--database", "dbname=nobody", *options], capture_output=True,
                          text=True, timeout=30, check=False)


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_every_address_serves(start):
    listen = ["--listen", "tcp:127.0.0.1:0"] + (["--listen", "tcp:[::1]:0"] if has_ipv6() else [])
    proxy = start(*listen, *DRAIN)
    found = addresses(proxy)
    assert found[0] == str(proxy.socket) and len(found) == 1 + len(listen) // 2
    assert all(port > 0 for _, port in found[1:])
    clients = [Client(address) for address in found]
    for client in clients:
        assert client.enqueue("q", b"{}")[0].job_id > 0
    jobs = [job for client in clients for job in client.claim("q", wait_ms=5000)]
    assert len(jobs) == len(clients)
    for client, job in zip(reversed(clients), jobs):  # whoever holds the receipt
        assert [result.status for result in client.complete(job)] == [pb.DONE]
    for client in clients:
        client.close()
    assert proxy.stop() == 0


def test_only_tcp(awa_proxy, own_database, tmp_path):
    proxy = Proxy(awa_proxy, tmp_path, own_database, *DRAIN, listen="tcp:127.0.0.1:0")
    try:
        client = Client(addresses(proxy.wait_ready())[0])
        assert client.call(ping=pb.Ping()).HasField("pong")
        client.close()
        assert proxy.stop() == 0
    finally:
        proxy.end()


@pytest.mark.parametrize("address", ["tcp:0.0.0.0:0", "tcp:[::]:0", "tcp:192.0.2.1:7433"])
def test_beyond_this_machine_is_refused(awa_proxy, address):
    done = serve(awa_proxy, "--listen", f"unix:/tmp/x,{address}")
    assert done.returncode == 2
    assert f"{address} can be reached from other machines" in done.stderr and "--insecure" in done.stderr


def test_insecure_allows_it(start):
    proxy = start("--listen", "tcp:0.0.0.0:0", "--insecure", *DRAIN)
    _, (host, port) = addresses(proxy)
    assert host == "0.0.0.0"
    client = Client(("127.0.0.1", port))
    assert client.call(ping=pb.Ping()).HasField("pong")
    client.close()
    assert proxy.stop() == 0


def test_port_in_use(awa_proxy, start, tmp_path):
    proxy = start("--listen", "tcp:127.0.0.1:0", *DRAIN)
    port = addresses(proxy)[1][1]
    second = serve(awa_proxy, "--listen", f"unix:{tmp_path}/other.sock,tcp:127.0.0.1:{port}")
    assert second.returncode == 1
    assert f"cannot listen on tcp:127.0.0.1:{port}: another process does" in second.stderr
    assert not (tmp_path / "other.sock").exists()  # it had been made
    assert proxy.stop() == 0


def test_draining_closes_every_listener(start):
    proxy = start("--listen", "tcp:127.0.0.1:0", "--drain-timeout-ms", "60000")
    where = addresses(proxy)[1]
    client = Client(where)
    client.enqueue("q", b"{}")
    job, = client.claim("q", wait_ms=5000)
    proxy.process.send_signal(signal.SIGTERM)
    wait_for(lambda: not proxy.socket.exists())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(where, 5)
    assert [result.status for result in client.complete(job)] == [pb.DONE]
    assert client.rest()[-1].error.code == pb.UNAVAILABLE
    assert proxy.process.wait(10) == 0


def test_restart_on_the_same_port(start, awa_proxy, own_database, tmp_path):
    """Although connections of the old process are still in TIME_WAIT."""
    proxy = start("--listen", "tcp:127.0.0.1:0", *DRAIN)
    where = addresses(proxy)[1]
    client = Client(where)
    proxy.process.send_signal(signal.SIGTERM)
    assert client.rest()[-1].error.code == pb.UNAVAILABLE  # all read: the proxy closed first, and nothing is reset
    client.close()
    assert proxy.process.wait(10) == 0
    again = start("--listen", f"tcp:127.0.0.1:{where[1]}", *DRAIN)
    assert Client(where).call(ping=pb.Ping()).HasField("pong")
    assert again.stop() == 0


# ---- files in the way

def test_a_file_that_is_no_socket_is_left_alone(awa_proxy, tmp_path):
    (tmp_path / "precious").write_text("x")
    done = serve(awa_proxy, "--listen", f"unix:{tmp_path}/precious")
    assert done.returncode == 1 and "exists and is not a socket" in done.stderr
    assert (tmp_path / "precious").read_text() == "x"


def leave_stale_socket(path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


def waits_for_lock(process):
    with open("/proc/locks", encoding="ascii") as locks:
        return any("->" in line.split() and str(process.pid) in line.split() for line in locks)


def test_the_file_is_replaced_under_a_lock(awa_proxy, own_database, tmp_path):
    """So that none removes the file that another has just made."""
    leave_stale_socket(tmp_path / "awa.sock")
    before = os.stat(tmp_path / "awa.sock").st_ino
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    proxy = Proxy(awa_proxy, tmp_path, own_database, *DRAIN)
    try:
        wait_for(lambda: waits_for_lock(proxy.process))
        assert os.stat(tmp_path / "awa.sock").st_ino == before
        os.close(folder)
        assert Client(proxy.wait_ready().socket).call(ping=pb.Ping()).HasField("pong")
        assert proxy.stop() == 0
    finally:
        proxy.end()


def test_of_many_at_one_stale_socket_one_serves(awa_proxy, own_database, tmp_path):
    for _ in range(2):
        path = tmp_path / "awa.sock"
        leave_stale_socket(path)
        log = open(tmp_path / "many.log", "wb")
        env = os.environ | {"AWA_DATABASE_URL": own_database}
        many = [subprocess.Popen([awa_proxy, "serve", "--listen", f"unix:{path}", *DRAIN], stderr=log, env=env)
                for _ in range(6)]
        try:
            wait_for(lambda: sum(one.poll() is not None for one in many) == 5)
            assert sorted(str(one.poll()) for one in many) == ["1"] * 5 + ["None"]
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
            client = Client(path)
            assert client.call(ping=pb.Ping()).HasField("pong")
            client.close()
        finally:
            log.close()
            for one in many:
                one.terminate()
                one.wait(30)
        assert not path.exists()
