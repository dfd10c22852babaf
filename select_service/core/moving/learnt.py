"""What is learnt from bookings for the time when ranks fail: wishes and pace, told in one go."""

from collections.abc import Iterable

from select_service.core.load.booking import NewBooking
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger import Cause
from select_service.core.load.move_wishes import KeptWishes
from select_service.core.moving.pace import Pace


class Learnt:
    """Follows the ledger."""

    def __init__(self, wishes: KeptWishes) -> None:
        self.wishes = wishes
        self.pace = Pace()

    def booked(self, booking: NewBooking, cause: Cause, now: float) -> None:
        self.wishes.booked(booking, cause, now)
        self.pace.booked(booking, cause, now)

    def prefill_completed(self, booking: Booking, cause: Cause, now: float) -> None:
        self.pace.prefill_completed(booking, cause, now)

    def released(self, booking: Booking, cause: Cause, now: float) -> None:
        self.wishes.released(booking, cause, now)
        self.pace.released(booking, cause, now)

    def check_invariants(self, live: Iterable[str]) -> None:
        """For tests.  live: the ids of all reservations"""
        self.wishes.check_invariants(live)
        self.pace.check_invariants()
