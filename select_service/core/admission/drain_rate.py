"""Drain rate of a partition, the basis of Retry-After headers.

Exponentially weighted rates over the last seconds, from running sums of completed prefill tokens
and freed blocks.  The result is an estimate only.
"""

from math import ceil, exp, inf

from select_service.core.load.new_reservation import DrainedTotals

MEMORY_S = 10.0
"""Time constant of the rates, seconds: older changes have a weight below 37 %."""
RETRY_AFTER_UNKNOWN_S = 5
"""Retry-After before anything has drained, seconds."""
RETRY_AFTER_S_MAX = 60

TOKEN_S = 1.2e-4
"""Assumed seconds per prefill token of a rank before anything has drained."""
TOKEN_S_MIN, TOKEN_S_MAX = 1e-5, 1e-3
"""Bounds of the seconds per token; rates of idle or cached fleets show little of a rank's
speed.
"""


class DrainRate:
    """Prefill tokens and blocks drained per second from a partition."""

    __slots__ = ("_at", "_seen", "blocks_per_s", "tokens_per_s")

    def __init__(self, totals: DrainedTotals, now: float) -> None:
        self.tokens_per_s = 0.0
        self.blocks_per_s = 0.0
        self._seen = totals
        self._at = now

    def observe_totals(self, totals: DrainedTotals, now: float) -> None:
        """Update the rates with the current sums."""
        elapsed = now - self._at
        # Two ticks in the same instant have no rate.
        if elapsed <= 0.0:
            return
        # Ticks are not exactly periodic, so the weight follows the elapsed time.
        keep = exp(-elapsed / MEMORY_S)
        # The sums restart at 0 after all workers of a partition were replaced.
        old = self._seen if totals.tokens >= self._seen.tokens else DrainedTotals()
        tokens = (totals.tokens - old.tokens) / elapsed
        blocks = max(0, totals.blocks - old.blocks) / elapsed
        self.tokens_per_s = keep * self.tokens_per_s + (1.0 - keep) * tokens
        self.blocks_per_s = keep * self.blocks_per_s + (1.0 - keep) * blocks
        self._seen, self._at = totals, now

    def seconds_per_token(self, n_ranks: int) -> float:
        """Return the seconds per prefill token of one of `n_ranks` ranks, within the bounds."""
        if self.tokens_per_s <= 0.0:
            return TOKEN_S
        return min(TOKEN_S_MAX, max(TOKEN_S_MIN, n_ranks / self.tokens_per_s))


def retry_after_seconds(work: float, per_second: float) -> int:
    """Return whole seconds, 1 to RETRY_AFTER_S_MAX, until `work` has drained."""
    if work <= 0.0:
        return 1
    seconds = work / per_second if per_second > 0.0 else inf
    return round_up_seconds(RETRY_AFTER_UNKNOWN_S if seconds == inf else seconds)


def round_up_seconds(seconds: float) -> int:
    """Return seconds rounded up, within the bounds."""
    return min(RETRY_AFTER_S_MAX, max(1, ceil(seconds)))
