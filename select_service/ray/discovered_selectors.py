"""Client of selectors that are found by name, and found again after a move."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Unpack

from select_service.client import AsyncSelector
from select_service.client.client_options import Options

SEARCH_INTERVAL_S = 5.0
"""Time between two searches for the selectors, in seconds."""
FORMER_MAX = 4
"""Limit of former clients that are kept for their leases."""


class DiscoveredSelectors:
    """Client of one event loop that follows its selectors; lives as long as the program."""

    def __init__(self, find: Callable[[], Sequence[str]], **options: Unpack[Options]) -> None:
        """find: function that returns the current URLs; may block, and raises LookupError if there
        is none
        """
        self._find = find
        self._options = options
        self._urls: frozenset[str] = frozenset()
        self._client: AsyncSelector | None = None
        self._former: deque[AsyncSelector] = deque()
        self._search_task: asyncio.Task[None] | None = None
        self._next_search_at = 0.0

    async def current_client(self) -> AsyncSelector:
        """Return the current client.  Raises LookupError before any selector was found."""
        now = asyncio.get_running_loop().time()
        if self._search_task is None and now >= self._next_search_at:
            self._next_search_at = now + SEARCH_INTERVAL_S
            self._search_task = asyncio.create_task(self._search())
        if self._client is None and self._search_task is not None:
            # Shielded: one cancelled caller must not end the search of the others.
            await asyncio.shield(self._search_task)
        if self._client is None:
            raise LookupError("no selector found: start one, or check the name or the URLs")
        return self._client

    async def _search(self) -> None:
        try:
            with suppress(LookupError):
                await self._use_urls(frozenset(await asyncio.to_thread(self._find)))
        finally:
            self._search_task = None

    async def _use_urls(self, urls: frozenset[str]) -> None:
        """Replace the client if there are new URLs; a missing URL may only be a restart."""
        if urls <= self._urls:
            return
        if self._client is not None:
            # Its leases still need renewals.
            self._former.append(self._client)
        self._urls, self._client = urls, AsyncSelector(sorted(urls), **self._options)
        if len(self._former) > FORMER_MAX:
            await self._former.popleft().close()
