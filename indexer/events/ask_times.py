"""When the replay endpoint is asked where the engine is, and when it is left alone.

Time is an argument: `now`, monotonic seconds.
"""

from indexer.events.catch_up import PROBE_S

SETTLE_S = 0.05
"""After a connection, before the question: by then the engine must know of the subscription."""
IDLE_S = 60.0
"""After so long without a live batch it is asked whether one is missing."""


class AskTimes:
    """Of one stream, which may have no replay endpoint: then nothing is ever due."""

    def __init__(self, can_replay: bool) -> None:
        self._can_replay = can_replay
        self._is_connected = False
        self._due_at: float | None = None
        self._answered_at = float("-inf")
        self._left_alone_until = float("-inf")

    @property
    def due_at(self) -> float | None:
        """When `is_due` should be asked next; None while a question makes no sense."""
        return self._due_at

    def is_due(self, now: float) -> bool:
        return self._due_at is not None and now >= self._due_at

    def is_due_when_idle(self, now: float, heard_at: float | None) -> bool:
        """Is a question due although nothing is uncertain?  If not, it is put off.

        heard_at: when the last live batch came
        """
        known_at = max(self._answered_at, float("-inf") if heard_at is None else heard_at)
        self._due_at = known_at + IDLE_S
        return now >= self._due_at

    def may_ask(self, now: float) -> bool:
        """About a gap, which does not wait for a time that is due."""
        return self._can_replay and now >= self._left_alone_until

    def connected(self, now: float) -> None:
        self._is_connected = True
        if self._can_replay:
            self._due_at = now + SETTLE_S

    def disconnected(self) -> None:
        self._is_connected = False
        self._due_at = None

    def answered(self, now: float) -> bool:
        """An answer has come to its end.  False: it proves nothing, as live batches may be missed
        meanwhile."""
        if not self._is_connected:
            return False
        self._answered_at = now
        self._due_at = now + IDLE_S
        return True

    def given_up(self, now: float) -> None:
        """No useful answer came."""
        if self._is_connected:
            self._due_at = now + PROBE_S

    def leave_alone(self, now: float) -> None:
        """The endpoint is dead or useless: no gap is worth a question for a while."""
        self._left_alone_until = now + PROBE_S

    def begin_anew(self) -> None:
        """The engine has restarted, and its endpoint with it."""
        self._left_alone_until = float("-inf")
