"""EDGE: the messages of one socket, in the order in which they came.

libzmq keeps few of them, since it counts messages and not bytes.  A burst that the thread cannot
follow is read ahead instead, into a queue that is bounded in bytes for all sockets of the thread.
When that is full nothing more is read: the messages stay in the network and at the sender, which
drops what its own queue does not hold.  That shows as a gap in the numbers.
"""

from collections import deque
from time import monotonic

import zmq

from indexer.events.kv_events import PAYLOAD_BYTES_MAX
from indexer.sockets.options import Bounds, Socket
from indexer.sockets.readiness import has_message

QUEUED_MESSAGES_MAX = 32
"""Kept by libzmq for each socket: half a GiB of the longest ones."""
MESSAGE_BYTES_MAX = PAYLOAD_BYTES_MAX
"""libzmq ends the connection of a peer that sends a longer frame."""
AHEAD_BYTES_MAX = 256 * 2**20
"""Read ahead for all sockets of one thread; the last message may exceed it."""
MESSAGE_COST = 512
"""Bytes that a message takes beside its frames, at most."""
AHEAD_S_MAX = 0.001
"""Reading ahead in one turn."""
SKIPPED_FRAMES_MAX = 500
"""Of a message that has too many, at once."""


def bounds() -> Bounds:
    """Of a socket that engines send to."""
    return Bounds(QUEUED_MESSAGES_MAX, MESSAGE_BYTES_MAX)


class Room:
    """What all sockets of one thread have read ahead, in bytes."""

    def __init__(self) -> None:
        self.used = 0

    @property
    def is_full(self) -> bool:
        return self.used >= AHEAD_BYTES_MAX


class Arrivals:
    """Belongs to one thread.  A message is a list of its frames."""

    def __init__(self, socket: Socket, room: Room, frames_max: int) -> None:
        """frames_max: of a longer message the first frames_max + 1 are kept"""
        self._socket = socket
        self._room = room
        self._frames_max = frames_max
        self._ahead: deque[list[bytes]] = deque()
        self._in_surplus = False
        """What comes next are frames of a message that has too many."""

    @property
    def has_some(self) -> bool:
        return bool(self._ahead) or has_message(self._socket)

    def take(self) -> list[bytes] | None:
        """The next message; None when there is none.  Raises zmq.ZMQError.

        An empty one is none: surplus frames were skipped, and something more is there.
        """
        if self._ahead:
            frames = self._ahead.popleft()
            self._room.used -= _cost(frames)
            return frames
        return self._receive() if has_message(self._socket) else None

    def read_ahead(self) -> bool:
        """Take what has arrived out of the socket, as far as there is room and time.

        True: stopped for the time, more may be there.  Raises zmq.ZMQError.
        """
        until = monotonic() + AHEAD_S_MAX
        while not self._room.is_full and has_message(self._socket):
            frames = self._receive()
            if frames:
                self._ahead.append(frames)
                self._room.used += _cost(frames)
            if monotonic() >= until:
                return True
        return False

    def clear(self) -> None:
        """What was read ahead is forgotten."""
        self._room.used -= sum(map(_cost, self._ahead))
        self._ahead.clear()

    def _receive(self) -> list[bytes]:
        """The first frames of the message that waits, or none of them if it is a rest."""
        if self._in_surplus:
            self._skip()
            return []
        frames: list[bytes] = []
        more = True
        while more and len(frames) <= self._frames_max:
            # Frame objects know whether another follows; asking the socket costs one more call.
            frame: zmq.Frame = self._socket.recv(copy=False)
            frames.append(frame.bytes)
            more = frame.more
        self._in_surplus = more
        return frames

    def _skip(self) -> None:
        for _ in range(SKIPPED_FRAMES_MAX):
            if not self._socket.recv(copy=False).more:
                self._in_surplus = False
                return


def _cost(frames: list[bytes]) -> int:
    return MESSAGE_COST + sum(map(len, frames))
