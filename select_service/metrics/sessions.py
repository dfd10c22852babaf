"""Metrics of sessions."""

from collections.abc import Sequence

from select_service.core.sessions.session_report import SessionReport
from select_service.metrics.series import FamilyRow

SESSIONS: Sequence[FamilyRow[SessionReport]] = (
    FamilyRow("sessions", "Sessions whose rank is remembered now.", lambda r: r.live),
    FamilyRow(
        "session_reservations", "Live reservations that belong to a session.", lambda r: r.leases
    ),
    FamilyRow(
        "session_requests_waiting",
        "Requests in the queue that belong to a session.",
        lambda r: r.waiting,
    ),
    FamilyRow(
        "sessions_created_total",
        "Sessions that a booking here bound to a rank.",
        lambda r: r.counts.created,
    ),
    FamilyRow(
        "session_hits_total",
        "Bookings on the rank of their session.",
        lambda r: r.counts.followed,
    ),
    FamilyRow(
        "session_moves_total",
        "Bookings on another rank than that of their session, by reason as in answers.",
        lambda r: r.moved,
        ("reason",),
    ),
    FamilyRow(
        "sessions_ended_total",
        "Sessions that ended: idle for too long, evicted as the longest idle of a full table, or "
        "ended by callers.",
        lambda r: {
            "idle": r.counts.expired,
            "evicted": r.counts.evicted,
            "caller": r.counts.ended,
        },
        ("cause",),
    ),
    FamilyRow(
        "session_table_full_total",
        "Bookings without a session, because all of a full table had live reservations.",
        lambda r: r.counts.refused,
    ),
    FamilyRow(
        "session_versions_ignored_total",
        "Bindings of replicas ignored, because their version was over an hour ahead of the clock.",
        lambda r: r.ignored_leads,
    ),
)
