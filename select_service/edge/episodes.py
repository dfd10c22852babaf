"""Faults that go on or come back at once are one episode, of which the log tells once."""

QUIET_S = 60.0
"""A fault that was not seen for so long has ended; the next one is logged again."""


class Episodes:
    """When each fault was seen last.  Faults are named by the code, so there are few."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def begins(self, fault: str, now: float) -> bool:
        """Note that a fault was seen.  True: for the first time after QUIET_S."""
        last = self._seen.get(fault)
        self._seen[fault] = now
        return last is None or now - last >= QUIET_S
