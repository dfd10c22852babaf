"""What callers report of requests, and how much of it is believed.

A failure counts only with a reservation that is or was on that rank, once for each, or from a
reporter that the operator trusts; everybody else can cause a check and no more.  So one broken
client cannot take a rank out, and requests that were the client's own fault never do.
"""

from collections import OrderedDict
from typing import NamedTuple

from select_service.core.health.kinds import Outcome
from select_service.core.identity import Rank

REMEMBERED_S = 600.0
"""How long it is known where a reservation was that has ended, and which have been reported."""
REMEMBERED_MAX = 131_072


class OutcomeReport(NamedTuple):
    """times: that requests ended so;  is_trusted: by where the caller calls from"""

    rank: Rank
    outcome: Outcome
    reservation_id: str | None = None
    is_trusted: bool = False
    times: int = 1


def outcome_of_status(status: int) -> Outcome:
    """Of a response whose caller says no more than its status."""
    if 200 <= status < 300:
        return Outcome.OK
    is_failure = status >= 500 and status != 503
    return Outcome.FAILURE if is_failure else Outcome.NEUTRAL


class EndedReservations:
    """On which rank reservations were that have ended not long ago."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, tuple[Rank, float]] = OrderedDict()

    def note(self, reservation_id: str, rank: Rank, now: float) -> None:
        """It has ended.  O(1) amortised"""
        self._ended[reservation_id] = (rank, now)
        self._ended.move_to_end(reservation_id)
        while len(self._ended) > REMEMBERED_MAX or self._oldest_at() < now - REMEMBERED_S:
            self._ended.popitem(last=False)

    def rank_of(self, reservation_id: str, now: float) -> Rank | None:
        """None: not known, or too long ago."""
        rank, at = self._ended.get(reservation_id, (None, 0.0))
        return rank if now - at <= REMEMBERED_S else None

    def _oldest_at(self) -> float:
        return next(iter(self._ended.values()))[1]


class Believing:
    """Which reports count."""

    def __init__(self) -> None:
        self._reported: OrderedDict[str, float] = OrderedDict()

    def believed(self, report: OutcomeReport, was_on: Rank | None, now: float) -> bool:
        """was_on: where its reservation is or was.  A second failure of one is not believed."""
        if report.outcome in (Outcome.OK, Outcome.NEUTRAL):
            return True
        evidence = report.reservation_id
        if evidence is None or was_on != report.rank:
            return report.is_trusted
        self._forget(now)
        if evidence in self._reported:
            return False
        self._reported[evidence] = now
        return True

    def _forget(self, now: float) -> None:
        reported = self._reported
        while reported:
            oldest = next(iter(reported.values()))
            if oldest >= now - REMEMBERED_S and len(reported) < REMEMBERED_MAX:
                return
            reported.popitem(last=False)
