"""How a request goes on, told by the replica that runs it.

The router of Serve has booked it and will free it; only the replica sees the tokens.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from select_service.client import AsyncSelector, SelectorError
from select_service.client.progress import Progress, Verb
from select_service.ray.credentials import Credentials

SELECTORS_MAX = 64


class Report:
    """First token and output of one request.  Nothing here waits or fails."""

    def __init__(
        self,
        booked: Mapping[str, Any] | None,
        *,
        api_key_file: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """booked: what the router has put in the argument `reservation_kwarg`; None: it has booked
        nothing, and nothing is told.
        api_key_file, ca_file: see `deploy`, on the node of the replica; the key needs the role
        caller.  Both are read once.
        """
        self._booked = booked
        self._credentials = Credentials(api_key_file, ca_file)
        self._progress = Progress(0 if booked is None else int(booked["block_size"]))
        self._telling: asyncio.Task[None] | None = None

    def first_token(self) -> None:
        """The prompt is computed."""
        self._progress.first_token()
        self._wake()

    def tokens(self, n: int) -> None:
        """So many more tokens were put out."""
        self._progress.tokens(n)
        self._wake()

    def _wake(self) -> None:
        if self._booked is not None and (self._telling is None or self._telling.done()):
            self._telling = asyncio.get_running_loop().create_task(self._tell(self._booked))

    async def _tell(self, booked: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        client = client_of(booked["selector"], loop, self._credentials)
        while verbs := self._progress.next():
            calls = [client.prefill_complete, client.output_block]
            call = calls[verbs[0] is Verb.OUTPUT_BLOCK]
            await asyncio.gather(*(_said(call(booked["reservation_id"])) for _ in verbs))


async def _said(call: Awaitable[Any]) -> None:
    with suppress(SelectorError):  # what is lost is made good by the end, which the router tells
        await call


@lru_cache(SELECTORS_MAX)
def client_of(url: str, loop: asyncio.AbstractEventLoop, credentials: Credentials) -> AsyncSelector:
    """One for all requests of a replica that were booked there."""
    return AsyncSelector([url], **credentials.options())
