"""EDGE: ZMQ sockets that connect to somebody else's and read from it.

Their queues are short, so that they are bounded in bytes: what is not taken waits in the network
and at the sender.  libzmq must then not end connections by heartbeats of its own.  It cannot read
the answers while its queue is full, ends the connection, and aborts the process when the queue is
read again (https://github.com/zeromq/libzmq/issues/3937).  So heartbeats are only sent, and the
kernel ends a connection that does not confirm them.
"""

from typing import Any, NamedTuple, TypeAlias

import zmq

from indexer.sockets.curve import CurveServer, connecting_options

RECONNECT_MS = 100
RECONNECT_MS_MAX = 5000
CONNECT_MS_MAX = 5000
"""For one attempt.  The kernel would try for minutes, with ever longer pauses: a network that is
whole again would be noticed late."""
HANDSHAKE_MS_MAX = 10_000
HEARTBEAT_MS = 5000
"""As the reference has it.  Engines answer by themselves."""
UNCONFIRMED_MS_MAX = 15_000
"""A heartbeat that is not confirmed for so long ends the connection (Linux)."""
DEAD_PEER_S_MAX = (HEARTBEAT_MS + UNCONFIRMED_MS_MAX) / 1000
"""Within it a connection to a machine that is gone, or behind a partition, has ended."""
RECONNECT_S_MAX = (CONNECT_MS_MAX + RECONNECT_MS_MAX + RECONNECT_MS) / 1000
"""From one attempt to the next, at most."""
REACHED_S_MAX = max(DEAD_PEER_S_MAX + 2 * RECONNECT_MS / 1000, RECONNECT_S_MAX)
"""Within it a peer that can be reached again is connected, whether the end of the old connection
had been noticed or not."""

Socket: TypeAlias = "zmq.Socket[bytes]"


class Bounds(NamedTuple):
    """Of the queue that libzmq keeps for a socket; it takes no more than the product in bytes.

    messages:      kept while nobody reads; beyond it the other side waits, then drops
    message_bytes: libzmq ends the connection of a peer that sends a longer frame
    """

    messages: int
    message_bytes: int


def reading_socket(
    context: "zmq.Context[Socket]",
    kind: int,
    endpoint: str,
    bounds: Bounds,
    server: CurveServer | None = None,
) -> Socket:
    """To be connected to `endpoint`.  server: who is there; None: plain.  Raises zmq.ZMQError."""
    socket = context.socket(kind)
    try:
        for option, value in (_options(endpoint, bounds) | connecting_options(server)).items():
            socket.setsockopt(option, value)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def _options(endpoint: str, bounds: Bounds) -> dict[int, Any]:
    return {
        zmq.LINGER: 0,
        zmq.RCVHWM: bounds.messages,
        zmq.MAXMSGSIZE: bounds.message_bytes,
        zmq.RECONNECT_IVL: RECONNECT_MS,
        zmq.RECONNECT_IVL_MAX: RECONNECT_MS_MAX,
        zmq.CONNECT_TIMEOUT: CONNECT_MS_MAX,
        zmq.HANDSHAKE_IVL: HANDSHAKE_MS_MAX,
        zmq.TCP_KEEPALIVE: 1,
        zmq.TCP_MAXRT: UNCONFIRMED_MS_MAX,
        zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
        zmq.HEARTBEAT_TIMEOUT: 0,
        zmq.HEARTBEAT_TTL: UNCONFIRMED_MS_MAX,
        zmq.IPV6: int(endpoint.startswith("tcp://[")),
    }
