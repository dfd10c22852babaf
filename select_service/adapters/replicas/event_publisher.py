"""Publisher of load events to other replicas, over a ZMQ XPUB socket.

An XPUB socket shows which topics have subscribers by name.  Messages of this product alone
(digests, progress, cleared caches) are made only for subscribers of the topic: a subscriber to
everything expects only messages of Dynamo.

`offer_event` is called inside a request, so it only appends to a bounded queue; events are encoded
and sent between requests, on the same thread.  (A separate thread would compete with requests for
the interpreter lock.)  Digests use the same queue, so that a digest follows exactly the events in
the sums; so do prefill progress messages, which must not overtake the admission of the request.

The publisher never waits for a slow or absent subscriber: libzmq keeps up to
SUBSCRIBER_MESSAGES_MAX messages for each subscriber and then drops messages.  The subscriber
detects the loss by the message count in the next digest.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import zmq
import zmq.backend

from indexer.sockets.connection_events import waiting_events
from indexer.sockets.socket_poller import has_message
from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.core.replication import digest as replica_digest
from select_service.core.replication import load_events as replica_events
from select_service.core.replication import prefill_progress as replica_progress
from select_service.core.replication.cleared_caches import CLEARED_TOPIC
from select_service.core.replication.load_events import LoadEvent, LoadEventEncoder
from select_service.core.replication.session_events import SESSION_TOPIC
from select_service.core.replication.session_exchange import SESSION_DIGEST_TOPIC

REPLICA_QUEUE_EVENTS_MAX = 100_000
SUBSCRIBER_MESSAGES_MAX = 100_000
SUBSCRIPTION_BYTES_MAX = 4096
"""Maximum size of a message from a subscriber; libzmq closes the connection of a larger message.

