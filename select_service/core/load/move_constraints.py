"""Store of the migration constraints of live reservations.

Used only where moves are possible.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from select_service.core.load.new_reservation import (
    BOOKED_BLOCKS_MAX,
    NO_MOVE_CONSTRAINTS,
    NO_PROMPT,
    MoveConstraints,
    NewReservation,
    bound_hashes,
)
from select_service.core.load.reservation_view import ReservationView

if TYPE_CHECKING:
    from select_service.core.load.ledger import Cause

BLOCKS_MAX = 8_388_608
"""Limit of all stored block hashes, 64 MiB; prompts beyond are moved as if cached nowhere."""
NAMES_MAX = 1_048_576
"""Limit of all stored workers and taints; reservations beyond become immovable."""


class MoveConstraintStore:
    """Migration constraints by reservation, for those admitted by this process.  Follows the
    ledger.
    """

    def __init__(self) -> None:
        self._by_reservation: dict[str, MoveConstraints] = {}
        self._blocks = self._names = 0

    def constraints_of(self, reservation_id: str) -> MoveConstraints:
        """Return the constraints of a reservation, read-only."""
        return self._by_reservation.get(reservation_id, NO_MOVE_CONSTRAINTS)

    def store_constraints(self, reservation_id: str, constraints: MoveConstraints) -> None:
        """Store the constraints of the request for a new reservation, with its whole
        prompt.
        """
        self._drop_constraints(reservation_id)
        if constraints.is_restrictive and self._names + constraints.n_names > NAMES_MAX:
            # Without its constraints the reservation could end up on a forbidden rank, so it stays.
            constraints = MoveConstraints(
                constraints.block_hashes, constraints.priority, migratable=False
            )
        blocks = len(constraints.block_hashes)
        if self._blocks + blocks > BLOCKS_MAX:
            constraints, blocks = constraints._replace(block_hashes=NO_PROMPT), 0
        elif blocks > BOOKED_BLOCKS_MAX:
            constraints = constraints._replace(block_hashes=bound_hashes(constraints.block_hashes))
            blocks = BOOKED_BLOCKS_MAX
        self._by_reservation[reservation_id] = constraints
        self._blocks += blocks
        if constraints.is_restrictive:
            self._names += constraints.n_names

    def _drop_constraints(self, reservation_id: str) -> None:
        wishes = self._by_reservation.pop(reservation_id, None)
        if wishes is not None:
            self._blocks -= len(wishes.block_hashes)
            if wishes.is_restrictive:
                self._names -= wishes.n_names

    # Notifications of the ledger

    def on_booked(self, booking: NewReservation, cause: "Cause", now: float) -> None:
        """Store the constraints; a booking without any is a usual request's and has only a
        prompt.
        """
        if cause == "client":
            wishes = booking.move_constraints
            self.store_constraints(
                booking.reservation_id,
                MoveConstraints(booking.prompt) if wishes is None else wishes,
            )

    def on_prefill_completed(self, booking: ReservationView, cause: "Cause", now: float) -> None:
        """Ignore completions, which change no constraint."""

    def on_released(self, booking: ReservationView, cause: "Cause", now: float) -> None:
        if cause != "moved":
            self._drop_constraints(booking.reservation_id)

    def check_invariants(self, live: Iterable[str]) -> None:
        """Check the invariants, for tests.

        live: ids of all reservations
        """
        assert self._by_reservation.keys() <= set(live)
        assert (
            self._blocks
            == sum(len(w.block_hashes) for w in self._by_reservation.values())
            <= BLOCKS_MAX
        )
        assert self._names == sum(w.n_names for w in self._by_reservation.values()) <= NAMES_MAX
