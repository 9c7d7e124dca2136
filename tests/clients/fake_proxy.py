"""A proxy played by the test: it sees every frame a client sends and answers as it likes.

For what a real proxy cannot be made to do at will: lose the connection at a given frame, answer
ABORTED or UNAVAILABLE, stay silent, send nonsense.
"""
import socket

import awa_pb2 as pb

DEADLINE_S = 20
LIMITS = {"major": 1, "server_version": "fake", "session_id": b"0" * 16,
          "max_frame_bytes": 1 << 22, "max_jobs_per_enqueue": 1000, "max_claim_jobs": 512,
          "max_items_per_finish": 1000, "max_wait_ms": 60_000, "idle_timeout_ms": 60_000,
          "credit_requests": 1024, "credit_bytes": 1 << 23, "max_args_bytes": 1 << 20,
          "heartbeat_interval_ms": 20_000, "session_grace_ms": 5_000}


def encode(request, **answer):
    """The frame that answers request."""
    body = pb.ServerFrame(request_id=request.request_id, **answer).SerializeToString()
    prefix, rest = bytearray(), len(body)
    while rest > 0x7F:
        prefix.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*prefix, rest]) + body


class FakeProxy:
    def __init__(self, path):
        self.address = f"unix:{path}"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(DEADLINE_S)

    def accept(self):
        return Session(self.listener.accept()[0])

    def close(self):
        self.listener.close()


class Session:
    def __init__(self, connection):
        self.connection = connection
        self.connection.settimeout(DEADLINE_S)

    def close(self):
        self.connection.close()

    def read(self, length):
        received = b""
        while len(received) < length:
            part = self.connection.recv(length - len(received))
            if not part:
                raise EOFError
            received += part
        return received

    def send(self, encoded):
        self.connection.sendall(encoded)

    def receive(self):
        length = shift = 0
        while True:
            byte = self.read(1)[0]
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return pb.ClientFrame.FromString(self.read(length))

    def expect(self, kind):
        """The next frame, which must be of this kind."""
        frame = self.receive()
        assert frame.WhichOneof("request") == kind, frame
        return frame

    def answer(self, request, **answer):
        self.send(encode(request, **answer))

    def greet(self, **limits):
        hello = self.expect("hello")
        self.answer(hello, hello_ok=pb.HelloOk(**LIMITS | limits))
        return hello.hello

    def notify(self, kind, receipt=b""):
        self.answer(pb.ClientFrame(), notice=pb.Notice(kind=kind, receipt=receipt))

    def give_jobs(self, claim, *ids, kind="complete"):
        """Answers a Claim with one job an id; the id is the receipt too."""
        jobs = [pb.Job(job_id=job_id, receipt=str(job_id).encode(), queue="q", kind=kind,
                       args=b"{}", priority=2, attempt=1, max_attempts=25) for job_id in ids]
        self.answer(claim, claim_ok=pb.ClaimOk(jobs=jobs))

    def settle(self, finish, *statuses):
        """Answers a Finish, each item with its status or all with the only one."""
        statuses = statuses * len(finish.finish.items) if len(statuses) == 1 else statuses
        self.answer(finish, finish_ok=pb.FinishOk(
            results=[pb.FinishResult(status=status) for status in statuses]))
