"""A relay between the proxy and Postgres that cuts or stalls a connection at a chosen message.

It listens like a Postgres on a Unix socket in a folder of its own, opens a connection to the real
one for each that comes, and understands so much of the protocol: where a message ends, which
prepared statement a Bind names, and which ReadyForQuery answers which Sync. So a test can say
"lose the answer of the next claim after its commit". For tests only.
"""
import contextlib
import pathlib
import socket
import tempfile
import threading

from relaying import READ_BYTES, accept_pairs, shut

PORT = 5432


class Fault:
    """What is to happen to calls of one statement (`awa_CLAIM`, …), `times` times; or to any.

    before_sent  the connection is closed before the call reaches Postgres: it is surely not done
    no_sync      its Sync, and all that follows, is withheld: Postgres waits with the call's locks
    after_commit Postgres has committed; the rows pass, ReadyForQuery does not, the connection closes
    stall        the same, but the connection stays open, and nothing passes any more, either way
    deaf         from before the call reaches Postgres nothing passes any more; not closed either
    forget       the prepared statement is closed just before the call; the connection lives
    taken        of a new connection: the name of the statement is already another one's
    renumber     of a new connection: the client hears another process number than the server's, as from a pooler
    late         of a new connection: that the statement, and all that were sent with it, are prepared is said at `pass_on` only

    rows: of those that strike behind the answer: it has at least so many.
    """

    KINDS = ("before_sent", "no_sync", "after_commit", "stall", "deaf", "forget", "taken", "renumber", "late")

    def __init__(self, kind, statement, times=1, rows=0):
        assert kind in self.KINDS
        self.kind, self.statement, self.left, self.rows = kind, statement, times, rows
        self.hits = 0
        self.link = None        # where it struck last
        self.changed = threading.Condition()
        self.passing, self.passed = threading.Event(), threading.Event()

    def take(self, kinds, statement, rows=0, link=None):
        """Whether it strikes here; counts it."""
        with self.changed:
            if self.kind not in kinds or self.left == 0 or self.statement not in (None, statement) or rows < self.rows:
                return False
            self.left -= 1
            self.hits += 1
            self.link = link
            self.changed.notify_all()
            return True

    def wait(self, hits=1, seconds=40):
        with self.changed:
            assert self.changed.wait_for(lambda: self.hits >= hits, seconds), f"no {self.statement} came"

    def pass_on(self, seconds=40):
        """Lets go what is late, of a client that is stopped; returns when it can be read."""
        self.passing.set()
        assert self.passed.wait(seconds), f"{self.statement} was not prepared"


