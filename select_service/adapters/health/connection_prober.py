"""Prober of connections: tries to connect to endpoints that refused connections.

The owner decides which endpoint is tried and when. Nothing is sent over the connection.
"""

import asyncio
from time import monotonic
from typing import Protocol

from select_service.adapters.guarded_callbacks import GuardedCallbacks
from select_service.adapters.probe_http import TimedHttpClient

CONNECT_S_MAX = 2.0
"""Time limit of a connection including TLS, seconds."""
STEP_S = 0.25
"""Interval of steps, seconds."""


class ConnectionOwner(Protocol):
    """Decision maker for connections; called on the event loop only.

    Every endpoint ends with a call of `process_connection`.
    """

    def next_connection_probe(self) -> str | None:
        """Return an endpoint to try now, or None."""

    def process_connection(self, endpoint: str, is_open: bool, now: float) -> None:
        """Record whether the endpoint accepted the connection."""


class ConnectionProber:
    """Prober of connections.  Belongs to the event loop; `send_due` is a periodic task."""

    def __init__(
        self, owner: ConnectionOwner, client: TimedHttpClient, callbacks: GuardedCallbacks
    ) -> None:
        self._owner = owner
        self._client = client
        self._callbacks = callbacks
        self._probes: set[asyncio.Task[None]] = set()

    def send_due(self, now: float) -> bool:
        """Try the endpoints that are due; no work is left for the next iteration."""
        while (endpoint := self._owner.next_connection_probe()) is not None:
            probe = asyncio.create_task(self._try_endpoint(endpoint))
            self._probes.add(probe)
            probe.add_done_callback(self._probes.discard)
        return False

    async def stop(self) -> None:
        """Cancel running attempts."""
        for probe in self._probes:
            probe.cancel()
        if self._probes:
            await asyncio.wait(self._probes)

    async def _try_endpoint(self, endpoint: str) -> None:
        """Try one endpoint. An exception (a bug) is counted, and means no connection."""
        is_open = False
        try:
            is_open = await self._client.accepts_connection(endpoint, timeout_s=CONNECT_S_MAX)
        except Exception:
            self._callbacks.record_failure("canary")
        self._owner.process_connection(endpoint, is_open, monotonic())
