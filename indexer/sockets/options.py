"""EDGE: the options of a ZMQ socket that connects to somebody else's and reads from it."""

from typing import Any

import zmq

RECONNECT_MS = 100
RECONNECT_MS_MAX = 5000
HEARTBEAT_MS = 5000
HEARTBEAT_TIMEOUT_MS = 15000


def set_reading_options(
    socket: "zmq.Socket[Any]", endpoint: str, *, messages_max: int, message_bytes_max: int
) -> None:
    """To be called before `socket` connects to `endpoint`.  Raises zmq.ZMQError.

    messages_max:      messages libzmq keeps while nobody reads; beyond it the other side drops
    message_bytes_max: libzmq ends the connection of a peer that sends a longer frame
    Source of the intervals: the reference, so that both notice a dead peer equally fast.
    """
    options = {
        zmq.LINGER: 0,
        zmq.RCVHWM: messages_max,
        zmq.MAXMSGSIZE: message_bytes_max,
        zmq.RECONNECT_IVL: RECONNECT_MS,
        zmq.RECONNECT_IVL_MAX: RECONNECT_MS_MAX,
        zmq.TCP_KEEPALIVE: 1,
        zmq.HEARTBEAT_IVL: HEARTBEAT_MS,
        zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS,
        zmq.HEARTBEAT_TTL: HEARTBEAT_TIMEOUT_MS,
        zmq.IPV6: int(endpoint.startswith("tcp://[")),
    }
    for option, value in options.items():
        socket.setsockopt(option, value)
