"""EDGE: SUB socket of an event stream, and the state of its connection.

libzmq connects again by itself when the other side goes away.  After a breach of the protocol,
such as a message that is too long, it does not: the monitor reports the end of the connection and
no retry.  Then the same socket must be connected again, or the stream stays silent for ever.

libzmq does not report why an attempt failed, so the reason is derived from the events before the
next attempt: none at all without an address, else the end of the attempt, soon or late.
"""

import contextlib

import zmq

from indexer.events.message_batch_layout import LIVE_FRAMES
from indexer.sockets import read_ahead
from indexer.sockets.connection_events import waiting_events
from indexer.sockets.read_ahead import ReadAheadQueue, ReceiveBudget
from indexer.sockets.socket_poller import has_message
from indexer.sockets.subscription import Subscription
from indexer.sockets.zmq_connector import SocketSettings

_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_GOES_ON = zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_ATTEMPT = zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CLOSED

REFUSED_S_MAX = 1.0
"""Seconds below which a failed attempt counts as refused."""
NOT_FOUND = "host name not found, or no route to the host"
REFUSED = "connection refused"
TIMED_OUT = "connection timed out"
LOST = "connection lost"
NO_ZMQ = "the other side does not speak ZMQ, or violated the protocol"


class LiveConnection:
    """Connection of a thread.  `socket` is the same until `close`."""

    def __init__(
        self, sockets: SocketSettings, endpoint: str, budget: ReceiveBudget, now: float
    ) -> None:
        """Open the socket and connect; the engine may be absent.

        Raises zmq.ZMQError for an address libzmq refuses.
        budget: budget for reading ahead
        """
        self.is_cut_off = False
        self.lost_at: float | None = now
        """Time when the connection was lost, or first tried; None while connected."""
        self._error: str | None = None
        self._attempted_at: float | None = None
        self._ended_at: float | None = None
        self._subscription = Subscription(
            sockets,
            endpoint,
            read_ahead.engine_queue_limits(),
            topics=[b""],
            events=_ENDED | _GOES_ON | _ATTEMPT,
        )
        self._dial = self._subscription.connector
        self.socket = self._subscription.socket
        self.monitor = self._subscription.monitor
        self.queue = ReadAheadQueue(self.socket, budget, LIVE_FRAMES, beside=self.monitor)

    def take_events(self, now: float) -> list[bool]:
        """Take events of the connection; return True for each connection made, False for each
        one lost.

        The number is bounded; `has_news` is True if more are there.
        """
        changes = []
        self.queue.has_news = False
        for event, _ in waiting_events(self.monitor):
            if event & (_ENDED | _GOES_ON):
                self.is_cut_off = bool(event & _ENDED)
            was_connected = self.is_connected
            self._take_event(event, now)
            # A second success without an end in between is reported, too: batches may have been
            # missed.
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED or was_connected != self.is_connected:
                changes.append(self.is_connected)
        return changes

    @property
    def is_connected(self) -> bool:
        """True while connected."""
        return self.lost_at is None

    @property
    def error(self) -> str | None:
        """Reason of a missing connection; None while connected, or if unknown yet."""
        if self._dial.refusal is not None:
            return self._dial.refusal
        return NOT_FOUND if self._dial.error is not None else self._error

    @property
    def has_news(self) -> bool:
        return has_message(self.monitor)

    def _take_event(self, event: int, now: float) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.lost_at, self._error = None, None
            self._dial.on_connected()
            self._attempted_at = None
        elif event == zmq.EVENT_DISCONNECTED:
            self._mark_lost(now)
            self._error = self._error or LOST
            self._dial.on_failed()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._mark_lost(now)
            self._error = NO_ZMQ
        elif event == zmq.EVENT_CONNECT_DELAYED:
            self._attempted_at, self._ended_at = now, None
        elif event == zmq.EVENT_CLOSED:
            self._ended_at = now
        else:
            self._take_retry()

    def _mark_lost(self, now: float) -> None:
        if self.lost_at is None:
            self.lost_at = now

    def _take_retry(self) -> None:
        """Take the announcement of another attempt: an earlier attempt has failed."""
        if self._attempted_at is None:
            self._error = self._error or NOT_FOUND
        elif self._ended_at is not None:
            took = self._ended_at - self._attempted_at
            self._error = REFUSED if took < REFUSED_S_MAX else TIMED_OUT
        self._attempted_at = self._ended_at = None
        self._dial.on_failed()

    def reconnect(self) -> None:
        """Connect again; arrived messages stay.  On failure the connection stays cut off."""
        with contextlib.suppress(zmq.ZMQError):
            self._dial.reconnect()
            self.is_cut_off = False

    def close(self) -> None:
        self.queue.close()
        self._subscription.close()
