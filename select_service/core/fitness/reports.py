"""What callers say became of their requests: which rank they speak of, and whether it counts."""

from typing import NamedTuple

from select_service.bodies.health import OutcomeRequest
from select_service.core.health.kinds import Outcome
from select_service.core.health.monitor import HealthMonitor
from select_service.core.health.outcomes import (
    Believing,
    EndedReservations,
    OutcomeReport,
    outcome_of_status,
)
from select_service.core.identity import Rank
from select_service.core.load.booking import NewBooking
from select_service.core.load.held_booking import Booking
from select_service.core.load.ledger import Cause
from select_service.core.load.reservations import Reservations


class ReportCounts(NamedTuple):
    """believed: of those that count only if they are;  doubted: at most a check follows"""

    believed: int
    doubted: int


def outcome_of(given: OutcomeRequest) -> Outcome:
    """In the words of health.  What the engine calls the client's own fault is no failure."""
    if given.outcome is None:
        assert given.status is not None, "see OutcomeRequest"
        return outcome_of_status(given.status)
    outcome = Outcome(given.outcome)
    is_ours = given.status is not None and 400 <= given.status < 500
    return Outcome.NEUTRAL if is_ours and outcome is Outcome.FAILURE else outcome


class Reports:
    """Follows the ledger, to know where reservations were that have ended."""

    def __init__(self, monitor: HealthMonitor, held: Reservations) -> None:
        self._monitor = monitor
        self._held = held
        self._ended = EndedReservations()
        self._believing = Believing()
        self._believed = self._doubted = 0

    @property
    def counts(self) -> ReportCounts:
        """Since the start."""
        return ReportCounts(self._believed, self._doubted)

    def reported(self, report: OutcomeReport, now: float) -> None:
        """From somebody, about a rank that is here; what is not believed causes a check at most."""
        if report.reservation_id is not None:
            report = report._replace(times=1)
        was_on = self._was_on(report, now)
        is_believed = self._believing.believed(report, was_on, now)
        if report.outcome in (Outcome.FAILURE, Outcome.FATAL):
            self._believed += is_believed
            self._doubted += not is_believed
        self._monitor.reported(report, is_believed, now)

    def _was_on(self, report: OutcomeReport, now: float) -> Rank | None:
        """Where its reservation is or was, that rank first which the report is about."""
        name = report.reservation_id
        if name is None:
            return None
        held, ended = self._held.find(name), self._ended.rank_of(name, now)
        if ended == report.rank or held is None:
            return ended
        return held.rank

    # --- as a follower of the ledger

    def booked(self, booking: NewBooking, cause: Cause, now: float) -> None:
        """Of no interest."""

    def prefill_completed(self, booking: Booking, cause: Cause, now: float) -> None:
        """Of no interest."""

    def released(self, booking: Booking, cause: Cause, now: float) -> None:
        """Remember where it was.  A reservation that moves is released where it was before."""
        self._ended.note(booking.reservation_id, booking.rank, now)
