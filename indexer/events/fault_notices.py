"""Fault notices for operators, at most one per kind and interval."""

from enum import Enum

NOTICE_INTERVAL_S = 60.0
"""Shortest time between notices of the same kind, in seconds."""


class StreamFault(Enum):
    LOST = "KV events lost"
    REPLAY_FAILED = "KV event replay failed"
    RESTARTED = "Engine restarted, its blocks removed from the index"
    INFLATED = "Copies exceed the engine's blocks, counting disabled"
    UNREADABLE = "KV events unreadable"


class FaultNotices:
    """Pending notices of a stream, with details.  Time is an argument: monotonic seconds."""

    def __init__(self) -> None:
        self._noticed_at: dict[StreamFault, float] = {}
        self._pending: dict[StreamFault, str] = {}

    def add_notice(self, fault: StreamFault, detail: str, now: float) -> None:
        if now - self._noticed_at.get(fault, float("-inf")) >= NOTICE_INTERVAL_S:
            self._noticed_at[fault] = now
            self._pending[fault] = detail

    def take_pending(self) -> dict[StreamFault, str]:
        """Return the notices added since the last call."""
        if not self._pending:
            return self._pending
        taken, self._pending = self._pending, {}
        return taken
