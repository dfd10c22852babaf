"""Observations of bookings for later migrations: constraints and speeds, as one ledger listener."""

from collections.abc import Iterable

from select_service.core.health.migration.speed_estimates import SpeedEstimates
from select_service.core.load.ledger import Cause
from select_service.core.load.move_constraints import MoveConstraintStore
from select_service.core.load.new_reservation import NewReservation
from select_service.core.load.reservation_view import ReservationView


class BookingObserver:
    """Listener of the ledger for constraints and speeds."""

    def __init__(self, wishes: MoveConstraintStore) -> None:
        self.constraints = wishes
        self.speeds = SpeedEstimates()

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        self.constraints.on_booked(booking, cause, now)
        self.speeds.on_booked(booking, cause, now)

    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None:
        self.speeds.on_prefill_completed(booking, cause, now)

    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None:
        self.constraints.on_released(booking, cause, now)
        self.speeds.on_released(booking, cause, now)

    def check_invariants(self, live: Iterable[str]) -> None:
        """Assert internal consistency; used by tests. live: ids of all reservations"""
        self.constraints.check_invariants(live)
        self.speeds.check_invariants()
