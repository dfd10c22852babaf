"""Reservations to free at selectors that gave no answer.  PURE."""

from collections import OrderedDict

PENDING_FREES_MAX = 20_000
"""Limit of a selector; beyond the limit the oldest reservation expires by its time to live."""


class PendingFrees:
    """Pending frees: reservation ids by selector, each with the time until the reservation can
    exist.
    """

    def __init__(self) -> None:
        self._pending: dict[str, OrderedDict[str, float]] = {}

    def add(self, url: str, reservation_id: str, until: float) -> None:
        owed = self._pending.setdefault(url, OrderedDict())
        owed[reservation_id] = until
        if len(owed) > PENDING_FREES_MAX:
            owed.popitem(last=False)

    def next_pending(self, url: str, now: float) -> str | None:
        """Return a reservation to free at `url`; None means that nothing is pending."""
        owed = self._pending.get(url)
        while owed:
            reservation_id, until = next(iter(owed.items()))
            # Later the reservation has expired at the selector by itself.
            if now < until:
                return reservation_id
            del owed[reservation_id]
        return None

    def discard(self, url: str, reservation_id: str) -> None:
        self._pending[url].pop(reservation_id, None)
