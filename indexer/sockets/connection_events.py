"""EDGE: libzmq's events of the connections of a socket, taken without waiting."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from indexer.sockets.socket_poller import has_message

MONITOR_EVENTS_MAX = 1000
"""Limit per call; the rest comes with the next."""


class ConnectionEvent(NamedTuple):
    """Event of a connection; event: zmq.EVENT_*; value: mostly its file descriptor."""

    event: int
    value: int


def waiting_events(monitor: "zmq.Socket[Any]") -> Iterator[ConnectionEvent]:
    """Yield the events since the last call, oldest first."""
    for _ in range(MONITOR_EVENTS_MAX):
        if not has_message(monitor):
            return
        message = recv_monitor_message(monitor)
        yield ConnectionEvent(message["event"], message["value"])