class Link:
    """One connection, in two threads: one for each direction."""

    def __init__(self, relay, client, server):
        self.relay, self.client, self.server = relay, client, server
        self.calls = []         # of each Sync that was passed on and not answered: its statement
        self.statement = None   # of the last Bind
        self.rows = 0           # that came since the last ReadyForQuery
        self.is_new = True      # nothing was prepared yet
        self.prepared = set()   # since the last ReadyForQuery: the statements, by name
        self.held = None        # the fault by which it was late
        self.mute = threading.Event()
        self.extra = {}         # how many answers, by kind, belong to what the relay itself asked
        for pump in (self.pump_client, self.pump_server):
            threading.Thread(target=pump, daemon=True).start()

    def close(self):
        shut(self.client, self.server)

    def strike(self, kinds, statement, rows=0):
        return next((f.kind for f in list(self.relay.faults) if f.take(kinds, statement, rows, self)), None)

    def on_client(self, kind, body):
        """Whether one message of the client is passed on, or what is put in front of it (bytes), or in its place (in a tuple); None closes."""
        if kind == b"P" and self.is_new:
            self.is_new = False
            for fault in list(self.relay.faults):
                if fault.take(("taken",), fault.statement):
                    return self.ask(b"P", fault.statement.encode() + b"\0SELECT 1\0\0\0", b"1")
        if kind == b"P" and body[0] != 0:
            self.prepared.add(body.split(b"\0", 1)[0].decode())
        if kind == b"B":
            self.statement = body[body.index(0) + 1:].split(b"\0", 1)[0].decode()
            struck = self.strike(("before_sent", "deaf", "forget"), self.statement)
            if struck == "before_sent":
                return None
            if struck == "deaf":
                self.mute.set()
            if struck == "forget":
                return self.ask(b"C", b"S" + self.statement.encode() + b"\0", b"3")
        elif kind == b"S":
            statement, self.statement = self.statement, None
            if self.strike(("no_sync",), statement):
                self.mute.set()
            self.calls.append(statement)
        return not self.mute.is_set()

    def hold(self):
        for fault in list(self.relay.faults):
            if fault.statement in self.prepared and fault.take(("late",), fault.statement):
                fault.passing.wait()
                self.held = fault
        self.prepared.clear()

    def ask(self, kind, body, answer):
        """A message of the relay's own, whose answer the client does not see."""
        self.extra[answer] = self.extra.get(answer, 0) + 1
        return kind + (len(body) + 4).to_bytes(4, "big") + body

    def on_server(self, kind, body):
        if kind == b"K" and self.strike(("renumber",), None):
            return (kind + (len(body) + 4).to_bytes(4, "big") + bytes(4) + body[4:],)
        if self.extra.get(kind, 0) > 0:
            self.extra[kind] -= 1
            return False
        self.rows += kind == b"D"
        if kind == b"Z":
            self.hold()
        if kind == b"Z" and self.calls:
            rows, self.rows = self.rows, 0
            struck = self.strike(("after_commit", "stall"), self.calls.pop(0), rows)
            if struck == "after_commit":
                return None
            if struck == "stall":
                self.mute.set()
        return not self.mute.is_set()

    def pump(self, source, target, look, is_typed):
        """Messages one by one; the first of a client has no type."""
        buffer = bytearray()
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                if self.relay.buffer_bytes is not None:
                    target.sendall(data)
                    continue
                buffer += data
                out = bytearray()
                at = 0
                while len(buffer) - at >= 4 + is_typed:
                    size = is_typed + int.from_bytes(buffer[at + is_typed:at + is_typed + 4], "big")
                    if len(buffer) - at < size:
                        break
                    message = bytes(buffer[at:at + size])
                    passes = look(message[:1], message[5:]) if is_typed else True
                    if passes is None:
                        target.sendall(out)
                        self.close()
                        return
                    if isinstance(passes, bytes):
                        out += passes
                    if isinstance(passes, tuple):
                        out += passes[0]
                    elif passes:
                        out += message
                    at += size
                    is_typed = 1
                del buffer[:at]
                target.sendall(out)
                if self.held is not None:
                    self.held.passed.set()
        # A stalled link looks open to the one end even when the other has gone.
        if not self.mute.is_set():
            self.close()

    def pump_client(self):
        self.pump(self.client, self.server, self.on_client, 0)

    def pump_server(self):
        self.pump(self.server, self.client, self.on_server, 1)


class Relay:
    """`with Relay(cluster, url) as relay`: `relay.url` leads through it.

    buffer_bytes: of its sockets; then it holds nothing itself either: bytes pass as they come, without faults.
    """

    def __init__(self, cluster, url, buffer_bytes=None):
        self.buffer_bytes = buffer_bytes
        self.target = f"{cluster.dir}/socket/.s.PGSQL.{PORT}"
        self.folder = tempfile.TemporaryDirectory(prefix="awa-relay-")
        self.url = url.replace(f"{cluster.dir}/socket", self.folder.name)
        assert self.url != url
        self.faults = []
        self.links = []
        self.listener = socket.socket(socket.AF_UNIX)

    def listen(self):
        self.listener.bind(str(pathlib.Path(self.folder.name) / f".s.PGSQL.{PORT}"))
        self.listener.listen(64)

    def __enter__(self):
        self.listen()
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        shut(self.listener)
        self.listener.close()
        for link in self.links:
            link.close()
        self.folder.cleanup()

    def accept(self):
        for client, server in accept_pairs(self.listener, self.target):
            if self.buffer_bytes is not None:
                for end in (client, server):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.buffer_bytes)
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
            self.links.append(Link(self, client, server))

    def inject(self, kind, statement, times=1, rows=0):
        self.faults.append(Fault(kind, statement, times, rows))
        return self.faults[-1]


class TcpRelay(Relay):
    """The same on a TCP port: `address` and `port` (0: any) of it. For clients with sslmode=disable and gssencmode=disable."""

    def __init__(self, cluster, url, address="127.0.0.1", port=0):
        super().__init__(cluster, url)
        self.listener.close()
        self.listener = socket.create_server((address, port))
        self.port = self.listener.getsockname()[1]

    def listen(self):
        """It does already."""
