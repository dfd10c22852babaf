"""How well the predictions about one rank came true, as running means."""

from select_service.core.identity import Rank

REMEMBERED = 32
"""About so many checks back go into a mean."""
JUDGED_FROM = 8
"""Checks before a rank is called suspect."""
SUSPECT_BELOW = 0.5


class RankTrust:
    """Begins anew with what the index knows of the rank."""

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
        """Prompts that were looked for in the index."""
        self.trust = 1.0
        """Mean share of their new blocks that the engine has announced; 1 before the first."""
        self.waits = 0
        """Waits that were compared with what was believed."""
        self.wait_error = 0.0
        """Mean of |observed - believed| / the longer one, 0 to 1."""
        self._drained_tokens = self._drained_s = 0.0

    @property
    def is_suspect(self) -> bool:
        return self.checks >= JUDGED_FROM and self.trust < SUSPECT_BELOW

    @property
    def tokens_per_s(self) -> float | None:
        """How fast it came through the work before a prompt and the prompt; None: not known."""
        return self._drained_tokens / self._drained_s if self._drained_s else None

    def proved(self, share: float) -> None:
        """Enter a check.  share: of the blocks that the engine had to announce, 0 to 1"""
        self.checks += 1
        self.trust += (share - self.trust) / min(self.checks, REMEMBERED)

    def waited(self, tokens: int, seconds: float) -> float | None:
        """Enter a wait; observed over believed, None for the first, of which nothing was believed.

        tokens: that were before the end of the prefill when it was booked, from 1
        seconds: until the end, above 0
        """
        rate = self.tokens_per_s
        kept = 1.0 - 1.0 / REMEMBERED
        self._drained_tokens = self._drained_tokens * kept + tokens
        self._drained_s = self._drained_s * kept + seconds
        if rate is None:
            return None
        believed = tokens / rate
        self.waits += 1
        error = abs(seconds - believed) / max(seconds, believed)
        self.wait_error += (error - self.wait_error) / min(self.waits, REMEMBERED)
        return seconds / believed
