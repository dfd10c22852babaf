"""Client reports about requests, and rules for trusting them.

A failure counts only with a reservation that is or was on the rank, once per reservation, or from a
trusted reporter; other reports can only cause a check. One broken client therefore cannot take a
rank out of rotation, and requests that failed by the client's fault never do.
"""

from collections import OrderedDict
from typing import NamedTuple

from select_service.core.health.health_kinds import RequestOutcome
from select_service.core.identity import Rank

RETENTION_S = 600.0
"""Retention of ended and reported reservations, s."""
RETAINED_MAX = 131_072


class OutcomeReport(NamedTuple):
    """Reported outcome of requests.

    times: number of requests with this outcome
    is_trusted: the caller's address is trusted
    """

    rank: Rank
    outcome: RequestOutcome
    reservation_id: str | None = None
    is_trusted: bool = False
    times: int = 1


def outcome_of_status(status: int) -> RequestOutcome:
    """Return the outcome of a response from its HTTP status alone."""
    if 200 <= status < 300:
        return RequestOutcome.OK
    # 503 means overload: the request was rejected, but the rank works.
    is_failure = status >= 500 and status != 503
    return RequestOutcome.FAILURE if is_failure else RequestOutcome.NEUTRAL


class EndedReservations:
    """Ranks of recently ended reservations."""

    def __init__(self) -> None:
        self._ended: OrderedDict[str, tuple[Rank, float]] = OrderedDict()

    def record_end(self, reservation_id: str, rank: Rank, now: float) -> None:
        """Add an ended reservation. O(1) amortised"""
        self._ended[reservation_id] = (rank, now)
        self._ended.move_to_end(reservation_id)
        while len(self._ended) > RETAINED_MAX or self._oldest_at() < now - RETENTION_S:
            self._ended.popitem(last=False)

    def rank_of(self, reservation_id: str, now: float) -> Rank | None:
        """Return the rank of an ended reservation; None if unknown or expired."""
        rank, at = self._ended.get(reservation_id, (None, 0.0))
        return rank if now - at <= RETENTION_S else None

    def _oldest_at(self) -> float:
        return next(iter(self._ended.values()))[1]


class ReportTrust:
    """Trust rules for reports."""

    def __init__(self) -> None:
        self._reported: OrderedDict[str, float] = OrderedDict()

    def is_trusted(self, report: OutcomeReport, reservation_rank: Rank | None, now: float) -> bool:
        """Return whether a report counts; a second failure of the same reservation does not.

        reservation_rank: current or last rank of the reservation
        """
        if report.outcome in (RequestOutcome.OK, RequestOutcome.NEUTRAL):
            return True
        evidence = report.reservation_id
        # Without proof of a reservation on this rank the client could blame any rank.
        if evidence is None or reservation_rank != report.rank:
            return report.is_trusted
        self._drop_expired(now)
        if evidence in self._reported:
            return False
        # One report per reservation, so a client that retries its report cannot count twice.
        self._reported[evidence] = now
        return True

    def _drop_expired(self, now: float) -> None:
        reported = self._reported
        while reported:
            oldest = next(iter(reported.values()))
            if oldest >= now - RETENTION_S and len(reported) < RETAINED_MAX:
                return
            reported.popitem(last=False)
