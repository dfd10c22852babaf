"""EDGE: the SUB socket of one event stream, and what has become of its connection.

libzmq connects again by itself when the other side goes away.  After a breach of the protocol, such
as a message that is too long, it does not: it tells of the end of the connection and not of another
try.  Then the same socket must be connected anew, or nothing is ever heard from it again.

Nor does it say why an attempt failed, so that is told from what comes before the next attempt:
nothing at all when there was no address to try, else the end of the attempt, soon or late.
"""

import contextlib

import zmq

from indexer.events.run_layout import LIVE_FRAMES
from indexer.sockets import arrivals
from indexer.sockets.arrivals import Arrivals, Room
from indexer.sockets.dial import Sockets
from indexer.sockets.monitor import waiting_events
from indexer.sockets.readiness import has_message
from indexer.sockets.subscription import Subscription

_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_GOES_ON = zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED
_ATTEMPT = zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CLOSED

REFUSED_S_MAX = 1.0
"""An attempt that ends sooner was refused."""
NOT_FOUND = "name not found, or no way to it"
REFUSED = "connection refused"
TIMED_OUT = "connection timed out"
LOST = "connection lost"
NO_ZMQ = "what answers there does not speak ZMQ, or broke its protocol"


class LiveConnection:
    """Belongs to one thread.  `socket` is the same from the beginning to `close`."""

    def __init__(self, sockets: Sockets, endpoint: str, room: Room, now: float) -> None:
        """The engine may be absent.  Raises zmq.ZMQError for an address libzmq refuses.

        room: for what is read ahead
        """
        self.is_cut_off = False
        self.lost_at: float | None = now
        """When the connection was lost, or first tried; None while there is one."""
        self._error: str | None = None
        self._attempted_at: float | None = None
        self._ended_at: float | None = None
        self._subscription = Subscription(
            sockets,
            endpoint,
            arrivals.bounds(),
            topics=[b""],
            events=_ENDED | _GOES_ON | _ATTEMPT,
        )
        self._dial = self._subscription.dial
        self.socket = self._subscription.socket
        self.monitor = self._subscription.monitor
        self.arrivals = Arrivals(self.socket, room, LIVE_FRAMES, beside=self.monitor)

    def look(self, now: float) -> list[bool]:
        """Take what is told of the connection: True each time it was made, False when it was lost.

        At most so much at once; `has_news` says whether there is more.
        """
        changes = []
        self.arrivals.has_news = False
        for event, _ in waiting_events(self.monitor):
            if event & (_ENDED | _GOES_ON):
                self.is_cut_off = bool(event & _ENDED)
            was_connected = self.is_connected
            self._take(event, now)
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED or was_connected != self.is_connected:
                changes.append(self.is_connected)
        return changes

    @property
    def is_connected(self) -> bool:
        """Return whether the connection stands."""
        return self.lost_at is None

    @property
    def error(self) -> str | None:
        """Why there is no connection; None while there is one, or nothing is known yet."""
        if self._dial.refusal is not None:
            return self._dial.refusal
        return NOT_FOUND if self._dial.error is not None else self._error

    @property
    def has_news(self) -> bool:
        return has_message(self.monitor)

    def _take(self, event: int, now: float) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.lost_at, self._error = None, None
            self._dial.connected()
            self._attempted_at = None
        elif event == zmq.EVENT_DISCONNECTED:
            self._lose(now)
            self._error = self._error or LOST
            self._dial.failed()
        elif event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            self._lose(now)
            self._error = NO_ZMQ
        elif event == zmq.EVENT_CONNECT_DELAYED:
            self._attempted_at, self._ended_at = now, None
        elif event == zmq.EVENT_CLOSED:
            self._ended_at = now
        else:
            self._take_retry()

    def _lose(self, now: float) -> None:
        if self.lost_at is None:
            self.lost_at = now

    def _take_retry(self) -> None:
        """Another attempt is announced: the last one, if there was one, has failed."""
        if self._attempted_at is None:
            self._error = self._error or NOT_FOUND
        elif self._ended_at is not None:
            took = self._ended_at - self._attempted_at
            self._error = REFUSED if took < REFUSED_S_MAX else TIMED_OUT
        self._attempted_at = self._ended_at = None
        self._dial.failed()

    def connect_anew(self) -> None:
        """What has arrived stays.  It may fail for want of means; then it is cut off as before."""
        with contextlib.suppress(zmq.ZMQError):
            self._dial.anew()
            self.is_cut_off = False

    def close(self) -> None:
        self.arrivals.close()
        self._subscription.close()
