"""What an operator should hear of: each kind once per episode, whatever the stream does."""

from enum import Enum

NOTICE_INTERVAL_S = 60.0
"""Notices of one kind are at least this far apart."""


class Fault(Enum):
    LOST = "KV events lost"
    REPLAY_FAILED = "KV event replay failed"
    RESTARTED = "Engine restarted, its blocks are forgotten"
    INFLATED = "More copies announced than the engine has blocks; from now on none is counted"
    UNREADABLE = "KV events unreadable"


class Notices:
    """Of one stream, with its details.  Time is given: monotonic seconds."""

    def __init__(self) -> None:
        self._noticed: dict[Fault, float] = {}
        self._untold: dict[Fault, str] = {}

    def add(self, fault: Fault, detail: str, now: float) -> None:
        if now - self._noticed.get(fault, float("-inf")) >= NOTICE_INTERVAL_S:
            self._noticed[fault] = now
            self._untold[fault] = detail

    def take(self) -> dict[Fault, str]:
        """What happened since the last call."""
        if not self._untold:
            return self._untold
        taken, self._untold = self._untold, {}
        return taken
