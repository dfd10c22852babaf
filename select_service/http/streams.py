"""Answers that are sent for as long as their clients take; of large ones so many at one time."""

import asyncio
from collections.abc import AsyncIterable, Mapping
from importlib import import_module

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from select_service.errors import CapacityExceeded


class Permits:
    """`taken` of `n` permits.  What enters leaves; nothing else counts."""

    def __init__(self, n: int, what: str) -> None:
        self.n = n
        self.taken = 0
        self._what = what

    def enter(self) -> None:
        """Raises CapacityExceeded, changing nothing."""
        if self.taken >= self.n:
            raise CapacityExceeded(f"{self.n} {self._what} already; ask again later")
        self.taken += 1

    def leave(self) -> None:
        assert self.taken > 0
        self.taken -= 1


_OF_STREAMS = "anyio._backends._asyncio"
"""What the first stream imports: 40 ms of CPU, which no start need spend."""


class Stream(StreamingResponse):
    """A stream that imports nothing on the event loop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.to_thread(import_module, _OF_STREAMS)
        await super().__call__(scope, receive, send)


class BoundedStream(Stream):
    """A stream that has a permit from now until it is sent, cut short, or given up unbegun.

    Raises CapacityExceeded.
    """

    def __init__(
        self,
        permits: Permits,
        content: AsyncIterable[bytes],
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        permits.enter()
        self._permits = permits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._permits.leave()
