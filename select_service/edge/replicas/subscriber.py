"""EDGE: the ZMQ SUB socket of one peer, read on the event loop.

One socket per peer, so that what a peer sends, or fails to send, is counted under its name.  What
a message means is not known here; whatever arrives, reading goes on.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TypeAlias

import zmq

from indexer.sockets.curve import CurveServer
from indexer.sockets.dial import Sockets
from indexer.sockets.monitor import waiting_events
from indexer.sockets.names import Names
from indexer.sockets.options import Bounds, Socket
from indexer.sockets.readiness import has_message
from indexer.sockets.subscription import Subscription
from select_service.core.replicas.digest import DIGEST_BYTES_MAX
from select_service.core.replicas.events import FRAME_BYTES_MAX
from select_service.edge.supervised import Callbacks

MESSAGE_BYTES_MAX = max(FRAME_BYTES_MAX, DIGEST_BYTES_MAX)
"""libzmq ends the connection of a peer that sends a longer frame."""
QUEUED_MESSAGES_MAX = 64
"""Messages libzmq keeps while the loop is busy: 80 MiB of the longest ones, for each peer.  What
does not fit waits in the buffers of the network and at the peer, which drops nothing before its own
queue is full."""
DRAIN_MESSAGES_MAX = 64
DRAIN_BYTES_MAX = 256 * 1024
DRAIN_S_MAX = 0.002
"""What is taken from one peer before requests and other peers have their turn; the last message may
exceed it."""
FAILED_PAUSE_S = 0.1
"""Before a socket that could not be read is tried again."""

Receive: TypeAlias = Callable[[bytes], None]

_CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_FAILED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
_NOBLOCK = int(zmq.NOBLOCK)
_RCVMORE = int(zmq.RCVMORE)


class ReplicaSubscriber:
    """frames counts messages, dropped those that have not the right form, by reason."""

    def __init__(
        self,
        endpoint: str,
        receivers: Mapping[bytes, Receive],
        callbacks: Callbacks,
        names: Names,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """receivers: topic -> who is given the payload; what it raises is counted and told of.

        names:    where the host of the endpoint is looked up
        is_ready: may a message be taken in this turn?  Asked in each until it is so, even if there
            is none
        """
        self.endpoint = endpoint
        self.server: CurveServer | None = None
        """Who has to answer there; to be set before `connect`.  None: plain."""
        self.connected = False
        self.frames = 0
        self.dropped: Counter[str] = Counter()
        self._receivers = {
            topic: callbacks.supervised("replica_message", receive)
            for topic, receive in receivers.items()
        }
        self._drain = callbacks.supervised("replica_subscriber", self._take_some)
        self._dialled = callbacks.supervised("replica_subscriber", _run)
        self._names, self._is_ready = names, is_ready
        self._calls: deque[Callable[[], None]] = deque()
        self._subscription: Subscription | None = None
        self._in_surplus = False
        self._goes_on = False
        """In the next turn, whatever the descriptor tells."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def connect(self, context: "zmq.Context[Socket]") -> None:
        """The peer may be absent.  Raises zmq.ZMQError for an address libzmq refuses."""
        self._subscription = Subscription(
            Sockets(context, self._names, self._call, "replica", self.server),
            self.endpoint,
            Bounds(QUEUED_MESSAGES_MAX, MESSAGE_BYTES_MAX),
            topics=self._receivers,
            events=_CONNECTED | _FAILED,
        )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read from now on, if it is connected."""
        self._loop = loop
        if self._subscription is None:
            return
        loop.call_soon(self._take_calls)
        loop.add_reader(self._subscription.socket.FD, self._drain)
        loop.call_soon(self._drain)  # connecting may have swallowed a change of state

    def connect_anew(self, context: "zmq.Context[Socket]") -> None:
        """After a breach of the protocol, such as a message that is too long, libzmq itself does
        not try again."""
        self.close()
        with contextlib.suppress(zmq.ZMQError):  # of sockets there may be none left now
            self.connect(context)
            if self._loop is not None:
                self.start(self._loop)

    def close(self) -> None:
        """Nothing is received any more, not even what has arrived already."""
        if self._subscription is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._subscription.socket.FD)
        self._subscription.close()
        self._subscription = None
        self.connected = self._in_surplus = False

    def _call(self, call: Callable[[], None]) -> None:
        """Have it called on the event loop, once there is one; on any thread."""
        self._calls.append(call)
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._take_calls)

    def _take_calls(self) -> None:
        while self._calls:
            self._dialled(self._calls.popleft())

    @property
    def refusal(self) -> str | None:
        """Why the peer's name leads to no address that may be connected to; None: nothing is known
        against it."""
        return None if self._subscription is None else self._subscription.dial.refusal

    def look_at_connection(self) -> None:
        """Bring `connected` up to date."""
        if self._subscription is None:
            return
        for event, _ in waiting_events(self._subscription.monitor):
            self.connected = event == _CONNECTED
            if self.connected:
                self._subscription.dial.connected()
            else:
                self._subscription.dial.failed()

    def _take_some(self) -> None:
        """The descriptor tells of changes only, so what is left must be asked for."""
        assert self._loop is not None
        try:
            leaves_some = self._leaves_some()
        except Exception:
            self._loop.call_later(FAILED_PAUSE_S, self._drain)
            raise
        if leaves_some and not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self._drain()

    def _leaves_some(self) -> bool:
        """Take messages until the turn is over.  False: there are no more, and nothing waits."""
        size, until = 0, monotonic() + DRAIN_S_MAX
        for _ in range(DRAIN_MESSAGES_MAX):
            if not self._is_ready():
                break
            if self._subscription is None or not has_message(self._subscription.socket):
                return False
            if self._in_surplus:
                self._in_surplus = _skip_frame(self._subscription.socket)
                continue
            size += self._take(self._subscription.socket)
            if size > DRAIN_BYTES_MAX or monotonic() > until:
                break
        return True

    def _take(self, socket: Socket) -> int:
        """Bytes of the payload."""
        self.frames += 1
        topic = socket.recv(_NOBLOCK)
        if not socket.getsockopt(_RCVMORE):
            self.dropped["frames"] += 1
            return 0
        payload = socket.recv(_NOBLOCK)
        receive = self._receivers.get(topic)
        if socket.getsockopt(_RCVMORE):
            self._in_surplus = True
            self.dropped["frames"] += 1
        elif receive is None:
            self.dropped["topic"] += 1
        else:
            receive(payload)
        return len(payload)


def _run(call: Callable[[], None]) -> None:
    call()


def _skip_frame(socket: Socket) -> bool:
    """Read a frame of a message that has too many.  Returns whether another follows."""
    socket.recv(_NOBLOCK)
    return bool(socket.getsockopt(_RCVMORE))
