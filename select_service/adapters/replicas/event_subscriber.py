"""ZMQ SUB socket of a peer, read on the event loop.

Each peer has its own socket, so that its messages and losses are counted separately.  This module
does not interpret messages; reading continues whatever arrives.
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TypeAlias

import zmq

from indexer.sockets.connection_events import waiting_events
from indexer.sockets.curve_keypairs import CurveServerKeys
from indexer.sockets.dns_resolver import Resolver
from indexer.sockets.socket_options import QueueLimits, Socket
from indexer.sockets.socket_poller import has_message
from indexer.sockets.subscription import Subscription
from indexer.sockets.zmq_connector import SocketSettings
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.core.replication.digest import DIGEST_BYTES_MAX
from select_service.core.replication.load_events import FRAME_BYTES_MAX

MESSAGE_BYTES_MAX = max(FRAME_BYTES_MAX, DIGEST_BYTES_MAX)
"""Maximum frame size; libzmq closes the connection of a peer that sends a longer frame."""
QUEUED_MESSAGES_MAX = 64
"""Number of messages that libzmq queues per peer while the loop is busy, at most 80 MiB.

Further messages wait in network buffers and at the peer, which drops nothing before its own queue
is full.
"""
DRAIN_MESSAGES_MAX = 64
DRAIN_BYTES_MAX = 256 * 1024
DRAIN_S_MAX = 0.002
"""Limits of the messages read from a peer per iteration; the last message may exceed them."""
FAILED_PAUSE_S = 0.1
"""Delay before a failed read is repeated, in seconds."""

Receive: TypeAlias = Callable[[bytes], None]

_CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_FAILED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED
_NOBLOCK = int(zmq.NOBLOCK)
_RCVMORE = int(zmq.RCVMORE)


class ReplicaSubscriber:
    """Subscription to a peer.

    frames: number of messages
    dropped: number of malformed messages, by reason
    """

    def __init__(
        self,
        endpoint: str,
        receivers: Mapping[bytes, Receive],
        callbacks: GuardedCallbacks,
        names: Resolver,
        is_ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """receivers: handler of payloads by topic; exceptions are counted and logged
        names: resolver for the host of the endpoint
        is_ready: function that returns whether a message may be read now; called in every iteration
            until True, even without messages
        """
        self.endpoint = endpoint
        self.server: CurveServerKeys | None = None
        """Keys of the server, to be set before `connect`; None means an unencrypted connection."""
        self.connected = False
        self.frames = 0
        self.dropped: Counter[str] = Counter()
        self._receivers = {
            topic: callbacks.guard_callback("replica_message", receive)
            for topic, receive in receivers.items()
        }
        self._drain = callbacks.guard_callback("replica_subscriber", self._read_messages)
        self._guarded_call = callbacks.guard_callback("replica_subscriber", _run_call)
        self._names, self._is_ready = names, is_ready
        self._calls: deque[Callable[[], None]] = deque()
        self._subscription: Subscription | None = None
        self._in_surplus = False
        self._is_continued = False
        """Whether reading continues in the next iteration, independent of the descriptor."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def connect(self, context: "zmq.Context[Socket]") -> None:
        """Connect; the peer may be absent.

        Raises zmq.ZMQError for an address that libzmq rejects.
        """
        self._subscription = Subscription(
            SocketSettings(context, self._names, self._call_on_loop, "replica", self.server),
            self.endpoint,
            QueueLimits(QUEUED_MESSAGES_MAX, MESSAGE_BYTES_MAX),
            topics=self._receivers,
            events=_CONNECTED | _FAILED,
        )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read from now on, if connected."""
        self._loop = loop
        if self._subscription is None:
            return
        loop.call_soon(self._take_calls)
        loop.add_reader(self._subscription.socket.FD, self._drain)
        loop.call_soon(self._drain)  # connecting may have consumed an edge

    def reconnect(self, context: "zmq.Context[Socket]") -> None:
        """Replace the socket.

        After a protocol violation, such as a message that is too long, libzmq does not reconnect by
        itself.
        """
        self.close()
        with contextlib.suppress(zmq.ZMQError):  # the socket limit may be reached
            self.connect(context)
            if self._loop is not None:
                self.start(self._loop)

    def close(self) -> None:
        """Close the socket; messages that have already arrived are discarded."""
        if self._subscription is None:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._subscription.socket.FD)
        self._subscription.close()
        self._subscription = None
        self.connected = self._in_surplus = False

    def _call_on_loop(self, call: Callable[[], None]) -> None:
        """Schedule a call on the event loop once it runs; callable from any thread."""
        self._calls.append(call)
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._take_calls)

    def _take_calls(self) -> None:
        while self._calls:
            self._guarded_call(self._calls.popleft())

    @property
    def refusal(self) -> str | None:
        """Reason why the egress policy forbids the peer's addresses.

        None if no objection is known.
        """
        return None if self._subscription is None else self._subscription.connector.refusal

    def update_connection(self) -> None:
        """Update `connected` from the monitor."""
        if self._subscription is None:
            return
        for event, _ in waiting_events(self._subscription.monitor):
            self.connected = event == _CONNECTED
            if self.connected:
                self._subscription.connector.on_connected()
            else:
                self._subscription.connector.on_failed()

    def _read_messages(self) -> None:
        """Read messages and schedule the rest: the descriptor is edge-triggered."""
        assert self._loop is not None
        try:
            leaves_some = self._read_up_to_limits()
        except Exception:
            # Without another call nothing would trigger reading again: the edge has passed.
            self._loop.call_later(FAILED_PAUSE_S, self._drain)
            raise
        if leaves_some and not self._is_continued:
            self._is_continued = True
            self._loop.call_soon(self._continue_reading)

    def _continue_reading(self) -> None:
        self._is_continued = False
        self._drain()

    def _read_up_to_limits(self) -> bool:
        """Read messages up to the limits.

        Return False when none are left and no event is held back.
        """
        size, until = 0, monotonic() + DRAIN_S_MAX
        for _ in range(DRAIN_MESSAGES_MAX):
            if not self._is_ready():
                break
            if self._subscription is None or not has_message(self._subscription.socket):
                return False
            if self._in_surplus:
                self._in_surplus = _skip_frame(self._subscription.socket)
                continue
            size += self._read_message(self._subscription.socket)
            # Three limits, since messages differ in number, size and cost.
            if size > DRAIN_BYTES_MAX or monotonic() > until:
                break
        return True

    def _read_message(self, socket: Socket) -> int:
        """Read a message; return the size of its payload in bytes."""
        self.frames += 1
        topic = socket.recv(_NOBLOCK)
        if not socket.getsockopt(_RCVMORE):
            self.dropped["frames"] += 1
            return 0
        payload = socket.recv(_NOBLOCK)
        receive = self._receivers.get(topic)
        if socket.getsockopt(_RCVMORE):
            # The rest of an oversized multipart message is skipped frame by frame, within the same
            # limits.
            self._in_surplus = True
            self.dropped["frames"] += 1
        elif receive is None:
            self.dropped["topic"] += 1
        else:
            receive(payload)
        return len(payload)


def _run_call(call: Callable[[], None]) -> None:
    call()


def _skip_frame(socket: Socket) -> bool:
    """Read a surplus frame; return whether another one follows."""
    socket.recv(_NOBLOCK)
    return bool(socket.getsockopt(_RCVMORE))
