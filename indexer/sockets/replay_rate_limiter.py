"""Rate limit of replay requests by the ranks of a thread.

A request takes a connection of its own, and after a network fault all ranks send one at once.
"""

REPLAY_REQUESTS_PER_S = 50.0
REQUEST_BURST = 50
"""Burst size: requests that may follow one another immediately after a pause."""


class ReplayRateLimiter:
    """Token bucket; times are monotonic seconds.  Belongs to one thread."""

    def __init__(self) -> None:
        self._full_at = float("-inf")

    def seconds_until_permit(self, now: float) -> float:
        """Return the seconds until the next permit; 0 if one is there."""
        # The bucket is stored as the time when it is full again, so that waiting needs no updates.
        permits = REQUEST_BURST - max(0.0, self._full_at - now) * REPLAY_REQUESTS_PER_S
        return max(0.0, 1.0 - permits) / REPLAY_REQUESTS_PER_S

    def take_permit(self, now: float) -> None:
        self._full_at = max(self._full_at, now) + 1.0 / REPLAY_REQUESTS_PER_S