A subscribed topic takes about 25 times the length in memory, and time of this process's thread.
"""
REBIND_DELAY_S = 0.05
"""Delay after a failed bind, in seconds: the old socket needs a moment to release the port."""
SUBSCRIPTIONS_READ_MAX = 1024
"""Messages of subscribers that are read at once; replicas send one for each topic.  With more, all
connections are closed, since libzmq would keep the messages in unbounded memory.
"""
QUIET_BIND_ATTEMPTS = 20
"""Number of failed binds before a log line, about a second; another process then owns the port."""
FLUSH_BATCHES_MAX = 4
"""Number of batches sent per event loop iteration; together about 0.2 ms."""
BATCH_EVENTS_MAX = 16
BATCH_BYTES = 32 * 1024
"""Size at which a batch is full; larger batches would only evict each other from CPU caches."""

log = logging.getLogger("select_service.replicas")

_OWN_TOPICS = frozenset(
    (
        replica_digest.DIGEST_TOPIC,
        replica_progress.PROGRESS_TOPIC,
        SESSION_DIGEST_TOPIC,
        CLEARED_TOPIC,
    )
)
"""Topics that Dynamo does not have."""
_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
# Plain ints: pyzmq looks up enum members on each call, which costs more than the call itself.
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


class _EncodedMessage(NamedTuple):
    """Encoded message other than an event."""

    topic: bytes
    payload: bytes


class _BindSettings(NamedTuple):
    """Endpoint and extra options of a socket to bind."""

    context: "zmq.Context[zmq.Socket[bytes]]"
    endpoint: str
    options: Mapping[int, Any]


class ReplicaPublisher:
    """Publisher of load events, digests and progress messages.

    offered, sent, dropped: number of events
    last_drop: reason of the last dropped event
    refused: number of connections rejected for an unknown key or a protocol other than ZMTP
    Belongs to the thread of the event loop.
    """

    def __init__(self, callbacks: GuardedCallbacks) -> None:
        self.offered = 0
        self.sent = 0
        self.dropped = 0
        self.last_drop: str | None = None
        self.digests_sent = self.progress_sent = self.sessions_sent = 0
        self.refused = 0
        self._queue: deque[LoadEvent | _EncodedMessage] = deque()
        self._encode = LoadEventEncoder().encode_event
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._connections: set[int] = set()
        self._topics: set[bytes] = set()
        """Topics with subscribers by name."""
        self._send_frame: Callable[[bytes, int], object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bound_place: _BindSettings | None = None
        self._scheduled = False
        self._attempts = 0
        """Number of consecutive failed binds."""
        self._flush_supervised = callbacks.guard_callback("replica_publisher", self._flush_queue)
        self._bind_supervised = callbacks.guard_callback("replica_publisher", self._bind_again)

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    def count_subscribers(self) -> int:
        """Return the number of open connections, each of a subscribed replica."""
        if self._monitor is not None:
            for event, descriptor in waiting_events(self._monitor):
                if event == zmq.EVENT_ACCEPTED:
                    self._connections.add(descriptor)
                elif event & _HANDSHAKE_FAILED:
                    self.refused += 1
                else:
                    self._connections.discard(descriptor)
        return len(self._connections)

    def is_subscribed(self, topic: bytes) -> bool:
        """Return whether a topic has subscribers by name."""
        self._read_subscriptions()
        return topic in self._topics

    def _read_subscriptions(self) -> None:
        socket = self._socket
        if socket is None:
            return
        for _ in range(SUBSCRIPTIONS_READ_MAX):
            if not has_message(socket):
                return
            message = socket.recv(_NOBLOCK)
            # The first byte distinguishes begin and end of a subscription; libzmq repeats neither.
            if message[:1] == b"\x00":
                self._topics.discard(message[1:])
            elif message[1:] in _OWN_TOPICS:
                self._topics.add(message[1:])
        self._log_port(logging.WARNING, "replica connections closed", error="too many messages")
        self.rebind_socket()

    def offer_event(self, event: LoadEvent) -> None:
        """Queue an event, or drop and count it when the queue is full.  Never blocks or raises."""
        self.offered += 1
        # Dropping is safe: the next digest shows the difference and a repair fetches the rest.
        if len(self._queue) >= REPLICA_QUEUE_EVENTS_MAX:
            self._count_drop("queue is full")
            return
        self._enqueue(event)

    def offer_digest(self, payload: bytes) -> None:
        """Queue an encoded digest, or skip the digest when the queue is full: another follows."""
        if len(payload) > replica_digest.DIGEST_BYTES_MAX:
            self._count_drop(f"digest too large: {len(payload)} bytes")
        else:
            self._offer_message(_EncodedMessage(replica_digest.DIGEST_TOPIC, payload))

    def offer_progress(self, payload: bytes) -> None:
        """Queue an encoded progress message, or skip the message when the queue is full."""
        self._offer_message(_EncodedMessage(replica_progress.PROGRESS_TOPIC, payload))

    def offer_session(self, payload: bytes) -> None:
        """Queue an encoded use of a session, or drop and count it when the queue is full."""
        if len(self._queue) >= REPLICA_QUEUE_EVENTS_MAX:
            self._count_drop("queue is full")
        else:
            self._enqueue(_EncodedMessage(SESSION_TOPIC, payload))

    def offer_session_digest(self, payload: bytes) -> None:
        """Queue an encoded digest of sessions, or skip the digest when the queue is full."""
        self._offer_message(_EncodedMessage(SESSION_DIGEST_TOPIC, payload))

    def offer_clears(self, payload: bytes) -> None:
        """Queue an encoded message of cleared caches, or skip it when the queue is full."""
        self._offer_message(_EncodedMessage(CLEARED_TOPIC, payload))

    def _offer_message(self, message: _EncodedMessage) -> None:
        if len(self._queue) < REPLICA_QUEUE_EVENTS_MAX:
            self._enqueue(message)

    def bind_socket(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        options: Mapping[int, Any],
    ) -> None:
        """Bind the socket.

        options: socket options beyond the common ones
        Raises zmq.ZMQError if the port is unavailable.
        """
        self._bound_place = _BindSettings(context, endpoint, options)
        socket, self._monitor = _bind_publisher(self._bound_place)
        self._socket = socket
        # The wrapper zmq.Socket.send costs as much as the method itself.
        self._send_frame = partial(zmq.backend.Socket.send, socket)

    def rebind_socket(self) -> None:
        """Close all connections, so that every subscriber must authenticate again.

        A subscriber loses all messages until the new connection.  A port that stays unavailable is
        logged, and so is the recovery.
        """
        assert self._loop is not None
        self._close_socket()
        self._loop.call_soon(self._bind_supervised)

    def _bind_again(self) -> None:
        if self._bound_place is None or self._loop is None:
            return
        try:
            self.bind_socket(*self._bound_place)
        except zmq.ZMQError as error:
            self._attempts += 1
            if self._attempts == QUIET_BIND_ATTEMPTS:
                reason = zmq.strerror(error.errno or 0)
                self._log_port(logging.WARNING, "replica port not bound, retrying", error=reason)
            # Retried for ever: without the port, replicas would drift apart until a restart.
            self._loop.call_later(REBIND_DELAY_S, self._bind_supervised)
        else:
            if self._attempts >= QUIET_BIND_ATTEMPTS:
                self._log_port(logging.INFO, "replica port bound again")
            self._attempts = 0
            self._schedule_flush()

    def _log_port(self, level: int, message: str, **fields: str) -> None:
        assert self._bound_place is not None
        log.log(
            level, message, extra={"fields": {"endpoint": self._bound_place.endpoint, **fields}}
        )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send from now on."""
        self._loop = loop
        if self._queue:
            self._schedule_flush()

    def close(self) -> None:
        """Send queued messages without waiting, and close the socket."""
        if self._socket is not None:
            while self._queue:
                self._send_batch()
        self._close_socket()
        self._loop = None

    def _close_socket(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
        if self._monitor is not None:
            self._monitor.close()
        self._socket = self._send_frame = self._monitor = None
        self._connections.clear()
        # The new socket's subscribers subscribe again.
        self._topics.clear()

    def _count_drop(self, reason: str) -> None:
        self.dropped += 1
        self.last_drop = reason

    def _enqueue(self, message: LoadEvent | _EncodedMessage) -> None:
        self._queue.append(message)
        # One flush per iteration: many events of a request are sent together.
        if not self._scheduled and self._loop is not None:
            self._schedule_flush()

    def _schedule_flush(self) -> None:
        assert self._loop is not None
        self._scheduled = True
        self._loop.call_soon(self._flush_supervised)

    def _flush_queue(self) -> None:
        self._scheduled = False
        if self._socket is None:
            return
        try:
            for _ in range(FLUSH_BATCHES_MAX):
                if not self._queue:
                    return
                self._send_batch()
        finally:  # also after a failed batch: messages behind it are sent
            if self._queue:
                self._schedule_flush()

    def _send_batch(self) -> None:
        """Encode a few messages, then send all.  An XPUB socket never blocks the sender.

        The idle thread of libzmq must be woken up, but only once per batch.
        """
        send = self._send_frame
        assert send is not None
        for topic, payload in self._encode_batch():
            send(topic, _NOBLOCK_MORE)
            send(payload, _NOBLOCK)

    def _encode_batch(self) -> list[tuple[bytes, bytes]]:
        """Remove the next messages from the queue; return topics and payloads."""
        queue, encode, size = self._queue, self._encode, 0
        messages: list[tuple[bytes, bytes]] = []
        while queue and len(messages) < BATCH_EVENTS_MAX and size < BATCH_BYTES:
            message = queue.popleft()
            if isinstance(message, _EncodedMessage):
                messages.append(message)
                size += len(message.payload)
                self.digests_sent += message.topic == replica_digest.DIGEST_TOPIC
                self.progress_sent += message.topic == replica_progress.PROGRESS_TOPIC
                self.sessions_sent += message.topic == SESSION_TOPIC
                continue
            try:
                payload = encode(message)
            except ValueError as error:
                self._count_drop(str(error))
                continue
            size += len(payload)
            messages.append((replica_events.EVENT_TOPIC, payload))
            self.sent += 1
        return messages


def _bind_publisher(place: _BindSettings) -> "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]":
    """Return a bound socket and the socket's monitor.  Raises zmq.ZMQError."""
    socket = place.context.socket(zmq.XPUB)
    options = {
        # Closing must not wait for subscribers that do not read.
        zmq.LINGER: 0,
        zmq.SNDHWM: SUBSCRIBER_MESSAGES_MAX,
        # Limits messages from subscribers, which should be subscriptions only.
        zmq.MAXMSGSIZE: SUBSCRIPTION_BYTES_MAX,
        zmq.TCP_KEEPALIVE: 1,
        zmq.HEARTBEAT_IVL: 5000,
        zmq.HEARTBEAT_TIMEOUT: 15000,
        zmq.IPV6: int(place.endpoint.startswith("tcp://[")),
        **place.options,
    }
    try:
        for option, value in options.items():
            socket.setsockopt(option, value)
        monitor = socket.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILED
        )
        socket.bind(place.endpoint)
    except zmq.ZMQError:
        socket.disable_monitor()
        socket.close()
        raise
    return socket, monitor
