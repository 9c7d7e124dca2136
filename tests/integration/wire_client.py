"""A client of awa.v1 that hides nothing: frames in, frames out, over a raw socket.

For tests only. It can also send what no client should. The messages are generated from the .proto
when this is imported, so that a test never runs against an old copy.
"""
import importlib
import pathlib
import socket
import subprocess
import sys
import tempfile

from proxy_process import wait_for

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
DEADLINE_S = 20


def _load_messages():
    with tempfile.TemporaryDirectory(prefix="awa-proto-") as folder:
        subprocess.run(["protoc", f"--proto_path={REPOSITORY}/proto", f"--python_out={folder}", "awa/v1/awa.proto"],
                       check=True)
        sys.path.insert(0, folder)
        try:
            return importlib.import_module("awa.v1.awa_pb2")
        finally:
            sys.path.remove(folder)


pb = _load_messages()


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def statuses(results):
    return [pb.FinishStatus.Name(result.status) for result in results]


class Client:
    """One connection, to a path or to (host, port). Answers that come out of order are kept until asked for, and
    so are notices.

    hello: False sends none; otherwise its fields beyond those of every test.
    """

    def __init__(self, where, hello=()):
        if isinstance(where, tuple):
            self.socket = socket.create_connection(where, DEADLINE_S)
        else:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(DEADLINE_S)
            self.socket.connect(str(where))
        self.buffer = bytearray()
        self.answers = {}
        self.notices = []
        self.next_id = 1
        if hello is not False:
            greeting = pb.Hello(major=1, client_name="test", **dict(hello))
            self.limits = self.call(hello=greeting).hello_ok

    @classmethod
    def resume(cls, path, before, held=None):
        """Resumes the session of a client; held: the jobs that it still holds (None: not said)."""
        told = {} if held is None else {"held": pb.Held(receipts=[job.receipt for job in held])}
        return cls(path, {"session_id": before.limits.session_id, **told})

    def send_raw(self, data):
        self.socket.sendall(data)

    def send(self, request_id=None, **request):
        """Sends one request and returns its id."""
        if request_id is None:
            request_id = self.next_id
            self.next_id += 1
        body = pb.ClientFrame(request_id=request_id, **request).SerializeToString()
        self.send_raw(varint(len(body)) + body)
        return request_id

    def read_frame(self):
        """The next frame, or None at the end of the stream."""
        while True:
            length = shift = 0
            for i, byte in enumerate(self.buffer[:5]):
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    if len(self.buffer) >= i + 1 + length:
                        body = bytes(self.buffer[i + 1:i + 1 + length])
                        del self.buffer[:i + 1 + length]
                        return pb.ServerFrame.FromString(body)
                    break
            data = self.socket.recv(1 << 16)
            if not data:
                assert not self.buffer, "the stream ended inside a frame"
                return None
            self.buffer += data

    def answer(self, request_id):
        """The answer to this request; fails at the end of the stream."""
        while request_id not in self.answers:
            frame = self.read_frame()
            assert frame is not None, "closed before the answer"
            if frame.HasField("notice"):
                assert frame.request_id == 0
                self.notices.append(frame)
                continue
            assert frame.request_id not in self.answers, "answered twice"
            self.answers[frame.request_id] = frame
        return self.answers.pop(request_id)

    def notice(self):
        """The next notice; answers on the way are kept."""
        while not self.notices:
            frame = self.read_frame()
            assert frame is not None, "closed before the notice"
            if frame.HasField("notice"):
                self.notices.append(frame)
            else:
                self.answers[frame.request_id] = frame
        return self.notices.pop(0).notice

    def call(self, **request):
        return self.answer(self.send(**request))

    def ask_counts(self, times):
        """Sends so many requests of which each is a call to Postgres of its own; their ids."""
        return [self.send(queue_counts=pb.QueueCounts(queue="q")) for _ in range(times)]

    def open_more(self, proxy):
        """Makes its proxy have more than one data connection, all at rest: by more questions than one answers at once."""
        asked = self.ask_counts(200)
        wait_for(lambda: len(proxy.backends("data")) > 1)
        for request_id in asked:
            self.answer(request_id)

    def rest(self):
        """All frames up to the end of the stream, without the notices."""
        frames = []
        while (frame := self.read_frame()) is not None:
            (self.notices if frame.HasField("notice") else frames).append(frame)
        return frames

    def close(self):
        self.socket.close()

    # what most tests want to say

    def heartbeat(self, *jobs):
        items = [pb.HeartbeatItem(receipt=job.receipt) for job in jobs]
        return list(self.call(heartbeat=pb.Heartbeat(items=items)).heartbeat_ok.statuses)

    def enqueue(self, queue, *args, **fields):
        jobs = [pb.NewJob(queue=queue, kind="test", args=arg, **fields) for arg in args]
        return self.call(enqueue=pb.Enqueue(jobs=jobs)).enqueue_ok.results

    def claim(self, *queues, jobs=1, wait_ms=0):
        return self.call(claim=pb.Claim(queues=queues, max_jobs=jobs, wait_ms=wait_ms)).claim_ok.jobs

    def finish(self, *items):
        return self.call(finish=pb.Finish(items=items)).finish_ok.results

    def complete(self, *jobs):
        return self.finish(*[pb.FinishItem(receipt=job.receipt, complete=pb.Complete()) for job in jobs])

    def counts(self, queue):
        return self.call(queue_counts=pb.QueueCounts(queue=queue)).queue_counts_ok
