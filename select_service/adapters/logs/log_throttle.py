"""Log throttle: a fault that persists or recurs quickly is logged once per episode."""

QUIET_S = 60.0
"""Seconds without the fault after which the next occurrence is logged again."""


class LogThrottle:
    """Last occurrence of each fault.  Fault names come from the code, so the table stays small."""

    def __init__(self) -> None:
        self._last_seen: dict[str, float] = {}

    def begins_episode(self, fault: str, now: float) -> bool:
        """Record an occurrence; return True for the first one after QUIET_S without the fault."""
        last = self._last_seen.get(fault)
        self._last_seen[fault] = now
        # Every occurrence renews the time: a fault that never pauses stays one episode.
        return last is None or now - last >= QUIET_S
