"""Bookings that may be left at selectors that gave no answer, and must not stay.  PURE."""

from collections import OrderedDict

DEBTS_MAX = 20_000
"""Of one selector; beyond that the oldest is left to its time to live."""


class Debts:
    """By selector: reservation ids and until when they can be there."""

    def __init__(self) -> None:
        self._owed: dict[str, OrderedDict[str, float]] = {}

    def add(self, url: str, reservation_id: str, until: float) -> None:
        owed = self._owed.setdefault(url, OrderedDict())
        owed[reservation_id] = until
        if len(owed) > DEBTS_MAX:
            owed.popitem(last=False)

    def next(self, url: str, now: float) -> str | None:
        """One that is owed to `url`; None: there is none."""
        owed = self._owed.get(url)
        while owed:
            reservation_id, until = next(iter(owed.items()))
            if now < until:
                return reservation_id
            del owed[reservation_id]
        return None

    def settled(self, url: str, reservation_id: str) -> None:
        self._owed[url].pop(reservation_id, None)
