"""Client for asyncio programs."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar, Unpack, cast, get_args

from select_service.client import named_reservations, streamed_answers
from select_service.client.client_core import ClientCore
from select_service.client.client_options import ClientSettings, Options, TransportName
from select_service.client.errors import Unavailable
from select_service.client.fallbacks import KnownRank, raise_unavailable
from select_service.client.lease import AsyncLease
from select_service.client.lease_fields import LeaseFields, PairLeaseFields
from select_service.client.move_subscription import MoveSubscription
from select_service.client.pair_lease import AsyncPairLease
from select_service.client.prompt_hasher import PromptHasher, make_hasher
from select_service.client.route_table import AsyncRoutes, ClientRoute, non_default_fields
from select_service.client.streamed_answers import MoveGap
from select_service.client.transport import Transport
from select_service.client.worker_cache import WorkerCache
from select_service.schemas.migrations import MigrationEvent
from select_service.schemas.pairs import PairSelection, SelectPairAndReserveRequest
from select_service.schemas.reservations import Reservation, ReservationRequest
from select_service.schemas.selection import SelectAndReserveRequest, Selection

P = ParamSpec("P")
A = TypeVar("A")
L = TypeVar("L", bound=AsyncLease)


class AsyncSelector(AsyncRoutes):
    """Client of all selectors of a catalog. Belongs to the event loop of the first call."""

    def __init__(self, urls: Sequence[str], **options: Unpack[Options]) -> None:
        """urls: URLs of all selectors that share their reservations.  Raises ValueError."""
        settings = ClientSettings(**options)
        self.core = ClientCore(urls, settings, make_transport(settings))
        self._worker_cache = WorkerCache(self.core)
        self._move_subscription = MoveSubscription(self.core)
        self._leases: set[AsyncLease] = set()
        self._in_flight: Counter[tuple[int, int]] = Counter()
        self._n_fallbacks = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Abandon all live leases; send the pending calls for at most `deadline_s` seconds."""
        for lease in tuple(self._leases):
            lease.abandon()
        await self.core.close()

    async def call(self, route: ClientRoute[P, A], *args: P.args, **kwargs: P.kwargs) -> A:
        """Call a route that creates no reservation, see `ClientCore.call`."""
        return await self.core.call(route, *args, **kwargs)

    # Leases and reservations

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
        """Reserve a rank for the `async with` block.

        The block ends the lease: with success, or after an exception with a failure of the rank. A
        cancellation blames no rank.

        prompt: text for `tokenize`, instead of fields that describe the prompt
        headers: headers of all calls of the lease, such as trace headers
        deadline_s: time limit of the reservation call, in seconds; None means the client's
        subscribe: receive moves at once (`AsyncLease.move`), over a connection that all leases
        share
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
        """Return a lease that lives until `end`, `failed` or the close of the client."""
        given = self.body_fields(prompt, fields)
        lease = await self.open_lease(AsyncLease, given, headers, deadline_s)
        if subscribe:
            self._move_subscription.add(lease)
        return lease

    @contextlib.asynccontextmanager
    async def pair_lease(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[PairLeaseFields],
    ) -> AsyncIterator[AsyncPairLease]:
        """Reserve a prefill and a decode rank for the `async with` block, like `lease`.

        While no selector answers, the rank of the fallback does both.  Raises SelectorError.
        """
        async with await self.begin_pair(
            prompt, headers=headers, deadline_s=deadline_s, **fields
        ) as lease:
            yield lease

    async def begin_pair(
        self,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[PairLeaseFields],
    ) -> AsyncPairLease:
        """Return a lease of a pair that lives until `end`, `failed` or the close of the client."""
        given = self.body_fields(prompt, fields)
        return await self.open_lease(AsyncPairLease, given, headers, deadline_s)

    @contextlib.asynccontextmanager
    async def lease_group(
        self,
        n: int,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> AsyncIterator[list[AsyncLease]]:
        """Reserve `n` ranks for as many answers to a prompt, all or none, for the block.

        Leases that the block has not ended get its outcome, like `lease`.  Raises SelectorError.
        """
        leases = await self.begin_group(n, prompt, headers=headers, deadline_s=deadline_s, **fields)
        async with contextlib.AsyncExitStack() as stack:
            for lease in leases:
                await stack.enter_async_context(lease)
            yield leases

    async def begin_group(
        self,
        n: int,
        prompt: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        deadline_s: float | None = None,
        **fields: Unpack[LeaseFields],
    ) -> list[AsyncLease]:
        """Return `n` leases for one prompt; each lives until its end."""
        given = {**self.body_fields(prompt, fields), "n": n}
        return await self.open_group(AsyncLease, given, headers, deadline_s)

    async def open_group(
        self,
        kind: type[L],
        fields: dict[str, Any],
        headers: Mapping[str, str] | None,
        deadline_s: float | None,
    ) -> list[L]:
        """Reserve the ranks of a group, or choose them with the fallback.

        kind: class of the leases;  fields: fields of the body, `n` included
        """
        sent = self.core.call_headers(headers)
        self._watch_scope(fields)
        until = self.core.deadline_in(deadline_s)
        try:
            made = await named_reservations.select_group(self.core, fields, sent, until)
        except Unavailable as error:
            # One at a time, because a fallback counts the requests in flight.
            return [
                self._adopt(kind, self._choose_by_fallback(fields, error), sent)
                for _ in range(fields["n"])
            ]
        return [self._adopt(kind, chosen, sent) for chosen in made]

    async def open_lease(
        self,
        kind: type[L],
        fields: dict[str, Any],
        headers: Mapping[str, str] | None,
        deadline_s: float | None,
    ) -> L:
        """Reserve a rank or pair, or choose a rank with the fallback, and return its lease.

        kind: class of the lease;  fields: fields of the body
        """
        sent = self.core.call_headers(headers)
        # Watched before the first failure: without any selector there is no list of workers to
        # read.
        self._watch_scope(fields)
        has_pair = issubclass(kind, AsyncPairLease)
        select = named_reservations.select_and_reserve
        if has_pair:
            select = named_reservations.select_pair
        try:
            until = self.core.deadline_in(deadline_s)
            chosen: named_reservations.MadeReservation | KnownRank = await select(
                self.core, fields, sent, until
            )
        # Refusals are raised: only silence of all selectors permits a choice without them.
        except Unavailable as error:
            chosen = self._choose_by_fallback(fields, error, for_decode=has_pair)
        return self._adopt(kind, chosen, sent)

    def _adopt(
        self,
        kind: type[L],
        chosen: named_reservations.MadeReservation | KnownRank,
        sent: dict[str, str],
    ) -> L:
        """Return the lease of a rank that was chosen; it is renewed from now on."""
        lease = kind(self.core, chosen, sent, self._forget_lease)
        self._leases.add(lease)
        self._in_flight[lease.worker_id, lease.dp_rank] += 1
        if lease.selector is not None:
            lease.restart_renewal_timer()
            self.core.fetch_ttl(lease.selector, lease.reservation_id, self._restart_renewal_timers)
        return lease

    async def select_and_reserve(self, body: SelectAndReserveRequest) -> Selection:
        """Reserve a rank exactly once, whatever answers are lost; the caller renews and frees."""
        fields, sent = non_default_fields(body), self.core.call_headers()
        return (
            await named_reservations.select_and_reserve(
                self.core, fields, sent, self.core.deadline_in()
            )
        ).selection

    async def select_pair_and_reserve(self, body: SelectPairAndReserveRequest) -> PairSelection:
        """Reserve a pair, whatever answers are lost; the caller renews and frees."""
        made = await named_reservations.select_pair(
            self.core, non_default_fields(body), self.core.call_headers(), self.core.deadline_in()
        )
        assert made.pair is not None
        return made.pair

    async def reserve(self, body: ReservationRequest) -> Reservation:
        """Reserve a rank that the caller chose exactly once; the caller renews and frees."""
        return await named_reservations.reserve(self.core, non_default_fields(body))

    async def prompt_hasher(
        self,
        lora_name: str | None = None,
        cache_salt: str | None = None,
        *,
        model_name: str | None = None,
        tenant_id: str | None = None,
    ) -> PromptHasher:
        """Return a hasher of prompts for the workers of a scope, by default the client's scope.

        Raises SelectorError; Unavailable if no schedulable worker names its block size.
        """
        scope = self.core.scope_of_fields({"model_name": model_name, "tenant_id": tenant_id})
        hasher = make_hasher(await self.workers(*scope), lora_name, cache_salt)
        if hasher is None:
            raise Unavailable(f"no schedulable worker of {scope} has a block size: register one")
        return hasher

    # Answers in pieces

    async def dump(self, path: Path, *, url: str | None = None, compact: bool = False) -> int:
        """Write the index of a selector to a file and return the size in bytes.

        url: URL of the selector; None means the selector of the client's scope
        compact: use the msgpack form of docs/reference/files.md instead of JSON
        Raises SelectorError; the file may then be incomplete.
        """
        return await streamed_answers.write_dump(
            self.core, url or self.core.home_selector(), path, compact=compact
        )

    def moves(self, url: str, after: int | None = None) -> AsyncIterator[MigrationEvent | MoveGap]:
        """Iterate over the moves of the selector at `url`, after event `after` or from now on.

        Leases that subscribe receive their own moves.  Raises SelectorError.
        """
        return streamed_answers.stream_moves(self.core, url, after)

    # Shared with the blocking client and with leases

    def body_fields(
        self, prompt: str | None, fields: LeaseFields | PairLeaseFields
    ) -> dict[str, Any]:
        """Return the fields of a body, with the tokens of `prompt` added.  Raises ValueError."""
        given = cast(dict[str, Any], fields)
        if prompt is None:
            return given
        if self.core.settings.tokenize is None:
            raise ValueError(
                "a text prompt needs a tokenizer: give the selector the option `tokenize`"
            )
        return {**given, "token_ids": self.core.settings.tokenize(prompt)}

    def _forget_lease(self, lease: AsyncLease) -> None:
        self._leases.discard(lease)
        self._move_subscription.discard(lease)
        rank = lease.first_rank
        self._in_flight[rank] -= 1
        # Entries of zero would pile up over the ranks of a long-lived client.
        if not self._in_flight[rank]:
            del self._in_flight[rank]

    def _restart_renewal_timers(self, url: str) -> None:
        """Restart the renewal timers of all leases of a selector after its time to live became
        known.
        """
        for lease in self._leases:
            if lease.selector == url:
                lease.restart_renewal_timer()

    # Fallback without any selector

    def _watch_scope(self, fields: Mapping[str, Any]) -> None:
        if self.core.settings.fallback is not raise_unavailable:
            self._worker_cache.watch_scope(self.core.scope_of_fields(fields))

    def _choose_by_fallback(
        self, fields: Mapping[str, Any], error: Unavailable, *, for_decode: bool = False
    ) -> KnownRank:
        """Return the rank that the fallback chooses.

        for_decode: leave out workers that only prefill
        Raises `error` if there is no fallback or no rank is known.
        """
        scope = self.core.scope_of_fields(fields)
        ranks = self._worker_cache.ranks_of_scope(scope)
        if for_decode:
            ranks = [rank for rank in ranks if rank.can_decode]
        fallback = self.core.settings.fallback
        if not ranks or fallback is raise_unavailable:
            raise error
        self._n_fallbacks += 1
        return fallback(ranks, self._in_flight, self._n_fallbacks - 1)


def make_transport(settings: ClientSettings) -> Transport:
    """Make the transport of the settings; only its own library is imported.  Raises ValueError."""
    if settings.transport not in get_args(TransportName):
        names = " or ".join(get_args(TransportName))
        raise ValueError(f"transport: expected {names}, got `{settings.transport}`")
    if settings.transport == "aiohttp":
        from select_service.client.aiohttp_transport import AiohttpTransport

        return AiohttpTransport(settings.ssl_context)
    from select_service.client.httpx_transport import HttpxTransport

    return HttpxTransport(settings.ssl_context)
