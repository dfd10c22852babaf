"""How fast load leaves a partition, for telling refused clients when to come again.

An estimate for a header: exponentially weighted rates over the last seconds, taken from running
sums of what was prefilled and freed.
"""

from math import ceil, exp, inf

from select_service.core.load.booking import Drained

MEMORY_S = 10.0
"""Time constant of the rates: what happened longer ago counts for less than 37 %."""
RETRY_AFTER_UNKNOWN_S = 5
"""When nothing has drained yet."""
RETRY_AFTER_S_MAX = 60

TOKEN_S = 1.2e-4
"""What a token of prefill takes a rank when nothing has drained yet."""
TOKEN_S_MIN, TOKEN_S_MAX = 1e-5, 1e-3
"""Rates of fleets that were idle, or are cached, say less than what a rank can do."""


class DrainRate:
    """Tokens and blocks per second that one partition sheds."""

    __slots__ = ("_at", "_seen", "blocks_per_s", "tokens_per_s")

    def __init__(self, seen: Drained, now: float) -> None:
        self.tokens_per_s = 0.0
        self.blocks_per_s = 0.0
        self._seen = seen
        self._at = now

    def observe(self, seen: Drained, now: float) -> None:
        """Take the sums of now into the rates."""
        elapsed = now - self._at
        if elapsed <= 0.0:
            return
        keep = exp(-elapsed / MEMORY_S)
        # The sums begin again when all workers of a partition were replaced.
        old = self._seen if seen.tokens >= self._seen.tokens else Drained()
        tokens = (seen.tokens - old.tokens) / elapsed
        blocks = max(0, seen.blocks - old.blocks) / elapsed
        self.tokens_per_s = keep * self.tokens_per_s + (1.0 - keep) * tokens
        self.blocks_per_s = keep * self.blocks_per_s + (1.0 - keep) * blocks
        self._seen, self._at = seen, now

    def token_s(self, n_ranks: int) -> float:
        """Seconds that a token of prefill takes one of so many ranks, within the bounds."""
        if self.tokens_per_s <= 0.0:
            return TOKEN_S
        return min(TOKEN_S_MAX, max(TOKEN_S_MIN, n_ranks / self.tokens_per_s))


def retry_after_s(work: float, per_second: float) -> int:
    """Whole seconds, 1 to RETRY_AFTER_S_MAX, until `work` has drained."""
    if work <= 0.0:
        return 1
    seconds = work / per_second if per_second > 0.0 else inf
    return whole_s(RETRY_AFTER_UNKNOWN_S if seconds == inf else seconds)


def whole_s(seconds: float) -> int:
    """Rounded up, within the bounds."""
    return min(RETRY_AFTER_S_MAX, max(1, ceil(seconds)))
