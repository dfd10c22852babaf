"""EDGE: what libzmq tells about the connections of a socket, taken without waiting."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import zmq
from zmq.utils.monitor import recv_monitor_message

from indexer.sockets.readiness import has_message

MONITOR_EVENTS_MAX = 1000
"""Taken at once; what is left comes next time."""


class ConnectionEvent(NamedTuple):
    """event: zmq.EVENT_*; value: mostly the file descriptor of the connection."""

    event: int
    value: int


def waiting_events(monitor: "zmq.Socket[Any]") -> Iterator[ConnectionEvent]:
    """What has been told since the last time, oldest first."""
    for _ in range(MONITOR_EVENTS_MAX):
        if not has_message(monitor):
            return
        message = recv_monitor_message(monitor)
        yield ConnectionEvent(message["event"], message["value"])
