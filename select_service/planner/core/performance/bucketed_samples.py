"""Bounded samples of iterations in buckets, and running averages.

The buckets keep the range: a steady load would otherwise push out the few samples of other loads,
and no slope could be fitted.
"""

from collections import deque
from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

AVERAGE_WINDOW = 64
"""Number of values of an average."""


class LoadSample(NamedTuple):
    """Sample of an iteration.

    x:    tokens or requests, on one or two axes
    y:    seconds of the iteration
    at_s: time of the observation
    """

    x: tuple[float, ...]
    y: float
    at_s: float = 0.0


class RunningAverage:
    """Mean of the last values; zeros before the first other value are ignored."""

    def __init__(self, window: int = AVERAGE_WINDOW) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add_value(self, value: float) -> None:
        """Add a value; a zero counts only after another value."""
        if self._values or value > 0:
            self._values.append(value)

    @property
    def mean_value(self) -> float:
        """Mean; 0 before the first value."""
        return sum(self._values) / len(self._values) if self._values else 0.0


class BucketedSamples:
    """Samples, at most `samples_max`, spread over `buckets` cells of the observed range.

    axes: 1 or 2;  buckets: number of cells, a perfect square
    """

    def __init__(self, axes: int, samples_max: int, buckets: int) -> None:
        assert axes in (1, 2)
        assert samples_max > 0
        assert isqrt(buckets) ** 2 == buckets > 0
        self._samples_max = samples_max
        self._cells = buckets if axes == 1 else isqrt(buckets)
        self._low = [0.0] * axes
        self._high = [0.0] * axes
        self._buckets: dict[tuple[int, ...], deque[LoadSample]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[LoadSample]:
        for bucket in self._buckets.values():
            yield from bucket

    @property
    def largest_seen(self) -> tuple[float, ...]:
        """Largest x of each axis ever observed."""
        return tuple(self._high)

    def add_sample(self, sample: LoadSample) -> None:
        """Add a sample; beyond the bound the oldest of the fullest bucket is dropped.
        O(samples_max)
        """
        # Cells are relative to the range, so a wider range moves every sample. Rare once loads are
        # known.
        if self._widen_range(sample.x):
            kept = list(self)
            self._buckets = {}
            for other in kept:
                self._put_sample(other)
        self._put_sample(sample)
        self._count += 1
        if self._count > self._samples_max:
            # Dropping from the fullest bucket keeps rare loads, on which the slope depends.
            fullest = max(self._buckets.values(), key=len)
            fullest.popleft()
            self._count -= 1

    def _widen_range(self, x: tuple[float, ...]) -> bool:
        """Extend the range; return whether it grew."""
        if not self._count:
            self._low, self._high = list(x), list(x)
            return False
        low = [min(a, b) for a, b in zip(self._low, x, strict=True)]
        high = [max(a, b) for a, b in zip(self._high, x, strict=True)]
        grew = low != self._low or high != self._high
        self._low, self._high = low, high
        return grew

    def _put_sample(self, sample: LoadSample) -> None:
        """Add a sample to its bucket."""
        self._buckets.setdefault(self._cell_of(sample.x), deque()).append(sample)

    def _cell_of(self, x: tuple[float, ...]) -> tuple[int, ...]:
        """Return the cell of a load."""
        return tuple(
            min(int((value - low) / (high - low) * self._cells), self._cells - 1)
            if high > low
            else 0
            for value, low, high in zip(x, self._low, self._high, strict=True)
        )
