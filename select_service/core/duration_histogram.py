"""Histogram of durations by bucket, in the sense of Prometheus."""

from bisect import bisect_left
from collections.abc import Sequence


class DurationHistogram:
    """Histogram of durations.

    counts: one entry per bound, and a last entry for durations above all bounds
    """

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Create an empty histogram.

        bounds: upper ends of the buckets in seconds, rising
        """
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        # Bounds are inclusive, as in Prometheus.
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    def add_all(self, counts: Sequence[int], total_s: float) -> None:
        """Add further durations.

        counts: number of these by bucket
        """
        self.counts = [old + new for old, new in zip(self.counts, counts, strict=True)]
        self.total_s += total_s

    def copy(self) -> "DurationHistogram":
        found = DurationHistogram(self.bounds)
        found.counts = self.counts.copy()
        found.total_s = self.total_s
        return found
