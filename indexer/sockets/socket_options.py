"""EDGE: ZMQ sockets that connect to other processes and read from them.

Their queues are short, so that they are bounded in bytes: surplus messages wait in the network and
at the sender.  libzmq must then not end connections by its own heartbeats.  While its queue is
full, libzmq cannot read the answers, ends the connection, and aborts the process when the queue is
read again (https://github.com/zeromq/libzmq/issues/3937).  So heartbeats are only sent, and the
kernel ends a connection that does not confirm them.
"""

from typing import Any, NamedTuple, TypeAlias

import zmq

from indexer.sockets.curve_keypairs import CurveServerKeys, connecting_options

RECONNECT_MS = 100
RECONNECT_MS_MAX = 5000
CONNECT_MS_MAX = 5000
"""Time limit of an attempt.  The kernel would try for minutes, with ever longer pauses, and would
notice a recovered network late.
"""
HANDSHAKE_MS_MAX = 10_000
HEARTBEAT_MS = 5000
"""Interval of heartbeats, as in Dynamo.  Engines answer by themselves."""
UNCONFIRMED_MS_MAX = 15_000
"""Age of an unconfirmed heartbeat that ends the connection (Linux)."""
DEAD_PEER_S_MAX = (HEARTBEAT_MS + UNCONFIRMED_MS_MAX) / 1000
"""Seconds within which a connection to a dead or partitioned machine has ended."""
RECONNECT_S_MAX = (CONNECT_MS_MAX + RECONNECT_MS_MAX + RECONNECT_MS) / 1000
"""Longest time between attempts, in seconds."""
REACHED_S_MAX = max(DEAD_PEER_S_MAX + 2 * RECONNECT_MS / 1000, RECONNECT_S_MAX)
"""Seconds within which a peer that is reachable again is connected, whether or not the end of
the old connection had been noticed.
"""

Socket: TypeAlias = "zmq.Socket[bytes]"


class QueueLimits(NamedTuple):
    """Limits of the queue that libzmq keeps for a socket; at most their product in bytes.

    messages:      kept while nothing is read; beyond it the other side waits, then drops
    message_bytes: libzmq ends the connection of a peer that sends a longer frame
    """

    messages: int
    message_bytes: int


def reading_socket(
    context: "zmq.Context[Socket]",
    kind: int,
    endpoint: str,
    bounds: QueueLimits,
    server: CurveServerKeys | None = None,
) -> Socket:
    """Return a socket for connecting to `endpoint`; server: required keys, None for unencrypted.

    Raises zmq.ZMQError.
    """
    socket = context.socket(kind)
    try:
        for option, value in (
            _socket_options(endpoint, bounds) | connecting_options(server)
        ).items():
            socket.setsockopt(option, value)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def _socket_options(endpoint: str, bounds: QueueLimits) -> dict[int, Any]:
    return {
        # Unsent data of a closed socket must not delay the end of the process.
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
        # 0 means that libzmq never ends the connection over a missing answer (see the module's
        # text).
        zmq.HEARTBEAT_TIMEOUT: 0,
        zmq.HEARTBEAT_TTL: UNCONFIRMED_MS_MAX,
        zmq.IPV6: int(endpoint.startswith("tcp://[")),
    }
