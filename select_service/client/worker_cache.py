"""Cache of the latest worker lists, for fallbacks."""

import asyncio

from select_service.client.client_core import ClientCore
from select_service.client.errors import SelectorError
from select_service.client.fallbacks import KnownRank, eligible_ranks
from select_service.client.route_table import SelectorRoutes
from select_service.client.selector_pool import Scope

REFRESH_S = 30.0
SCOPES_MAX = 64
RANKS_MAX = 16_384
"""Limit of ranks in a scope; fallbacks ignore further ranks."""


class WorkerCache:
    """Eligible ranks by scope."""

    def __init__(self, link: ClientCore) -> None:
        self._link = link
        self._ranks: dict[Scope, list[KnownRank]] = {}

    def watch_scope(self, scope: Scope) -> None:
        """Keep the ranks of a scope up to date from now on."""
        if scope not in self._ranks and len(self._ranks) < SCOPES_MAX:
            # An entry before the first answer, so that a scope starts one task only.
            self._ranks[scope] = []
            self._link.background.spawn_forever(self._refresh_forever(scope))

    def ranks_of_scope(self, scope: Scope) -> list[KnownRank]:
        return self._ranks.get(scope, [])

    async def _refresh_forever(self, scope: Scope) -> None:
        while True:
            try:
                records = await self._link.call(SelectorRoutes.workers, *scope)
            except SelectorError:
                pause_s = REFRESH_S / 10
            else:
                self._ranks[scope] = eligible_ranks(records)[:RANKS_MAX]
                pause_s = REFRESH_S
            # Random, so that many clients do not read the list at the same moment.
            await asyncio.sleep(pause_s * self._link.rng.uniform(0.8, 1.2))
