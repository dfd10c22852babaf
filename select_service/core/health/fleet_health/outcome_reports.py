"""Client reports about requests: the rank of each, and whether the report counts."""

from select_service.core.health.health_kinds import RequestOutcome
from select_service.core.health.health_monitor import HealthMonitor
from select_service.core.health.outcome_trust import (
    EndedReservations,
    OutcomeReport,
    ReportTrust,
    outcome_of_status,
)
from select_service.core.identity import Rank
from select_service.core.load.ledger import Cause
from select_service.core.load.new_reservation import NewReservation
from select_service.core.load.reservation_view import ReservationView
from select_service.core.load.reservations import Reservations
from select_service.schemas.health import OutcomeRequest


def outcome_of(request: OutcomeRequest) -> RequestOutcome:
    """Return the outcome of a report; a 4xx of the engine is the client's fault and no failure."""
    if request.outcome is None:
        assert request.status is not None, "see OutcomeRequest"
        return outcome_of_status(request.status)
    outcome = RequestOutcome(request.outcome)
    is_ours = request.status is not None and 400 <= request.status < 500
    return RequestOutcome.NEUTRAL if is_ours and outcome is RequestOutcome.FAILURE else outcome


class OutcomeReports:
    """Listener of the ledger that records the ranks of ended reservations."""

    def __init__(self, monitor: HealthMonitor, reservations: Reservations) -> None:
        self._monitor = monitor
        self._reservations = reservations
        self._ended = EndedReservations()
        self._trust = ReportTrust()

    def process_report(self, report: OutcomeReport, now: float) -> None:
        """Process a report about a known rank; an untrusted report causes a check at most."""
        if report.reservation_id is not None:
            # A reservation is one request, whatever count the client sends.
            report = report._replace(times=1)
        was_on = self._reservation_rank(report, now)
        is_trusted = self._trust.is_trusted(report, was_on, now)
        if report.outcome in (RequestOutcome.FAILURE, RequestOutcome.FATAL):
            self._monitor.counters.trusted_reports += is_trusted
            self._monitor.counters.untrusted_reports += not is_trusted
        self._monitor.process_report(report, is_trusted, now)

    def _reservation_rank(self, report: OutcomeReport, now: float) -> Rank | None:
        """Return the current or last rank of the reservation, preferring the reported rank."""
        name = report.reservation_id
        if name is None:
            return None
        held, ended = self._reservations.find_reservation(name), self._ended.rank_of(name, now)
        # After a migration a client may still report about the old rank, which it really used.
        if ended == report.rank or held is None:
            return ended
        return held.rank

    def on_booked(self, booking: NewReservation, cause: Cause, now: float) -> None:
        """Ignore the event."""

    def on_prefill_completed(self, booking: ReservationView, cause: Cause, now: float) -> None:
        """Ignore the event."""

    def on_released(self, booking: ReservationView, cause: Cause, now: float) -> None:
        """Record the rank; a migrated reservation is released on its old rank."""
        self._ended.record_end(booking.reservation_id, booking.rank, now)
