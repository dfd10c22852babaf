"""Lease of a pair: prefill and decode on two ranks, under one reservation."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UnsetType

from select_service.client.client_core import decode_answer
from select_service.client.errors import Unavailable
from select_service.client.fallbacks import KnownRank
from select_service.client.handoff_bodies import make_decode_body, make_prefill_body
from select_service.client.lease import AsyncLease, Lease
from select_service.client.lease_progress import LeaseProgress, ReservationVerb
from select_service.client.named_reservations import MadeReservation
from select_service.client.retrying_caller import Call
from select_service.client.route_table import SelectorRoutes
from select_service.schemas.pairs import Handoff, LegMove, PairLeg, PairSelection
from select_service.schemas.selection import Overlap

LegName = Literal["prefill", "decode"]


class AsyncPairLease(AsyncLease):
    """Reserved pair of ranks. The `async with` block ends the lease.

    The attributes of `AsyncLease` are those of the decode leg.

    prefill, decode: legs; the same rank if `is_local`
    handoff: hand-over of the KV blocks; None if `is_local`
    is_local: whether the decode rank also computes the prompt
    selection: whole answer of the selector; None without one
    """

    prefill: PairLeg
    decode: PairLeg
    handoff: Handoff | None
    selection: PairSelection | None

    @property
    def is_local(self) -> bool:
        return self.handoff is None

    def prefill_complete(self) -> None:
        """Report that the prefill worker has computed the prompt, which frees its leg."""
        self._record(self.progress.record_prefill_complete)

    async def move_leg(self, leg: LegName) -> None:
        """Move a leg from a failed worker to another rank, or both to one rank if that is cheaper.

        The legs and the hand-over are new afterwards.  Raises Refused if no rank is left, or the
        selector has lost the pair: begin another pair.
        """
        self._store_pair(await self.request_move(leg))

    def prefill_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of the call to the prefill worker, see `make_prefill_body`."""
        return dict(body) if self.handoff is None else make_prefill_body(body, self.handoff)

    def decode_body(
        self, body: Mapping[str, Any], reply: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the body of the call to the decode worker, see `make_decode_body`."""
        return dict(body) if self.handoff is None else make_decode_body(body, self.handoff, reply)

    async def request_move(self, leg: LegName) -> PairSelection:
        """Return the answer of the selector to the move of a leg.  Raises SelectorError."""
        if self.selector is None:
            raise Unavailable("no selector has reserved the pair")
        route = SelectorRoutes.move_leg
        wanted = route.make_call(self.reservation_id, LegMove(leg=leg))
        asked = self._core.make_request(route.method, wanted, self._headers)
        until, here = self._core.deadline_in(), self.selector
        # Only the selector that chose the pair can move its legs.
        call = Call(asked, self._core.scope, route.repeats, until, only_selector=here)
        return decode_answer(route, await self._core.caller.call(call))

    def _make_progress(self) -> LeaseProgress:
        return LeaseProgress(self.block_size, ReservationVerb.FIRST_TOKEN)

    def _store_choice(self, chosen: MadeReservation | KnownRank) -> None:
        super()._store_choice(chosen)
        if isinstance(chosen, MadeReservation):
            assert chosen.pair is not None
            self._store_pair(chosen.pair)
            return
        # A fallback knows no links, so its rank does both.
        legs = [_leg_of_rank(leg, chosen) for leg in ("prefill", "decode")]
        self.prefill, self.decode = legs
        self.selection = self.handoff = None

    def _store_pair(self, pair: PairSelection) -> None:
        self.selection = pair
        self.prefill, self.decode = pair.legs
        self.handoff = None if isinstance(pair.handoff, UnsetType) else pair.handoff
        decode = self.decode
        self.worker_id, self.dp_rank = decode.worker_id, decode.dp_rank
        self.endpoint = decode.endpoint


class PairLease(AsyncPairLease, Lease):
    """`AsyncPairLease` for threads other than the client's. The `with` block ends the lease."""

    def move_leg(self, leg: LegName) -> None:  # type: ignore[override]
        """See `AsyncPairLease.move_leg`."""
        if os.getpid() != self._pid:
            raise RuntimeError(f"lease {self.reservation_id} belongs to process {self._pid}")
        moving = asyncio.run_coroutine_threadsafe(self.request_move(leg), self._loop)
        self._store_pair(moving.result())


def _leg_of_rank(leg: Literal["prefill", "decode"], rank: KnownRank) -> PairLeg:
    return PairLeg(
        leg=leg,
        worker_id=rank.worker_id,
        dp_rank=rank.dp_rank,
        endpoint=rank.endpoint,
        overlap=Overlap(longest_matched=0, gpu=0, dp={}, cpu=0, disk=0),
        cached_tokens=0,
        own_work=0,
    )
