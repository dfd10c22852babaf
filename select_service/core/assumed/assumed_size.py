"""Number of blocks that a rank is assumed to keep in the cache.

A declared size (`total_kv_blocks`) is exact.  An undeclared size starts far too large and is
learned from the cached tokens that callers report: an engine that had less than was claimed has
evicted blocks that are still assumed.  A size that is too small costs more than a size that is too
large, because a prefix unknown to the selector is computed twice.
"""

from math import ceil

UNDECLARED_TOKENS = 4_194_304
"""Tokens that a rank without `total_kv_blocks` is assumed to keep at first: ten times a large
engine's cache.
"""
SHRINK_FACTOR, GROWTH_FACTOR = 0.97, 1.003
"""Factors of an undeclared size: after a claim that was too long; after a right claim when full."""
LEAST_SHARE, MOST_SHARE = 0.05, 1.5
"""Limits of an undeclared size, as shares of the first size."""


class AssumedSize:
    """Size of a rank in blocks."""

    __slots__ = ("_first", "_learned", "declared")

    def __init__(self, declared: int | None, block_size: int) -> None:
        """declared: `total_kv_blocks` of the rank; None or 0 means undeclared"""
        self.declared = declared or None
        self._first = max(1.0, UNDECLARED_TOKENS / block_size)
        self._learned = self._first

    @property
    def blocks(self) -> int:
        return self.declared or ceil(self._learned)

    def learn(self, is_over_claim: bool, is_full: bool) -> None:
        """Adapt an undeclared size.

        is_over_claim: whether the engine's cache had less than was claimed
        is_full: whether as many blocks are assumed as the size permits
        """
        if self.declared is not None:
            return
        factor = SHRINK_FACTOR if is_over_claim else GROWTH_FACTOR if is_full else 1.0
        least, most = LEAST_SHARE * self._first, MOST_SHARE * self._first
        self._learned = min(max(self._learned * factor, least), most)
