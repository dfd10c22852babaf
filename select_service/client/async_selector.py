"""The client for asyncio."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack, cast, get_args

from select_service.bodies.migrations import MigrationEvent
from select_service.bodies.reservations import Reservation, ReservationRequest
from select_service.bodies.selection import SelectAndReserveRequest, Selection
from select_service.client import booking, streams
from select_service.client.async_routes import AsyncRoutes
from select_service.client.errors import Unavailable
from select_service.client.exchange import Transport
from select_service.client.fallbacks import KnownRank, raise_unavailable
from select_service.client.following import Followed
from select_service.client.hashing import PromptHasher, hasher_of
from select_service.client.known_workers import KnownWorkers
from select_service.client.lease import AsyncLease
from select_service.client.lease_fields import LeaseFields
from select_service.client.link import Link
from select_service.client.options import Options, Settings, TransportName
from select_service.client.routes import sparse
from select_service.client.streams import Gap

L = TypeVar("L", bound=AsyncLease)


class AsyncSelector(AsyncRoutes):
    """The selectors of one catalog, as one.  Belongs to the event loop that uses it first."""

    def __init__(self, urls: Sequence[str], **options: Unpack[Options]) -> None:
        """urls: of all selectors that share their bookings.  Raises ValueError."""
        settings = Settings(**options)
        self.link = Link(urls, settings, opened(settings))
        self._workers = KnownWorkers(self.link)
        self._followed = Followed(self.link)
        self._leases: set[AsyncLease] = set()
        self._in_flight: Counter[tuple[int, int]] = Counter()
        self._fallen_back = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Leases that live are abandoned; what is left to tell is told within `deadline_s`."""
        for lease in tuple(self._leases):
            lease.abandon()
        await self.link.close()

    # --- bookings

    @contextlib.asynccontextmanager
    async def lease(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        subscribe: bool = False,
        **fields: Unpack[LeaseFields],
    ) -> AsyncIterator[AsyncLease]:
        """The chosen rank, booked until the block ends: well, or with an exception, which blames
        the rank unless it is a cancellation.

        prompt: a text for `tokenize`, instead of fields that say what the prompt is
        headers: of all calls of the lease, as those of a trace
        deadline_s: instead of the client's, for the booking alone
        subscribe: hear of moves at once (`AsyncLease.move`), over a connection that all share
        Raises SelectorError.
        """
        async with await self.begin(
            prompt, headers=headers, deadline_s=deadline_s, subscribe=subscribe, **fields
        ) as lease:
            yield lease

    async def begin(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        subscribe: bool = False,
        **fields: Unpack[LeaseFields],
    ) -> AsyncLease:
        """A lease that ends when it is told to (`end`, `failed`), or the client is closed."""
        given = self.fields(prompt, fields)
        lease = await self.begun(AsyncLease, given, headers, deadline_s)
        if subscribe:
            self._followed.add(lease)
        return lease

    async def begun(
        self,
        kind: type[L],
        fields: dict[str, Any],
        headers: Mapping[str, str] | None,
        deadline_s: float | None,
    ) -> L:
        """kind: of the lease; fields: of the body"""
        sent = self.link.headers(headers)
        self._watch(fields)
        try:
            until = self.link.until(deadline_s)
            chosen: booking.Booked | KnownRank = await booking.select_and_reserve(
                self.link, fields, sent, until
            )
        except Unavailable as error:
            chosen = self._chosen_without(fields, error)
        lease = kind(self.link, chosen, sent, self._ended)
        self._leases.add(lease)
        self._in_flight[lease.worker_id, lease.dp_rank] += 1
        if lease.selector is not None:
            lease.arm()
            self.link.ask_ttl(lease.selector, lease.reservation_id, self._rearm)
        return lease

    async def select_and_reserve(self, body: SelectAndReserveRequest) -> Selection:
        """A booking that the caller renews and frees by itself.  Made once, whatever is lost."""
        fields, sent = sparse(body), self.link.headers()
        return (
            await booking.select_and_reserve(self.link, fields, sent, self.link.until())
        ).selection

    async def reserve(self, body: ReservationRequest) -> Reservation:
        """The same on a rank that the caller chose."""
        return await booking.reserve(self.link, sparse(body))

    async def prompt_hasher(
        self,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        *,
        model_name: str | None = None,
        tenant_id: str | None = None,
    ) -> PromptHasher:
        """For prompts as the workers of a scope hash them, by default the client's own.

        Raises SelectorError, Unavailable too when no worker says how.
        """
        scope = self.link.scope_in({"model_name": model_name, "tenant_id": tenant_id})
        hasher = hasher_of(await self.workers(*scope), lora_name, cache_salt)
        if hasher is None:
            raise Unavailable(f"no schedulable worker of {scope} says how it hashes")
        return hasher

    # --- answers in pieces

    async def dump(self, path: Path, *, url: str | None = None, compact: bool = False) -> int:
        """Write the index of a selector, of `url` or of the scope's, to a file; its size in bytes.

        compact: in the form of docs/recovery.md, which is msgpack
        Raises SelectorError, and then the file may hold a part.
        """
        return await streams.dump(self.link, url or self.link.home(), path, compact=compact)

    def moves(self, url: str, after: int | None = None) -> AsyncIterator[MigrationEvent | Gap]:
        """What the selector at `url` moves, as it happens, behind event `after` or from now on.

        Leases that subscribe follow their own moves.  Raises SelectorError.
        """
        return streams.moves(self.link, url, after)

    # --- what leases have in common

    def fields(self, prompt: str | None, fields: LeaseFields) -> dict[str, Any]:
        """Of the body, with the tokens of `prompt`.  Raises ValueError."""
        given = cast(dict[str, Any], fields)
        if prompt is None:
            return given
        if self.link.settings.tokenize is None:
            raise ValueError("a prompt that is a text needs `tokenize` of the selector")
        return {**given, "token_ids": self.link.settings.tokenize(prompt)}

    def _ended(self, lease: AsyncLease) -> None:
        self._leases.discard(lease)
        self._followed.discard(lease)
        rank = lease.worker_id, lease.dp_rank
        self._in_flight[rank] -= 1
        if not self._in_flight[rank]:
            del self._in_flight[rank]

    def _rearm(self, url: str) -> None:
        """The time to live at this selector is known now."""
        for lease in self._leases:
            if lease.selector == url:
                lease.arm()

    # --- without selectors

    def _watch(self, fields: Mapping[str, Any]) -> None:
        if self.link.settings.fallback is not raise_unavailable:
            self._workers.watch(self.link.scope_in(fields))

    def _chosen_without(self, fields: Mapping[str, Any], error: Unavailable) -> KnownRank:
        """Raises `error` when there is no fallback, or no rank is known."""
        ranks = self._workers.ranks(self.link.scope_in(fields))
        fallback = self.link.settings.fallback
        if not ranks or fallback is raise_unavailable:
            raise error
        self._fallen_back += 1
        return fallback(ranks, self._in_flight, self._fallen_back - 1)


def opened(settings: Settings) -> Transport:
    """Only what is used has to be installed.  Raises ValueError."""
    if settings.transport not in get_args(TransportName):
        names = " or ".join(get_args(TransportName))
        raise ValueError(f"transport: expected {names}, got `{settings.transport}`")
    if settings.transport == "aiohttp":
        from select_service.client.aiohttp_transport import AiohttpTransport

        return AiohttpTransport(settings.ssl_context)
    from select_service.client.httpx_transport import HttpxTransport

    return HttpxTransport(settings.ssl_context)
