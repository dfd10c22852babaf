"""When an estimate of capacity stops to count: while it refuses what it would be learnt from.

Speeds and lengths are learnt from requests. An estimate that is too low, because a bad time taught
it or because nothing was learnt yet, sheds requests, and so would stay too low for ever.
"""

from math import inf

STALE_S = 60.0
"""Nothing was booked for so long while requests were shed."""
PROVEN_S = 60.0
"""So long after the first request of a trial the estimate counts again, though none has ended."""


class Trial:
    """Of one model: the level follows the weights of ranks until requests have shown something."""

    def __init__(self) -> None:
        self._quiet_since: float | None = None
        """When something was last booked, or nothing shed; None: before the first look."""
        self._began: float | None = None
        self._first = inf
        """When the first request of the trial was booked."""

    @property
    def is_on(self) -> bool:
        """Does the estimate not count?"""
        return self._began is not None

    def look(self, *, sheds: bool, booked_at: float, ended_at: float, now: float) -> None:
        """booked_at, ended_at: of the last request, in s; -inf: none yet"""
        if self._began is not None:
            if booked_at >= self._began:
                self._first = min(self._first, booked_at)
            if ended_at > self._first or now - self._first >= PROVEN_S:
                self._began, self._quiet_since = None, now
            return
        if not sheds or self._quiet_since is None:
            self._quiet_since = now
        self._quiet_since = max(self._quiet_since, booked_at)
        if now - self._quiet_since >= STALE_S:
            self._began, self._first = now, inf
