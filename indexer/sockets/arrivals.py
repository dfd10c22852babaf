"""EDGE: the messages of one socket, in the order in which they came.

libzmq keeps few of them, since it counts messages and not bytes.  A burst that the thread cannot
follow is read ahead instead, into a queue that is bounded in bytes for all sockets of the thread.
When that is full nothing more is read: the messages stay in the network and at the sender, which
drops what its own queue does not hold.  That shows as a gap in the numbers.
"""

from collections import deque
from time import monotonic

from indexer.sockets.inbox import MESSAGE_BYTES_MAX, Inbox, Intake, Row
from indexer.sockets.options import Bounds, Socket
from indexer.sockets.readiness import has_message

QUEUED_MESSAGES_MAX = 32
"""Kept by libzmq for each socket: half a GiB of the longest ones."""
AHEAD_BYTES_MAX = 256 * 2**20
"""Read ahead for all sockets of one thread; the last run of messages may exceed it."""
MESSAGE_COST = 512
"""Bytes that a message takes beside its frames, at most."""
AHEAD_S_MAX = 0.001
"""Reading ahead in one turn."""


def bounds() -> Bounds:
    """Of a socket that engines send to."""
    return Bounds(QUEUED_MESSAGES_MAX, MESSAGE_BYTES_MAX)


class Room:
    """What the sockets of one thread share: the inbox, and bytes for what is read ahead."""

    def __init__(self) -> None:
        self.used = 0
        self.inbox = Inbox()
        self._reader: Arrivals | None = None

    @property
    def is_full(self) -> bool:
        return self.used >= AHEAD_BYTES_MAX

    def enter(self, reader: "Arrivals") -> Inbox:
        """The inbox, for the next run of this reader; what another has there is put aside."""
        if self._reader is not None and self._reader is not reader:
            self._reader.put_aside()
        self._reader = reader
        return self.inbox


class Arrivals:
    """Belongs to one thread.  A message is a list of its frames."""

    def __init__(
        self, socket: Socket, room: Room, frames_max: int, beside: "Socket | None" = None
    ) -> None:
        """frames_max: of a longer message the first frames_max + 1 are kept

        beside: another socket, see `has_news`
        """
        self._socket = socket
        self._room = room
        self._intake: Intake | None = room.inbox.intake(socket, frames_max, beside)
        """None: closed."""
        self._ahead: deque[list[bytes]] = deque()
        self._run: deque[Row] = deque()
        """Of the messages in the inbox those that are not taken yet.  They follow those ahead."""
        self._is_dry = False
        """Nothing was left in the socket behind the last run."""
        self.has_news = False
        """Before one of the messages was received, so was something by the socket beside.  To be
        reset by whoever takes it."""

        self.is_over = False
        """What `take` returned last was the last of those that were there together."""

    @property
    def has_some(self) -> bool:
        self._is_dry = False  # who looks takes the news that something has come since
        if self._intake is None:
            return False
        return bool(self._ahead or self._run) or has_message(self._socket)

    def take(self) -> list[bytes] | None:
        """The next message; None when there is none.  Raises zmq.ZMQError.

        An empty one is none: surplus frames were skipped, and something more is there.
        """
        self.is_over = False
        if self._ahead:
            frames = self._ahead.popleft()
            self._room.used -= _cost(frames)
            return frames
        if not self._run:
            self._receive()
            if not self._run:
                return None if self._is_dry else []
        row = self._run.popleft()
        self.is_over = self._is_dry and not self._run
        return self._room.inbox.frames(row)

    def read_ahead(self) -> bool:
        """Take what has arrived out of the socket, as far as there is room and time.

        True: stopped for the time, more may be there.  Raises zmq.ZMQError.
        """
        until = monotonic() + AHEAD_S_MAX
        self.put_aside()
        while not self._room.is_full:
            self._receive()
            self.put_aside()
            if self._is_dry:
                return False
            if monotonic() >= until:
                return True
        return False

    def put_aside(self) -> None:
        """What is left of the run leaves the inbox."""
        while self._run:
            frames = self._room.inbox.frames(self._run.popleft())
            self._ahead.append(frames)
            self._room.used += _cost(frames)

    def close(self) -> None:
        """What was read ahead is forgotten, and nothing more is received: to be called before the
        socket is closed.
        """
        self._run.clear()
        self._room.used -= sum(map(_cost, self._ahead))
        self._ahead.clear()
        if self._intake is not None:
            self._intake.close()
            self._intake = None

    def _receive(self) -> None:
        """The next run, perhaps an empty one."""
        self._is_dry = True
        if self._intake is None:
            return
        self._run.extend(self._room.enter(self).received(self._intake))
        self.has_news |= self._intake.beside_is_ready
        self._is_dry = self._intake.is_dry


def _cost(frames: list[bytes]) -> int:
    return MESSAGE_COST + sum(map(len, frames))
