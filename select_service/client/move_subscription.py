"""Subscriptions of leases to the moves that a selector makes."""

import asyncio
from contextlib import suppress

from select_service.client.client_core import ClientCore
from select_service.client.errors import SelectorError, Unavailable
from select_service.client.lease import AsyncLease
from select_service.client.streamed_answers import MoveGap, stream_moves
from select_service.schemas.migrations import MigrationEvent

RECONNECT_S = 1.0


class MoveSubscription:
    """Subscribed leases by reservation id, with one connection for each of their selectors."""

    def __init__(self, link: ClientCore) -> None:
        self._link = link
        self._leases: dict[str, AsyncLease] = {}
        self._selectors: set[str] = set()

    def add(self, lease: AsyncLease) -> None:
        if lease.selector is None:
            return
        self._leases[lease.reservation_id] = lease
        if lease.selector not in self._selectors:
            self._selectors.add(lease.selector)
            self._link.background.spawn_forever(self._receive_moves(lease.selector))

    def discard(self, lease: AsyncLease) -> None:
        self._leases.pop(lease.reservation_id, None)

    async def _receive_moves(self, url: str) -> None:
        """Receive the moves of a selector until the client is closed or the selector refuses."""
        try:
            await self._receive_with_reconnects(url)
        except SelectorError:
            self._selectors.discard(url)  # the next lease subscribes again

    async def _receive_with_reconnects(self, url: str) -> None:
        """Receive the moves of a selector, over a new connection after each interruption.

        Raises SelectorError for refusals, which no new connection can change.
        """
        after: int | None = None
        while True:
            with suppress(Unavailable):
                async for event in stream_moves(self._link, url, after):
                    # A gap without a number leaves the position as it was.
                    after = self._deliver_move(url, event) or after
            # Random, so that the clients of a restarted selector do not reconnect together.
            await asyncio.sleep(RECONNECT_S * self._link.rng.uniform(0.5, 1.0))
            self._renew_leases(url)

    def _deliver_move(self, url: str, event: MigrationEvent | MoveGap) -> int | None:
        """Pass a move to its lease and return the number of the event to continue after."""
        if isinstance(event, MoveGap):
            self._renew_leases(url)
            return event.next
        if event.target is not None and event.reservation_id in self._leases:
            self._leases[event.reservation_id].note_move(event.target)
        return event.seq

    def _renew_leases(self, url: str) -> None:
        """Renew all leases of a selector: the answers name the moves that were missed."""
        for lease in tuple(self._leases.values()):
            if lease.selector == url:
                lease.renew_now()
