"""A PUB socket without libzmq: nothing is queued for it, and heartbeats get no answer."""

import socket

from tests.builders.polling import PATIENCE_S

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
MORE, LONG = 1, 2
STUCK_S = 1.0
"""Time without progress after which the subscriber counts as stuck, seconds."""


class RawPublisher:
    """Publisher with one subscriber. Source: ZMTP 3.0, https://rfc.zeromq.org/spec/23."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self._rest = b""

    def accept(self):
        """Accept the subscriber; return after the subscription has arrived."""
        self._peer, _ = self._listening.accept()
        self._peer.settimeout(PATIENCE_S)
        self._peer.sendall(GREETING + READY)
        came = b""
        while not came.endswith(b"\x00\x01\x01"):
            came += self._peer.recv(4096)

    def send(self, frames):
        """Send a whole message, after the rest of a partly sent message."""
        self._peer.settimeout(PATIENCE_S)
        self._peer.sendall(self._rest + message(frames))
        self._rest = b""

    def offer(self, frames):
        """Return the number of accepted bytes of a message; a stuck subscriber accepts fewer."""
        left = whole = memoryview(message(frames))
        self._peer.settimeout(STUCK_S)
        try:
            while left:
                left = left[self._peer.send(left) :]
        except TimeoutError:
            self._rest = bytes(left)
        return len(whole) - len(left)

    def close(self):
        self._peer.close()
        self._listening.close()


def message(frames):
    last = len(frames) - 1
    return b"".join(
        bytes([LONG | (MORE if i < last else 0)]) + len(frame).to_bytes(8, "big") + frame
        for i, frame in enumerate(frames)
    )
