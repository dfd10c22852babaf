"""What a request said that counts when its reservation is moved, kept as long as that lives.

Nobody keeps anything unless moves are possible.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from indexer.hashing.hashes import Hashes
from select_service.core.identity import Rank
from select_service.core.load.booking import NO_PROMPT, NewBooking, bounded
from select_service.core.load.held_booking import Booking

if TYPE_CHECKING:
    from select_service.core.load.ledger import Cause

BLOCKS_MAX = 8_388_608
"""Block hashes of all that is kept, 64 MiB; prompts beyond it are moved as if nobody had them."""
NAMES_MAX = 1_048_576
"""Allowed workers and required taints of all that is kept; a reservation beyond it stays where it
is."""


class MoveWishes(NamedTuple):
    """Of one reservation.

    block_hashes: uint64[n], of its prompt; none: unknown
    pinned:       the one rank that it may be on
    allowed:      workers; None: all;  required: taints
    """

    block_hashes: Hashes = NO_PROMPT
    priority: int = 0
    migratable: bool = True
    pinned: Rank | None = None
    allowed: frozenset[int] | None = None
    required: frozenset[str] = frozenset()

    @property
    def n_names(self) -> int:
        """How many workers and taints it names."""
        return len(self.allowed or ()) + len(self.required)

    @property
    def is_bound(self) -> bool:
        """Are there ranks that it may not be on?"""
        return self.pinned is not None or self.allowed is not None or bool(self.required)


NO_WISHES = MoveWishes()
"""Of a usual request, without its prompt."""


class KeptWishes:
    """By reservation, of those that this process admitted.  Follows the ledger."""

    def __init__(self) -> None:
        self._kept: dict[str, MoveWishes] = {}
        self._blocks = self._names = 0

    def of(self, reservation_id: str) -> MoveWishes:
        """To be read only."""
        return self._kept.get(reservation_id, NO_WISHES)

    def said(self, reservation_id: str, block_hashes: Hashes, wishes: MoveWishes) -> None:
        """What the request said whose reservation was just booked.

        block_hashes: uint64[n], of its prompt
        """
        self._forget(reservation_id)
        if self._names + wishes.n_names > NAMES_MAX:
            wishes = MoveWishes(priority=wishes.priority, migratable=False)
        self._keep(reservation_id, block_hashes, wishes)

    def _keep(self, reservation_id: str, block_hashes: Hashes, wishes: MoveWishes) -> None:
        if self._blocks + len(block_hashes) <= BLOCKS_MAX:
            wishes = wishes._replace(block_hashes=bounded(block_hashes))
        self._kept[reservation_id] = wishes
        self._blocks += len(wishes.block_hashes)
        self._names += wishes.n_names

    def _forget(self, reservation_id: str) -> None:
        wishes = self._kept.pop(reservation_id, None)
        if wishes is not None:
            self._blocks -= len(wishes.block_hashes)
            self._names -= wishes.n_names

    # --- what is told by the ledger

    def booked(self, booking: NewBooking, cause: "Cause", now: float) -> None:
        """A usual request says nothing but its prompt."""
        if cause == "client":
            self._forget(booking.reservation_id)
            self._keep(booking.reservation_id, booking.prompt, NO_WISHES)

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
