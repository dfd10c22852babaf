"""Bookings in an order, on numbered shelves: nothing here ever grows in one long step.

A shelf is a small dictionary.  One dictionary for all bookings would stop everything when it grows:
with 175,000 entries for 5 to 10 ms of CPU, an OrderedDict for 30.
"""

from collections.abc import Iterator
from itertools import chain

from sortedcontainers import SortedDict

from select_service.core.load.booking import Booking


class Shelves:
    """Ordered by the number of the shelf, then by when they were put there."""

    def __init__(self) -> None:
        self._shelves: SortedDict[int, dict[int, Booking]] = SortedDict()

    def put(self, shelf: int, booking: Booking) -> None:
        """On a shelf on which it is not."""
        found = self._shelves.get(shelf)
        if found is None:
            found = self._shelves[shelf] = {}
        found[booking.order] = booking

    def take(self, shelf: int, booking: Booking) -> None:
        """From the shelf on which it is."""
        found = self._shelves[shelf]
        del found[booking.order]
        if not found:
            del self._shelves[shelf]

    def between(self, first: int | None = None, last: int | None = None) -> Iterator[Booking]:
        """Those of the shelves from `first` to `last`, both included."""
        shelves = self._shelves
        return chain.from_iterable(
            shelves[number].values() for number in shelves.irange(minimum=first, maximum=last)
        )
