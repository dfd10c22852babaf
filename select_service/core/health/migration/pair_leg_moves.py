"""Migration of the legs of pairs, which the rule of pairs places again."""

from collections.abc import Collection
from typing import NamedTuple

from select_service.base.errors import SelectError
from select_service.core.health.migration.migration_plan import (
    NO_ROOM,
    NOT_MIGRATABLE,
    PlannedMove,
)
from select_service.core.health.migration.move_cost import MoveMethod
from select_service.core.identity import Rank
from select_service.core.load.prefill_legs import is_prefill_leg, owner_of
from select_service.core.load.reservation_view import ReservationView
from select_service.core.pairs.pair_decisions import LegName, PairDecisions


class MovableLeg(NamedTuple):
    """Leg of a pair.

    pair_id: id of the reservation of the pair
    """

    pair_id: str
    name: LegName
    migratable: bool

    def abort(self, why: str = NO_ROOM) -> PlannedMove:
        """Return the move of a leg that stays without a rank."""
        return PlannedMove(self.pair_id, None, MoveMethod.ABORT, why=why, leg=self.name)


class PairLegMoves:
    """Moves of the legs of pairs."""

    def __init__(self, pairs: PairDecisions) -> None:
        self._pairs = pairs

    def leg_of(self, booking: ReservationView) -> MovableLeg | None:
        """Return the leg behind a reservation; None for a reservation on one rank."""
        book = self._pairs.book
        if not len(book):
            return None
        name = booking.reservation_id
        pair = book.find_pair(owner_of(name))
        if pair is None:
            return None
        leg: LegName = "prefill" if is_prefill_leg(name) else "decode"
        return MovableLeg(owner_of(name), leg, pair.is_migratable)

    def take_over(self, booking: ReservationView, now: float) -> bool:
        """Answer for a leg of a pair from a lost replica; return False for other reservations.

        Of the replicas that are left one does: that with the smallest router id.
        """
        book, origin = self._pairs.book, booking.origin
        is_ours = origin is not None and book.is_successor_of(origin, now)
        if not is_ours or self.leg_of(booking) is None:
            return False
        self._pairs.take_over(booking)
        return True

    def move_leg(self, leg: MovableLeg, suspicious: Collection[Rank], now: float) -> PlannedMove:
        """Move a leg, if the request allows that and an eligible rank is left.

        suspicious: serving ranks with failing checks; no leg moves there
        """
        if not leg.migratable:
            return leg.abort(NOT_MIGRATABLE)
        try:
            answer = self._pairs.move_leg(leg.pair_id, leg.name, now, suspicious)
        except (SelectError, MemoryError):
            return leg.abort()
        there = answer.legs[leg.name == "decode"]
        return PlannedMove(
            leg.pair_id,
            Rank(there.worker_id, there.dp_rank),
            MoveMethod.REPREFILL,
            overlap_blocks=there.cached_tokens // answer.block_size,
            leg=leg.name,
        )
