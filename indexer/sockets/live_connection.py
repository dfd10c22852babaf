"""EDGE: the SUB socket of one event stream, and whether libzmq has given its connection up.

libzmq connects again by itself when the other side goes away.  After a breach of the protocol, such
as a message that is too long, it does not: it tells of the end of the connection and not of another
try.  Then the same socket must be connected anew, or nothing is ever heard from it again.
"""

import contextlib
from typing import TypeAlias

import zmq

from indexer.events.kv_events import PAYLOAD_BYTES_MAX
from indexer.sockets.monitor import waiting_events
from indexer.sockets.options import set_reading_options
from indexer.sockets.readiness import has_message

Socket: TypeAlias = "zmq.Socket[bytes]"

QUEUED_MESSAGES_MAX = 200_000
"""Messages libzmq keeps for a socket while its thread is busy; beyond it the engine's side drops.
Restarts and prefill bursts send tens of thousands within a fraction of a second."""
MESSAGE_BYTES_MAX = 4 * PAYLOAD_BYTES_MAX
"""libzmq ends the connection of a peer that sends more.  What is unreadable for its length alone
shall still arrive, so that it is counted and the next message is no gap."""

_ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_GOES_ON = zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_HANDSHAKE_SUCCEEDED


class LiveConnection:
    """Belongs to one thread.  `socket` is the same from the beginning to `close`."""

    def __init__(self, context: "zmq.Context[Socket]", endpoint: str) -> None:
        """The engine may be absent.  Raises zmq.ZMQError for an address libzmq refuses."""
        self.is_cut_off = False
        self._endpoint = endpoint
        self.socket = reading_socket(context, zmq.SUB, endpoint)
        try:
            self.socket.setsockopt(zmq.SUBSCRIBE, b"")
            self.monitor: Socket = self.socket.get_monitor_socket(_ENDED | _GOES_ON)
        except zmq.ZMQError:
            self.socket.close()
            raise
        try:
            self.socket.connect(endpoint)
        except zmq.ZMQError:
            self.close()
            raise

    def look(self) -> bool:
        """Bring `is_cut_off` up to date.  True: there is more to be looked at."""
        for event, _ in waiting_events(self.monitor):
            self.is_cut_off = bool(event & _ENDED)
        return has_message(self.monitor)

    def connect_anew(self) -> None:
        """What has arrived stays.  It may fail for want of means; then it is cut off as before."""
        # The old connection is gone, but its address is still known, and would not be tried again.
        with contextlib.suppress(zmq.ZMQError):
            self.socket.disconnect(self._endpoint)
        with contextlib.suppress(zmq.ZMQError):
            self.socket.connect(self._endpoint)
            self.is_cut_off = False

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close()
        self.socket.close()


def reading_socket(context: "zmq.Context[Socket]", kind: int, endpoint: str) -> Socket:
    """A socket with our options, to be connected to `endpoint`.  Raises zmq.ZMQError."""
    socket = context.socket(kind)
    try:
        set_reading_options(
            socket,
            endpoint,
            messages_max=QUEUED_MESSAGES_MAX,
            message_bytes_max=MESSAGE_BYTES_MAX,
        )
    except zmq.ZMQError:
        socket.close()
        raise
    return socket
