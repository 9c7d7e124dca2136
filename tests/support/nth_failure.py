"""Makes the Nth call of a running program fail: what steers the library of tests/support/nth_failure.c."""
import errno
import mmap
import struct

ALLOCATION, SEND = 1, 2
SHORT = 0               # of a send: no error, but only one byte is taken
SEND_FAILURES = {"reset": errno.ECONNRESET, "pipe": errno.EPIPE, "again": errno.EAGAIN, "short": SHORT}


class NthFailure:
    """`env` goes to the program; then `arm` as often as one likes."""

    LAYOUT = struct.Struct("=IIqQ")

    def __init__(self, build, folder):
        path = folder / "nth"
        path.write_bytes(bytes(self.LAYOUT.size))
        with open(path, "r+b") as file:
            self.plan = mmap.mmap(file.fileno(), self.LAYOUT.size)
        self.env = {"LD_PRELOAD": str(build / "tests/support/libnth_failure.so"), "AWA_NTH_FILE": str(path)}

    def arm(self, target, number, failure=0):
        """The call that fails is the `number`th from now."""
        self.disarm()
        struct.pack_into("=I", self.plan, 4, failure)
        struct.pack_into("=q", self.plan, 8, number)
        struct.pack_into("=I", self.plan, 0, target)

    def disarm(self):
        """Returns how often it has struck since it was made."""
        struct.pack_into("=I", self.plan, 0, 0)
        return struct.unpack_from("=Q", self.plan, 16)[0]

    def left(self):
        return struct.unpack_from("=q", self.plan, 8)[0]
