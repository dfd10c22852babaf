"""EDGE: tells the other replicas what happened here, over a ZMQ PUB socket.

`offer` is called inside a request, so it only appends to a bounded queue; the bytes are made and
sent between requests, on the same thread.  (A thread of its own would have to take the interpreter
away from the requests.)  A digest goes through the same queue, so that it stands in the stream
exactly behind the events that it sums up; and so does the progress of prefills, which must not
overtake their admission.

Nothing waits for a slow or absent subscriber: libzmq keeps up to SUBSCRIBER_MESSAGES_MAX messages
for each and then drops that subscriber's, which it notices by the count in the next digest.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import zmq
import zmq.backend

from indexer.sockets.monitor import waiting_events
from select_service.core.replicas import digest as replica_digest
from select_service.core.replicas import events as replica_events
from select_service.core.replicas import progress as replica_progress
from select_service.core.replicas.events import EventEncoder, LoadEvent
from select_service.edge.supervised import Callbacks

REPLICA_QUEUE_EVENTS_MAX = 100_000
SUBSCRIBER_MESSAGES_MAX = 100_000
SUBSCRIPTION_BYTES_MAX = 4096
"""libzmq ends the connection of a subscriber that sends more: a topic takes memory, about 25 times
its length, and time of our own thread."""
BIND_ANEW_S = 0.05
"""After an attempt that failed: the old socket takes a moment to leave the port."""
ATTEMPTS_UNTOLD = 20
"""A second.  Whoever has the port then is another one, as whoever opens it between the two."""
FLUSH_BATCHES_MAX = 4
"""Sent before requests have their turn again; together about a fifth of a millisecond."""
BATCH_EVENTS_MAX = 16
BATCH_BYTES = 32 * 1024
"""A batch is full when it has so many; more would only push each other out of the caches."""

log = logging.getLogger("select_service.replicas")

_HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
# Plain ints: pyzmq looks up enum members on each call, which costs more than the call itself.
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


class _Encoded(NamedTuple):
    """A message that is no event."""

    topic: bytes
    payload: bytes


class _Place(NamedTuple):
    """Where a socket is bound, and with which further options."""

    context: "zmq.Context[zmq.Socket[bytes]]"
    endpoint: str
    options: Mapping[int, Any]


class ReplicaPublisher:
    """offered, sent and dropped count events; last_drop: why the last of those was dropped.

    refused counts connections that did not become subscribers: of a stranger, or not of ZMTP.

    Belongs to the thread of the event loop.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self.offered = 0
        self.sent = 0
        self.dropped = 0
        self.last_drop: str | None = None
        self.digests_sent = self.progress_sent = 0
        self.refused = 0
        self._queue: deque[LoadEvent | _Encoded] = deque()
        self._encode = EventEncoder().encode
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._connections: set[int] = set()
        self._send_frame: Callable[[bytes, int], object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._place: _Place | None = None
        self._scheduled = False
        self._attempts = 0
        """To bind anew, that failed one after the other."""
        self._flush_supervised = callbacks.supervised("replica_publisher", self._flush)
        self._bind_supervised = callbacks.supervised("replica_publisher", self._bind_again)

    @property
    def queued(self) -> int:
        return len(self._queue)

    def subscribers(self) -> int:
        """Connections that are open now: one per replica that listens."""
        if self._monitor is not None:
            for event, descriptor in waiting_events(self._monitor):
                if event == zmq.EVENT_ACCEPTED:
                    self._connections.add(descriptor)
                elif event & _HANDSHAKE_FAILED:
                    self.refused += 1
                else:
                    self._connections.discard(descriptor)
        return len(self._connections)

    def offer(self, event: LoadEvent) -> None:
        """Queue an event, or drop and count it when the queue is full.  Never blocks or raises."""
        self.offered += 1
        if len(self._queue) >= REPLICA_QUEUE_EVENTS_MAX:
            self._drop("the queue is full")
            return
        self._put(event)

    def offer_digest(self, payload: bytes) -> None:
        """Queue an encoded digest.  One that finds no room is no loss: another one follows."""
        if len(payload) > replica_digest.DIGEST_BYTES_MAX:
            self._drop(f"a digest of {len(payload)} bytes")
        else:
            self._offer(_Encoded(replica_digest.TOPIC, payload))

    def offer_progress(self, payload: bytes) -> None:
        """Queue an encoded message of progress, or leave it out when the queue is full."""
        self._offer(_Encoded(replica_progress.TOPIC, payload))

    def _offer(self, message: _Encoded) -> None:
        if len(self._queue) < REPLICA_QUEUE_EVENTS_MAX:
            self._put(message)

    def bind(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        options: Mapping[int, Any],
    ) -> None:
        """options: besides those of every publisher.  Raises zmq.ZMQError without the port."""
        self._place = _Place(context, endpoint, options)
        socket, self._monitor = _bound(self._place)
        self._socket = socket
        # What zmq.Socket.send puts around this method costs as much as the method itself.
        self._send_frame = partial(zmq.backend.Socket.send, socket)

    def bind_anew(self) -> None:
        """End all connections, so that everybody has to come in again.

        What is not sent yet is lost to them, as is what is sent until they are back.  Where the
        port is not free for long, the log says so, and when it is open again.
        """
        assert self._loop is not None
        self._leave()
        self._loop.call_soon(self._bind_supervised)

    def _bind_again(self) -> None:
        if self._place is None or self._loop is None:
            return
        try:
            self.bind(*self._place)
        except zmq.ZMQError as error:
            self._attempts += 1
            if self._attempts == ATTEMPTS_UNTOLD:
                reason = zmq.strerror(error.errno or 0)
                self._tell(logging.WARNING, "replica port not open, trying again", error=reason)
            self._loop.call_later(BIND_ANEW_S, self._bind_supervised)
        else:
            if self._attempts >= ATTEMPTS_UNTOLD:
                self._tell(logging.INFO, "replica port is open again")
            self._attempts = 0
            self._schedule()

    def _tell(self, level: int, message: str, **fields: str) -> None:
        assert self._place is not None
        log.log(level, message, extra={"fields": {"endpoint": self._place.endpoint, **fields}})

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send from now on."""
        self._loop = loop
        if self._queue:
            self._schedule()

    def close(self) -> None:
        """What is still queued is sent if that takes no waiting."""
        if self._socket is not None:
            while self._queue:
                self._send_batch()
        self._leave()
        self._loop = None

    def _leave(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
        if self._monitor is not None:
            self._monitor.close()
        self._socket = self._send_frame = self._monitor = None
        self._connections.clear()

    def _drop(self, reason: str) -> None:
        self.dropped += 1
        self.last_drop = reason

    def _put(self, message: LoadEvent | _Encoded) -> None:
        self._queue.append(message)
        if not self._scheduled and self._loop is not None:
            self._schedule()

    def _schedule(self) -> None:
        assert self._loop is not None
        self._scheduled = True
        self._loop.call_soon(self._flush_supervised)

    def _flush(self) -> None:
        self._scheduled = False
        if self._socket is None:
            return
        try:
            for _ in range(FLUSH_BATCHES_MAX):
                if not self._queue:
                    return
                self._send_batch()
        finally:  # also when a batch failed: what waits behind it is sent
            if self._queue:
                self._schedule()

    def _send_batch(self) -> None:
        """Encode a few messages, then send them.  A PUB socket never lets its sender wait.

        The thread of libzmq has to be woken when it has nothing to do; several messages at once
        are woken for once.
        """
        send = self._send_frame
        assert send is not None
        for topic, payload in self._encoded():
            send(topic, _NOBLOCK_MORE)
            send(payload, _NOBLOCK)

    def _encoded(self) -> list[tuple[bytes, bytes]]:
        """Topic and payload of the next messages, which leave the queue."""
        queue, encode, size = self._queue, self._encode, 0
        messages: list[tuple[bytes, bytes]] = []
        while queue and len(messages) < BATCH_EVENTS_MAX and size < BATCH_BYTES:
            message = queue.popleft()
            if isinstance(message, _Encoded):
                messages.append(message)
                size += len(message.payload)
                is_digest = message.topic == replica_digest.TOPIC
                self.digests_sent += is_digest
                self.progress_sent += not is_digest
                continue
            try:
                payload = encode(message)
            except ValueError as error:
                self._drop(str(error))
                continue
            size += len(payload)
            messages.append((replica_events.TOPIC, payload))
            self.sent += 1
        return messages


def _bound(place: _Place) -> "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]":
    """A publishing socket and its monitor.  Raises zmq.ZMQError."""
    socket = place.context.socket(zmq.PUB)
    options = {
        zmq.LINGER: 0,
        zmq.SNDHWM: SUBSCRIBER_MESSAGES_MAX,
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
