"""Leases that want to know at once when the service moves them to another rank."""

import asyncio
from contextlib import suppress

from select_service.bodies.migrations import MigrationEvent
from select_service.client.errors import SelectorError, Unavailable
from select_service.client.lease import AsyncLease
from select_service.client.link import Link
from select_service.client.streams import Gap, moves

PAUSE_S = 1.0


class Followed:
    """By name; one connection to each selector that booked one of them."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._leases: dict[str, AsyncLease] = {}
        self._selectors: set[str] = set()

    def add(self, lease: AsyncLease) -> None:
        if lease.selector is None:
            return
        self._leases[lease.reservation_id] = lease
        if lease.selector not in self._selectors:
            self._selectors.add(lease.selector)
            self._link.background.stand(self._follow(lease.selector))

    def discard(self, lease: AsyncLease) -> None:
        self._leases.pop(lease.reservation_id, None)

    async def _follow(self, url: str) -> None:
        """Until the client is closed, or the selector says that it moves nothing."""
        try:
            await self._follow_on(url)
        except SelectorError:
            self._selectors.discard(url)  # the next lease asks again

    async def _follow_on(self, url: str) -> None:
        """Raises SelectorError of what will not pass."""
        after: int | None = None
        while True:
            with suppress(Unavailable):
                async for event in moves(self._link, url, after):
                    after = self._moved(url, event) or after
            await asyncio.sleep(PAUSE_S * self._link.chance.uniform(0.5, 1.0))
            self._ask(url)

    def _moved(self, url: str, event: MigrationEvent | Gap) -> int | None:
        """The number behind which to go on."""
        if isinstance(event, Gap):
            self._ask(url)
            return event.next
        if event.target is not None and event.reservation_id in self._leases:
            self._leases[event.reservation_id].move_to(event.target)
        return event.seq

    def _ask(self, url: str) -> None:
        """What was missed stands in the answers to renewals."""
        for lease in tuple(self._leases.values()):
            if lease.selector == url:
                lease.ask()
