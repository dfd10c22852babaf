"""EDGE: the messages of one socket, in the order in which they came.

libzmq keeps few of them, since it counts messages and not bytes.  A burst that the thread cannot
follow is read ahead instead, into a queue that is bounded in bytes for all sockets of the thread.
When that is full nothing more is read: the messages stay in the network and at the sender, which
drops what its own queue does not hold.  That shows as a gap in the numbers.
"""

from collections import deque
from time import monotonic
from typing import NamedTuple

from indexer.events.desk import Desk
from indexer.events.run import Run
from indexer.sockets.inbox import MESSAGE_BYTES_MAX, Inbox, Intake
from indexer.sockets.options import Bounds, Socket
from indexer.sockets.readiness import has_message

QUEUED_MESSAGES_MAX = 32
"""Kept by libzmq for each socket: half a GiB of the longest ones."""
AHEAD_BYTES_MAX = 256 * 2**20
"""Read ahead for all sockets of one thread; two runs of messages may exceed it.  Beyond it messages
are received one by one."""
RUN_COST = 1024
"""Bytes that a run takes beside its messages, at most."""
AHEAD_S_MAX = 0.001
"""Reading ahead in one turn."""


def bounds() -> Bounds:
    """Of a socket that engines send to."""
    return Bounds(QUEUED_MESSAGES_MAX, MESSAGE_BYTES_MAX)


class Tally(NamedTuple):
    """What the sockets of a thread have received; of_one: that which had most"""

    messages: int
    of_one: int


class Room:
    """What the sockets of one thread share: inbox and desk, and bytes for what is read ahead."""

    def __init__(self) -> None:
        self.used = 0
        self.inbox, self.desk = Inbox(), Desk()
        self._reader: Arrivals | None = None
        self._received = self._of_reader = self._of_one = 0

    @property
    def is_full(self) -> bool:
        return self.used >= AHEAD_BYTES_MAX

    def enter(self, reader: "Arrivals") -> Inbox:
        """The inbox, for the next run of this reader; what another has there is put aside."""
        if self._reader is not None and self._reader is not reader:
            self._reader.put_aside()
            self._of_reader = 0
        self._reader = reader
        return self.inbox

    def count(self, messages: int) -> None:
        """The reader has received so many."""
        self._received += messages
        self._of_reader += messages
        self._of_one = max(self._of_one, self._of_reader)

    def take_received(self) -> Tally:
        """Since the last time."""
        tally = Tally(self._received, self._of_one)
        self._received = self._of_reader = self._of_one = 0
        return tally


class Arrivals:
    """Belongs to one thread."""

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
        self._ahead: deque[tuple[Run, int]] = deque()
        """With what they cost."""
        self._run: Run | None = None
        """In the inbox; its messages follow those ahead."""
        self._is_dry = False
        """Nothing was left in the socket behind the last run, and nobody has looked since."""
        self.has_news = False
        """Before one of the messages was received, so was something by the socket beside.  To be
        reset by whoever takes it."""

        self.is_over = False
        """What was taken last was the last of those that were there together."""

    @property
    def has_some(self) -> bool:
        self._is_dry = False  # who looks takes the news that something has come since
        if self._intake is None:
            return False
        return bool(self._ahead or self._run) or has_message(self._socket)

    def run(self) -> Run | None:
        """The next messages; None when there are none.  Raises zmq.ZMQError.

        An empty run is none: surplus frames were skipped, and something more is there.
        """
        if self._ahead:
            return self._ahead[0][0]
        if not self._run:
            self._run = self._receive()
        return self._run

    def take(self, messages: int) -> None:
        """So many of the last `run` are done with."""
        run = self._ahead[0][0] if self._ahead else self._run
        self.is_over = run is None
        if run is None:
            return
        run.first += messages
        if run:
            return
        if self._ahead:
            self._room.used -= self._ahead.popleft()[1]
        else:
            self._run, self.is_over = None, self._is_dry

    def read_ahead(self) -> bool:
        """Take what has arrived out of the socket, as far as there is room and time.

        True: stopped for the time, more may be there.  Raises zmq.ZMQError.
        """
        until = monotonic() + AHEAD_S_MAX
        self.put_aside()
        while not self._room.is_full:
            self._run = self._receive()
            self.put_aside()
            if self._is_dry:
                return False
            if monotonic() >= until:
                return True
        return False

    def put_aside(self) -> None:
        """What is left of the run leaves the inbox."""
        if self._run:
            cost = _cost(self._run)
            self._ahead.append((self._run.copied(), cost))
            self._room.used += cost
        self._run = None

    def close(self) -> None:
        """What was read ahead is forgotten, and nothing more is received: to be called before the
        socket is closed.
        """
        self._run = None
        self._room.used -= sum(cost for _, cost in self._ahead)
        self._ahead.clear()
        if self._intake is not None:
            self._intake.close()
            self._intake = None

    def _receive(self) -> Run | None:
        """The next run, if anything was there."""
        self._is_dry = True
        if self._intake is None:
            return None
        inbox = self._room.enter(self)
        run, self._is_dry, has_news = inbox.received(self._intake, one=self._room.is_full)
        self.has_news |= has_news
        self._room.count(len(run))
        return run if run or not self._is_dry else None


def _cost(run: Run) -> int:
    return RUN_COST + run.nbytes
