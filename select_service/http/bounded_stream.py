"""Streamed responses, sent at the client's pace; the number of large responses is limited."""

import asyncio
from collections.abc import AsyncIterable, Mapping
from importlib import import_module

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from select_service.auth.limit_shares import Holder, SharedLimit

_STREAM_BACKEND = "anyio._backends._asyncio"
"""Module imported by the first stream: 40 ms of CPU, deferred from the start of the process."""


class ImportingStream(StreamingResponse):
    """Stream with imports that do not block the event loop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.to_thread(import_module, _STREAM_BACKEND)
        await super().__call__(scope, receive, send)


class BoundedStream(ImportingStream):
    """Stream that counts against a limit from its creation until sent, aborted or discarded.

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
        # Taken last: after an exception in the constructor nothing would give it back.
        limit.take(holder)
        self._limit, self._holder = limit, holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._limit.give_back(self._holder)
