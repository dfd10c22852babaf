"""Counts of durations by bucket: what Prometheus calls a histogram."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """counts has one entry per bound, and a last one for what is above all of them."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        """bounds: upper ends of the buckets in seconds, rising"""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    def add_all(self, counts: Sequence[int], total_s: float) -> None:
        """counts: of further durations, by bucket"""
        self.counts = [old + new for old, new in zip(self.counts, counts, strict=True)]
        self.total_s += total_s

    def copy(self) -> "Histogram":
        found = Histogram(self.bounds)
        found.counts = self.counts.copy()
        found.total_s = self.total_s
        return found
