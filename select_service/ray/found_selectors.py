"""The client of selectors that are found by name, and found again when they move."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Unpack

from select_service.client import AsyncSelector
from select_service.client.options import Options

LOOK_S = 5.0
"""Between two looks at where the selectors are."""
FORMER_MAX = 4
"""Clients of former places that are kept, for the leases that they have."""


class FoundSelectors:
    """Belongs to one event loop, and to the program as long as it runs."""

    def __init__(self, find: Callable[[], Sequence[str]], **options: Unpack[Options]) -> None:
        """find: the URLs of now; it may block, and raises LookupError for none."""
        self._find = find
        self._options = options
        self._urls: frozenset[str] = frozenset()
        self._client: AsyncSelector | None = None
        self._former: deque[AsyncSelector] = deque()
        self._looking: asyncio.Task[None] | None = None
        self._look_at = 0.0

    async def client(self) -> AsyncSelector:
        """Raises LookupError when no selector was found so far."""
        now = asyncio.get_running_loop().time()
        if self._looking is None and now >= self._look_at:
            self._look_at = now + LOOK_S
            self._looking = asyncio.create_task(self._look())
        if self._client is None and self._looking is not None:
            await asyncio.shield(self._looking)
        if self._client is None:
            raise LookupError("no selector was found")
        return self._client

    async def _look(self) -> None:
        try:
            with suppress(LookupError):
                await self._use(frozenset(await asyncio.to_thread(self._find)))
        finally:
            self._looking = None

    async def _use(self, urls: frozenset[str]) -> None:
        """A place that is missing now may be a restart; only new ones need another client."""
        if urls <= self._urls:
            return
        if self._client is not None:
            self._former.append(self._client)
        self._urls, self._client = urls, AsyncSelector(sorted(urls), **self._options)
        if len(self._former) > FORMER_MAX:
            await self._former.popleft().close()
