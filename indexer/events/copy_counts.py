"""Counts of the copies that ranks announce: repeated stores may be copies, or repetitions."""

from collections import Counter


class CopyCounts:
    """Copies of blocks in the GPU tier, by rank, and whether repeated stores count as copies.

    is_counted: repeated stores count as copies, until they prove to be none
    """

    def __init__(self, is_counted: bool) -> None:
        self.is_counted = is_counted
        self.total_blocks: int | None = None
        """Blocks of the GPU tier of each rank; None if unknown."""
        self.inflated_rank: int | None = None
        """Rank with more announced copies than blocks, which proves that repeated stores are no
        copies.
        """
        self.counts_duplicates = True
        """False while events may repeat stores that the index has already: then none is counted."""
        self._copies: Counter[int] = Counter()
        """Copies per rank; never more than the index counts."""

    @property
    def counts_now(self) -> bool:
        """Whether a repeated store counts as a copy now."""
        return self.is_counted and self.counts_duplicates

    def add_copies(self, rank: int, change: int) -> None:
        """Adjust the copies of a rank.  Copies from before this stream was opened are unknown."""
        assert self.total_blocks is not None
        self._copies[rank] = max(0, self._copies[rank] + change)
        # An engine cannot hold more copies than blocks, so its repeated stores must be idempotent.
        if self.is_counted and self._copies[rank] > self.total_blocks:
            self.inflated_rank = rank

    def forget_rank(self, rank: int) -> None:
        self._copies[rank] = 0

    def forget_ranks(self) -> None:
        self._copies.clear()

    def stop_counting(self) -> None:
        """Treat repeated stores as no copies from now on."""
        self.is_counted, self.inflated_rank = False, None
