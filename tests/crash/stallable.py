"""A relay between clients and a proxy whose connections can be cut, or fall silent without being closed."""
import contextlib
import socket
import threading

from relaying import READ_BYTES, accept_pairs, shut


class Stallable:
    """Listens at `path`, leads to the socket `target`. stall() mutes every connection there is, for good: nothing passes, either way,
    and neither end sees the other's close. Later connections pass."""

    def __init__(self, path, target):
        self.path, self.target = str(path), target
        self.links = []  # (muted, client's end, proxy's end)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(16)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        for client, server in accept_pairs(self.listener, self.target):
            link = (threading.Event(), client, server)
            self.links.append(link)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(link, source, target), daemon=True).start()

    @staticmethod
    def pump(link, source, target):
        muted = link[0]
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                if not muted.is_set():
                    target.sendall(data)
        if not muted.is_set():
            shut(*link[1:])

    def stall(self):
        for muted, *_ in self.links:
            muted.set()

    def cut(self):
        """Closes every connection there is."""
        for _, *ends in self.links:
            shut(*ends)

    def close(self):
        ends = [self.listener, *(end for link in self.links for end in link[1:])]
        shut(*ends)
        for end in ends:
            end.close()
