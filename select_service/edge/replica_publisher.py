"""EDGE: tells the other replicas what happened here, over a ZMQ PUB socket.

`offer` is called inside a request, so it only appends to a bounded queue; the bytes are made and
sent between requests, on the same thread.  (A thread of its own would have to take the interpreter
away from the requests.)  A digest goes through the same queue, so that it stands in the stream
exactly behind the events that it sums up.

Nothing waits for a slow or absent subscriber: libzmq keeps up to SUBSCRIBER_MESSAGES_MAX messages
for each and then drops that subscriber's, which it notices by the count in the next digest.
"""

import asyncio
import logging
from collections import deque

import zmq

from select_service.core import replica_digest, replica_events
from select_service.core.replica_events import Event

REPLICA_QUEUE_EVENTS_MAX = 100_000
SUBSCRIBER_MESSAGES_MAX = 100_000
FLUSH_EVENTS_MAX = 64
"""Events sent before requests have their turn again; about a third of a millisecond."""

log = logging.getLogger("select_service.replicas")

# Plain ints: pyzmq looks up enum members on each call, which costs more than the call itself.
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


class ReplicaPublisher:
    """offered, sent and dropped count events.  Belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self.offered = 0
        self.sent = 0
        self.dropped = 0
        self._queue: deque[Event | bytes] = deque()
        self._socket: zmq.Socket[bytes] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False

    @property
    def queued(self) -> int:
        return len(self._queue)

    def offer(self, event: Event) -> None:
        """Queue an event, or drop and count it when the queue is full.  Never blocks or raises."""
        self.offered += 1
        if len(self._queue) >= REPLICA_QUEUE_EVENTS_MAX:
            self.dropped += 1
            return
        self._put(event)

    def offer_digest(self, payload: bytes) -> None:
        """Queue an encoded digest.  One that finds no room is no loss: another one follows."""
        if len(self._queue) < REPLICA_QUEUE_EVENTS_MAX:
            self._put(payload)

    def bind(self, context: "zmq.Context[zmq.Socket[bytes]]", port: int) -> None:
        """Raises zmq.ZMQError when the port cannot be had."""
        socket = context.socket(zmq.PUB)
        options = {
            zmq.LINGER: 0,
            zmq.SNDHWM: SUBSCRIBER_MESSAGES_MAX,
            zmq.TCP_KEEPALIVE: 1,
            zmq.HEARTBEAT_IVL: 5000,
            zmq.HEARTBEAT_TIMEOUT: 15000,
        }
        try:
            for option, value in options.items():
                socket.setsockopt(option, value)
            socket.bind(f"tcp://*:{port}")
        except zmq.ZMQError:
            socket.close()
            raise
        self._socket = socket

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Send from now on."""
        self._loop = loop
        if self._queue:
            self._schedule()

    def close(self) -> None:
        """What is still queued is sent if that takes no waiting."""
        if self._socket is not None:
            while self._queue:
                self._send(self._socket, self._queue.popleft())
            self._socket.close()
        self._socket = self._loop = None

    def _put(self, message: Event | bytes) -> None:
        self._queue.append(message)
        if not self._scheduled and self._loop is not None:
            self._schedule()

    def _schedule(self) -> None:
        assert self._loop is not None
        self._scheduled = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._socket is None:
            return
        for _ in range(min(len(self._queue), FLUSH_EVENTS_MAX)):
            self._send(self._socket, self._queue.popleft())
        if self._queue:
            self._schedule()

    def _send(self, socket: "zmq.Socket[bytes]", message: Event | bytes) -> None:
        """A PUB socket never lets its sender wait."""
        if isinstance(message, bytes):
            socket.send(replica_digest.TOPIC, _NOBLOCK_MORE)
            socket.send(message, _NOBLOCK)
            return
        try:
            payload = replica_events.encode(message)
        except ValueError as error:
            self.dropped += 1
            log.warning("event not published: %s", error)
            return
        socket.send(replica_events.TOPIC, _NOBLOCK_MORE)
        socket.send(payload, _NOBLOCK)
        self.sent += 1
