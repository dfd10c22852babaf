"""Schedule of requests to the replay endpoint, and pauses for a useless endpoint.

Time is an argument: `now`, monotonic seconds.
"""

from indexer.events.gap_recovery import PROBE_S

SETTLE_S = 0.05
"""Delay of the first request after a connection, in seconds: the engine must know the
subscription.
"""
IDLE_S = 60.0
"""Seconds without a live batch before a request checks for a loss."""


class ReplaySchedule:
    """Request times of a stream; without a replay endpoint nothing is ever due."""

    def __init__(self, can_replay: bool) -> None:
        self._can_replay = can_replay
        self._is_connected = False
        self.due_at: float | None = None
        """Time of the next `is_due` check; None while a request makes no sense."""
        self._answered_at = float("-inf")
        self._paused_until = float("-inf")

    def is_due(self, now: float) -> bool:
        return self.due_at is not None and now >= self.due_at

    def is_due_when_idle(self, now: float, heard_at: float | None) -> bool:
        """Return whether a request is due although nothing is uncertain; if not, postpone it.

        heard_at: time of the last live batch
        """
        known_at = max(self._answered_at, float("-inf") if heard_at is None else heard_at)
        self.due_at = known_at + IDLE_S
        return now >= self.due_at

    def may_request(self, now: float) -> bool:
        """Return whether a request about a gap is allowed, which waits for no due time."""
        return self._can_replay and now >= self._paused_until

    def on_connected(self, now: float) -> None:
        self._is_connected = True
        if self._can_replay:
            self.due_at = now + SETTLE_S

    def on_disconnected(self) -> None:
        self._is_connected = False
        self.due_at = None

    def on_answered(self, now: float) -> bool:
        """Record the end of an answer.  False means no proof, as live batches may be missed
        meanwhile.
        """
        if not self._is_connected:
            return False
        self._answered_at = now
        self.due_at = now + IDLE_S
        return True

    def on_given_up(self, now: float) -> None:
        """Record that no useful answer came."""
        if self._is_connected:
            self.due_at = now + PROBE_S

    def pause_requests(self, now: float) -> None:
        """Pause requests for gaps for a while, since the endpoint is dead or useless."""
        self._paused_until = now + PROBE_S

    def end_pause(self) -> None:
        """Allow requests again, since the engine and the endpoint have restarted."""
        self._paused_until = float("-inf")
