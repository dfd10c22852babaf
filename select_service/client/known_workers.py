"""The ranks as selectors have last listed them, for the time when none answers."""

import asyncio

from select_service.client import routes
from select_service.client.errors import SelectorError
from select_service.client.fallbacks import KnownRank, ranks_of
from select_service.client.known_selectors import Scope
from select_service.client.link import Link

REFRESH_S = 30.0
SCOPES_MAX = 64
RANKS_MAX = 16_384
"""Of one scope; those beyond it are not chosen."""


class KnownWorkers:
    """By scope: the ranks that may be chosen."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ranks: dict[Scope, list[KnownRank]] = {}

    def watch(self, scope: Scope) -> None:
        """Keep the ranks of this scope from now on."""
        if scope not in self._ranks and len(self._ranks) < SCOPES_MAX:
            self._ranks[scope] = []
            self._link.background.stand(self._follow(scope))

    def ranks(self, scope: Scope) -> list[KnownRank]:
        return self._ranks.get(scope, [])

    async def _follow(self, scope: Scope) -> None:
        while True:
            try:
                records = await self._link.call(routes.WORKERS, *scope)
            except SelectorError:
                pause_s = REFRESH_S / 10
            else:
                self._ranks[scope] = ranks_of(records)[:RANKS_MAX]
                pause_s = REFRESH_S
            await asyncio.sleep(pause_s * self._link.chance.uniform(0.8, 1.2))
