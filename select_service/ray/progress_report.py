"""Progress reports of a request, sent by the replica that runs the request.

The router of Serve makes and frees the reservation, but only the replica sees the tokens.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from select_service.client import AsyncSelector, SelectorError
from select_service.client.lease_progress import LeaseProgress, ReservationVerb
from select_service.ray.credentials import Credentials

SELECTORS_MAX = 64


class Report:
    """Reports of the first token and the output of a request. No method waits or raises."""

    def __init__(
        self,
        booked: Mapping[str, Any] | None,
        *,
        api_key_file: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        """booked: value of the argument `reservation_kwarg` from the router; None means no
        reservation, and
            nothing is sent
        api_key_file, ca_file: see `deploy`, on the node of the replica; the key needs the role
        caller.
            Both files are read once.
        """
        self._booked = booked
        self._credentials = Credentials(api_key_file, ca_file)
        self._progress = LeaseProgress(0 if booked is None else int(booked["block_size"]))
        self._sending_task: asyncio.Task[None] | None = None

    def first_token(self) -> None:
        """Report that the prompt is computed."""
        self._progress.record_first_token()
        self._start_sending()

    def tokens(self, n: int) -> None:
        """Report `n` more output tokens."""
        self._progress.record_tokens(n)
        self._start_sending()

    def _start_sending(self) -> None:
        if self._booked is not None and (self._sending_task is None or self._sending_task.done()):
            self._sending_task = asyncio.get_running_loop().create_task(
                self._send_pending(self._booked)
            )

    async def _send_pending(self, booked: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        client = shared_client(booked["selector"], loop, self._credentials)
        while verbs := self._progress.take_verbs():
            calls = [client.prefill_complete, client.output_block]
            # All verbs of a batch are equal; the end is never recorded here.
            call = calls[verbs[0] is ReservationVerb.OUTPUT_BLOCK]
            await asyncio.gather(*(_ignore_failures(call(booked["reservation_id"])) for _ in verbs))


async def _ignore_failures(call: Awaitable[Any]) -> None:
    with suppress(
        SelectorError
    ):  # the end of the request, sent by the router, corrects lost reports
        await call


@lru_cache(SELECTORS_MAX)
def shared_client(
    url: str, loop: asyncio.AbstractEventLoop, credentials: Credentials
) -> AsyncSelector:
    """Return the client that all requests of a replica at this selector share."""
    return AsyncSelector([url], **credentials.client_options())
