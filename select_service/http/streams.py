"""Answers that are sent for as long as their clients take; of large ones so many at one time."""

import asyncio
from collections.abc import AsyncIterable, Mapping
from importlib import import_module

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from select_service.access.shares import Holder, SharedLimit

_OF_STREAMS = "anyio._backends._asyncio"
"""What the first stream imports: 40 ms of CPU, which no start need spend."""


class Stream(StreamingResponse):
    """A stream that imports nothing on the event loop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.to_thread(import_module, _OF_STREAMS)
        await super().__call__(scope, receive, send)


class BoundedStream(Stream):
    """A stream that counts from now until it is sent, cut short, or given up unbegun.

    Raises CapacityExceeded, QuotaExceeded.
    """

    def __init__(
        self,
        limit: SharedLimit,
        holder: Holder,
        content: AsyncIterable[bytes],
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        limit.take(holder)
        self._limit, self._holder = limit, holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._limit.give_back(self._holder)
