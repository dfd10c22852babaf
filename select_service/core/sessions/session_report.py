"""Numbers of sessions for metrics."""

from collections.abc import Mapping
from typing import NamedTuple

from select_service.core.sessions.session_directory import SessionDirectory
from select_service.core.sessions.session_router import SessionRouter
from select_service.core.sessions.session_table import SessionCounts


class SessionReport(NamedTuple):
    """Numbers of the sessions of a process.

    live: sessions, including sessions that expired within the last second
    leases: live reservations that belong to a session
    waiting: queued requests that belong to a session
    counts: sums since the start
    moved: bookings on another rank than the session's, by reason
    ignored_leads: versions of replicas too far ahead of the clock
    """

    live: int
    leases: int
    waiting: int
    counts: SessionCounts
    moved: Mapping[str, int]
    ignored_leads: int


def make_session_report(sessions: SessionRouter, waiting: int) -> SessionReport:
    """Return the numbers of the sessions of a process.  O(scopes)"""
    directory: SessionDirectory = sessions.directory
    counts = directory.counts
    moved: dict[str, int] = {str(reason): n for reason, n in sessions.moves.items()}
    # The table counts all moves; the router counts moves for other reasons than the cost.
    moved["cost"] = counts.moved - sum(moved.values())
    return SessionReport(
        len(directory), directory.n_leases, waiting, counts, moved, directory.ignored_leads
    )
