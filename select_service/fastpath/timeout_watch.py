"""Periodic check of the timeouts of all connections, with one timer for all."""

import asyncio
from typing import Protocol

from select_service.http import bounded_protocol as bounds

CHECKS_PER_ITERATION = 1024
"""Connections checked per iteration of the event loop, half a microsecond each."""


class WatchedConnection(Protocol):
    """Connection with timeouts."""

    def check_timeouts(self) -> None:
        """Check the timeouts; called by the watch every WATCH_EVERY_S."""


class TimeoutWatch:
    """Periodic check of all connections, every WATCH_EVERY_S while there are any."""

    def __init__(self) -> None:
        self._is_running = False
        self._connections: set[WatchedConnection] = set()
        self._unchecked: list[WatchedConnection] = []

    def on(self, connections: set[WatchedConnection]) -> None:
        """Start checking.  connections: all open connections, now and later"""
        if not self._is_running:
            self._is_running, self._connections = True, connections
            self._schedule_check()

    def _schedule_check(self) -> None:
        asyncio.get_running_loop().call_later(bounds.WATCH_EVERY_S, self._begin_check)

    def _begin_check(self) -> None:
        self._unchecked = list(self._connections)
        self._check_share()

    def _check_share(self) -> None:
        """Check one iteration's share of connections."""
        for _ in range(min(CHECKS_PER_ITERATION, len(self._unchecked))):
            self._unchecked.pop().check_timeouts()
        if self._unchecked:
            asyncio.get_running_loop().call_soon(self._check_share)
        elif self._connections:
            self._schedule_check()
        else:
            self._is_running = False
