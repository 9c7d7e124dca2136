"""What every relay of the tests does with its sockets: pairs of a client's connection and one of its own."""
import contextlib
import socket

READ_BYTES = 1 << 16


def accept_pairs(listener, target):
    """(client, server) for each client that comes, until the listener is closed; server leads to the Unix socket `target`.
    A client whom nobody serves there is closed."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(str(target))
            except OSError:
                client.close()
                server.close()
                continue
            yield client, server


def shut(*ends):
    """Ends the connections for both sides, and wakes whoever waits in one; the descriptors stay."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
