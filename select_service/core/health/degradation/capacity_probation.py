"""Probation of a capacity estimate that blocks the requests it would be learnt from.

Speeds and lengths are learnt from requests. An estimate that is too low, after a bad period or
before any sample, sheds requests, and would therefore never be corrected.
"""

from math import inf

STALE_S = 60.0
"""Time without bookings, while requests are shed, after which probation starts, s."""
PROVEN_S = 60.0
"""Time after the first request of a probation until the estimate counts again in any case, s."""


class CapacityProbation:
    """Probation of a model: the level follows rank weights until requests provide new samples."""

    def __init__(self) -> None:
        self._quiet_since: float | None = None
        """Time of the last booking, or of the last moment without shedding; None before the first
        update.
        """
        self._began: float | None = None
        self._first = inf
        """Time of the first booking during probation, s."""

    @property
    def is_active(self) -> bool:
        """Whether the estimate is ignored."""
        return self._began is not None

    def update_state(
        self, *, is_shedding: bool, booked_at: float, ended_at: float, now: float
    ) -> None:
        """Update the state.

        booked_at, ended_at: time of the latest request, in s; -inf means no request yet
        """
        if self._began is not None:
            if booked_at >= self._began:
                self._first = min(self._first, booked_at)
            # One completed request gives the first sample; without reports, time has to do.
            if ended_at > self._first or now - self._first >= PROVEN_S:
                self._began, self._quiet_since = None, now
            return
        if not is_shedding or self._quiet_since is None:
            self._quiet_since = now
        self._quiet_since = max(self._quiet_since, booked_at)
        if now - self._quiet_since >= STALE_S:
            self._began, self._first = now, inf
