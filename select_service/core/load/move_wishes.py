"""What a request said that counts when its reservation is moved, kept as long as that lives.

Nobody keeps anything unless moves are possible.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from select_service.core.load.booking import (
    BOOKED_BLOCKS_MAX,
    NO_PROMPT,
    NO_WISHES,
    MoveWishes,
    NewBooking,
    bounded,
)
from select_service.core.load.held_booking import Booking

if TYPE_CHECKING:
    from select_service.core.load.ledger import Cause

BLOCKS_MAX = 8_388_608
"""Block hashes of all that is kept, 64 MiB; prompts beyond it are moved as if nobody had them."""
NAMES_MAX = 1_048_576
"""Allowed workers and required taints of all that is kept; a reservation beyond it stays where it
is."""


class KeptWishes:
    """By reservation, of those that this process admitted.  Follows the ledger."""

    def __init__(self) -> None:
        self._kept: dict[str, MoveWishes] = {}
        self._blocks = self._names = 0

    def of(self, reservation_id: str) -> MoveWishes:
        """To be read only."""
        return self._kept.get(reservation_id, NO_WISHES)

    def said(self, reservation_id: str, wishes: MoveWishes) -> None:
        """What the request said whose reservation is being booked, with its whole prompt."""
        self._forget(reservation_id)
        if wishes.is_bound and self._names + wishes.n_names > NAMES_MAX:
            wishes = MoveWishes(wishes.block_hashes, wishes.priority, migratable=False)
        blocks = len(wishes.block_hashes)
        if self._blocks + blocks > BLOCKS_MAX:
            wishes, blocks = wishes._replace(block_hashes=NO_PROMPT), 0
        elif blocks > BOOKED_BLOCKS_MAX:
            wishes = wishes._replace(block_hashes=bounded(wishes.block_hashes))
            blocks = BOOKED_BLOCKS_MAX
        self._kept[reservation_id] = wishes
        self._blocks += blocks
        if wishes.is_bound:
            self._names += wishes.n_names

    def _forget(self, reservation_id: str) -> None:
        wishes = self._kept.pop(reservation_id, None)
        if wishes is not None:
            self._blocks -= len(wishes.block_hashes)
            if wishes.is_bound:
                self._names -= wishes.n_names

    # --- what is told by the ledger

    def booked(self, booking: NewBooking, cause: "Cause", now: float) -> None:
        """A booking without wishes is a usual request's, which says nothing but its prompt."""
        if cause == "client":
            wishes = booking.wishes
            self.said(
                booking.reservation_id, MoveWishes(booking.prompt) if wishes is None else wishes
            )

    def prefill_completed(self, booking: Booking, cause: "Cause", now: float) -> None:
        """Changes nothing here."""

    def released(self, booking: Booking, cause: "Cause", now: float) -> None:
        if cause != "moved":
            self._forget(booking.reservation_id)

    def check_invariants(self, live: Iterable[str]) -> None:
        """For tests.  live: the ids of all reservations"""
        assert self._kept.keys() <= set(live)
        assert self._blocks == sum(len(w.block_hashes) for w in self._kept.values()) <= BLOCKS_MAX
        assert self._names == sum(w.n_names for w in self._kept.values()) <= NAMES_MAX
