"""The client for threads: the one for asyncio, on an event loop in a thread of its own."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, Unpack

from anyio.from_thread import start_blocking_portal

from select_service.bodies.reservations import Reservation, ReservationRequest
from select_service.bodies.selection import SelectAndReserveRequest, Selection
from select_service.client.async_selector import AsyncSelector
from select_service.client.blocking_routes import BlockingRoutes
from select_service.client.hashing import PromptHasher
from select_service.client.lease import Lease
from select_service.client.lease_fields import LeaseFields
from select_service.client.options import Options


class Selector(BlockingRoutes):
    """As `AsyncSelector`, for any number of threads; one more renews and tells for all."""

    def __init__(self, urls: Sequence[str], **options: Unpack[Options]) -> None:
        """urls: of all selectors that share their bookings.  Raises ValueError."""
        self._kept = contextlib.ExitStack()
        self._selector = AsyncSelector(urls, **options)
        self.link = self._selector.link
        self.portal = self._kept.enter_context(start_blocking_portal("asyncio"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leases that live are abandoned; what is left to tell is told within `deadline_s`."""
        self.portal.call(self._selector.close)
        self._kept.close()

    @contextlib.contextmanager
    def lease(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Iterator[Lease]:
        """As `AsyncSelector.lease`."""
        with self.begin(prompt, headers=headers, deadline_s=deadline_s, **fields) as lease:
            yield lease

    def begin(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> Lease:
        """As `AsyncSelector.begin`."""
        given = self._selector.fields(prompt, fields)
        lease: Lease = self.portal.call(self._selector.begun, Lease, given, headers, deadline_s)
        return lease

    def prompt_hasher(
        self,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        *,
        model_name: str | None = None,
        tenant_id: str | None = None,
    ) -> PromptHasher:
        """As `AsyncSelector.prompt_hasher`."""
        return self.portal.call(
            lambda: self._selector.prompt_hasher(
                lora_name, cache_salt, model_name=model_name, tenant_id=tenant_id
            )
        )

    def dump(self, path: Path, *, url: str | None = None, compact: bool = False) -> int:
        """As `AsyncSelector.dump`."""
        return self.portal.call(lambda: self._selector.dump(path, url=url, compact=compact))

    def select_and_reserve(self, body: SelectAndReserveRequest) -> Selection:
        """A booking that the caller renews and frees by itself.  Made once, whatever is lost."""
        return self.portal.call(self._selector.select_and_reserve, body)

    def reserve(self, body: ReservationRequest) -> Reservation:
        """The same on a rank that the caller chose."""
        return self.portal.call(self._selector.reserve, body)
