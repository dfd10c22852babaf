"""Accuracy of the predictions about a rank, as running means."""

from select_service.core.identity import Rank

MEMORY_CHECKS = 32
"""Approximate number of checks in a mean."""
CHECKS_MIN = 8
"""Minimum number of checks before a rank can be suspect."""
SUSPECT_BELOW = 0.5


class PredictionAccuracy:
    """Accuracy of a rank; restarts with the rank's index."""

    __slots__ = (
        "_drained_s",
        "_drained_tokens",
        "checks",
        "rank",
        "trust",
        "wait_error",
        "waits",
    )

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.checks = 0
        """Number of prompts looked up in the index."""
        self.trust = 1.0
        """Mean share of new blocks that the engine announced; 1 before the first check."""
        self.waits = 0
        """Number of waiting times compared with their prediction."""
        self.wait_error = 0.0
        """Mean of |observed - predicted| / the longer time, 0 to 1."""
        self._drained_tokens = self._drained_s = 0.0

    @property
    def is_suspect(self) -> bool:
        return self.checks >= CHECKS_MIN and self.trust < SUSPECT_BELOW

    @property
    def tokens_per_s(self) -> float | None:
        """Speed of processing the work before a prompt and the prompt, tokens/s; None without
        data.
        """
        return self._drained_tokens / self._drained_s if self._drained_s else None

    def add_check(self, share: float) -> None:
        """Add a check; share is the announced part of the expected blocks, 0 to 1."""
        self.checks += 1
        self.trust += (share - self.trust) / min(self.checks, MEMORY_CHECKS)

    def add_wait(self, tokens: int, seconds: float) -> float | None:
        """Add a waiting time; return observed divided by predicted time, None for the first.

        tokens: work up to the end of the prefill at booking, from 1
        seconds: time to the end, above 0
        """
        rate = self.tokens_per_s
        kept = 1.0 - 1.0 / MEMORY_CHECKS
        # Tokens and seconds decay separately: the quotient weights long prefills more.
        self._drained_tokens = self._drained_tokens * kept + tokens
        self._drained_s = self._drained_s * kept + seconds
        if rate is None:
            return None
        believed = tokens / rate
        self.waits += 1
        error = abs(seconds - believed) / max(seconds, believed)
        self.wait_error += (error - self.wait_error) / min(self.waits, MEMORY_CHECKS)
        return seconds / believed
