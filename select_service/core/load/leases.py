"""When bookings end that nobody renews.  O(1) per call, whatever the number of bookings."""

from itertools import islice
from math import ceil, floor

from select_service.core.load.booking import Booking
from select_service.core.load.shelves import Shelves

GRAIN_S = 0.125
"""Leases that end within it are looked at together: one may end so much late, but never early."""


class Leases:
    """On shelves by the time of their end, counted in grains."""

    def __init__(self, ttl_s: float) -> None:
        """ttl_s: seconds without renewal after which a booking expires; 0 = never"""
        self.ttl_s = ttl_s
        self._by_end = Shelves()

    def begin(self, booking: Booking, now: float, lease_s: float | None = None) -> None:
        """lease_s: a first lease that is shorter, if it is"""
        booking.renewed_at = now
        if lease_s is not None and lease_s < self.ttl_s:
            booking.lease_ends_at = now + lease_s
        self._put(booking)

    def renew(self, booking: Booking, now: float) -> None:
        """Let it end the time to live from now."""
        booking.renewed_at, booking.lease_ends_at = now, None
        self._put(booking)

    def end_of(self, booking: Booking) -> float:
        """When it ends, if leases end at all."""
        end = booking.lease_ends_at
        return booking.renewed_at + self.ttl_s if end is None else end

    def _put(self, booking: Booking) -> None:
        due = ceil(self.end_of(booking) / GRAIN_S) if self.ttl_s else None
        if due != booking.due:
            self.forget(booking)
            if due is not None:
                self._by_end.put(due, booking)
            booking.due = due

    def forget(self, booking: Booking) -> None:
        """Its lease is of no more interest."""
        if booking.due is not None:
            self._by_end.take(booking.due, booking)
            booking.due = None

    def overdue(self, now: float, at_most: int) -> list[Booking]:
        """Some whose lease has ended, the oldest first."""
        return list(islice(self._by_end.between(last=floor(now / GRAIN_S)), at_most))

    def check_invariants(self, held: list[Booking]) -> None:
        """For tests."""
        found = list(self._by_end.between())
        assert {b.order for b in found} == ({b.order for b in held} if self.ttl_s else set())
        assert [b.due for b in found] == [ceil(self.end_of(b) / GRAIN_S) for b in found]
