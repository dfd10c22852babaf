"""EDGE: messages of a socket, in order of arrival.

libzmq keeps few messages, since it counts messages and not bytes.  A burst too fast for the thread
is read ahead instead, into a queue bounded in bytes for all sockets of the thread.  When the queue
is full, reading stops: the messages stay in the network and at the sender, which drops messages at
a full queue.  The loss shows as a gap in the numbers.
"""

from collections import deque
from time import monotonic

from indexer.events.batch_scratch import BatchScratch
from indexer.events.message_batch import MessageBatch
from indexer.sockets.batch_receiver import MESSAGE_BYTES_MAX, ReceiveBuffer, SocketReceiver
from indexer.sockets.socket_options import QueueLimits, Socket
from indexer.sockets.socket_poller import has_message

QUEUED_MESSAGES_MAX = 32
"""Messages kept by libzmq for each socket: half a GiB of the longest ones."""
AHEAD_BYTES_MAX = 256 * 2**20
"""Limit of bytes read ahead for all sockets of a thread, which two runs of messages may exceed.
Beyond it messages are received one by one.
"""
RUN_COST = 1024
"""Largest memory of a run besides the messages, in bytes."""
AHEAD_S_MAX = 0.001
"""Seconds of reading ahead per turn."""


def engine_queue_limits() -> QueueLimits:
    """Return the limits of a socket that receives from engines."""
    return QueueLimits(QUEUED_MESSAGES_MAX, MESSAGE_BYTES_MAX)


class ReceiveBudget:
    """Resources shared by the sockets of a thread: inbox, scratch memory, bytes for reading
    ahead.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self.buffer, self.scratch = ReceiveBuffer(), BatchScratch()
        self._reader: ReadAheadQueue | None = None
        # Counters restart with each turn, since the batching delay works with rates per turn.
        self._received = self._of_reader = self._of_one = 0

    def claim_buffer(self, reader: "ReadAheadQueue") -> ReceiveBuffer:
        """Return the inbox for the next run of this reader; copy the unread run of another
        reader.
        """
        if self._reader is not None and self._reader is not reader:
            self._reader.copy_rest()
            self._of_reader = 0
        self._reader = reader
        return self.buffer

    def count_messages(self, messages: int) -> None:
        """Count messages received by the present reader."""
        self._received += messages
        self._of_reader += messages
        self._of_one = max(self._of_one, self._of_reader)

    def take_counts(self) -> tuple[int, int]:
        """Return the messages since the last call: of all sockets, and of the busiest one."""
        tally = self._received, self._of_one
        self._received = self._of_reader = self._of_one = 0
        return tally


class ReadAheadQueue:
    """Receiving side of a socket.  Belongs to one thread."""

    def __init__(
        self, socket: Socket, budget: ReceiveBudget, frames_max: int, beside: "Socket | None" = None
    ) -> None:
        """frames_max: of a longer message the first frames_max + 1 frames are kept
        beside:     another socket, see `has_news`
        """
        self._socket = socket
        self._budget = budget
        self._receiver: SocketReceiver | None = budget.buffer.make_receiver(
            socket, frames_max, beside
        )
        """Receiving side of the inbox; None after `close`."""
        self._copied: deque[tuple[MessageBatch, int]] = deque()
        """Runs read ahead, with their cost in bytes."""
        self._buffered: MessageBatch | None = None
        """Run in the inbox; its messages follow those read ahead."""
        self._is_dry = False
        """True if the socket was empty after the last run, and was not checked since."""
        self.has_news = False
        """True if the socket `beside` had a message before one of these messages was received.
        The reader of the news resets this.
        """

        self.is_drained = False
        """True if the messages taken last emptied the socket."""

    @property
    def has_messages(self) -> bool:
        self._is_dry = False  # the check consumes the notification of later messages
        if self._receiver is None:
            return False
        return bool(self._copied or self._buffered) or has_message(self._socket)

    def next_messages(self) -> MessageBatch | None:
        """Return the next messages, or None.  Raises zmq.ZMQError.

        An empty run means that surplus frames were skipped, and more is there.
        """
        if self._copied:
            return self._copied[0][0]
        if self._buffered is None or self._buffered.first == self._buffered.stop:
            self._buffered = self._receive_run()
        return self._buffered

    def mark_done(self, messages: int) -> None:
        """Mark messages of the last `run` as done."""
        run = self._copied[0][0] if self._copied else self._buffered
        self.is_drained = run is None
        if run is None:
            return
        run.first += messages
        if run.first < run.stop:
            return
        if self._copied:
            self._budget.used_bytes -= self._copied.popleft()[1]
        else:
            self._buffered, self.is_drained = None, self._is_dry

    def read_ahead(self) -> bool:
        """Take arrived messages out of the socket, as far as space and time allow.

        True means that the time is over and more may be there.  Raises zmq.ZMQError.
        """
        until = monotonic() + AHEAD_S_MAX
        self.copy_rest()
        while self._budget.used_bytes < AHEAD_BYTES_MAX:
            self._buffered = self._receive_run()
            self.copy_rest()
            if self._is_dry:
                return False
            if monotonic() >= until:
                return True
        return False

    def copy_rest(self) -> None:
        """Copy the rest of the run out of the inbox."""
        if self._buffered:
            cost = _run_cost(self._buffered)
            self._copied.append((self._buffered.copy(), cost))
            self._budget.used_bytes += cost
        self._buffered = None

    def close(self) -> None:
        """Forget messages read ahead and stop receiving.  Call this before closing the socket."""
        self._buffered = None
        self._budget.used_bytes -= sum(cost for _, cost in self._copied)
        self._copied.clear()
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def _receive_run(self) -> MessageBatch | None:
        """Receive the next run; None if there was nothing."""
        self._is_dry = True
        if self._receiver is None:
            return None
        is_full = self._budget.used_bytes >= AHEAD_BYTES_MAX
        inbox = self._budget.claim_buffer(self)
        run, self._is_dry, has_news = inbox.receive(self._receiver, one=is_full)
        self.has_news |= has_news
        self._budget.count_messages(run.stop)
        return run if run.stop or not self._is_dry else None


def _run_cost(run: MessageBatch) -> int:
    return RUN_COST + run.nbytes
