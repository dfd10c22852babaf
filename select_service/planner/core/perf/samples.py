"""What is kept of the iterations that were seen: bounded samples in buckets, and running averages.

The buckets keep the range: a steady load would otherwise push out the few samples of other loads,
without which no slope can be told.
"""

from collections import deque
from collections.abc import Iterator
from math import isqrt
from typing import NamedTuple

AVERAGE_WINDOW = 64
"""Values that an average looks back on."""


class Sample(NamedTuple):
    """x: tokens or requests, one or two axes;  y: seconds;  at_s: when it was seen"""

    x: tuple[float, ...]
    y: float
    at_s: float = 0.0


class Average:
    """Mean of the last values; zeros before the first other value are not values."""

    def __init__(self, window: int = AVERAGE_WINDOW) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add(self, value: float) -> None:
        """A zero counts only after something else."""
        if self._values or value > 0:
            self._values.append(value)

    @property
    def value(self) -> float:
        """0 before the first."""
        return sum(self._values) / len(self._values) if self._values else 0.0


class Samples:
    """At most `samples_max`, spread over `buckets` cells of the range seen.

    axes: 1 or 2;  buckets: cells in all, a perfect square
    """

    def __init__(self, axes: int, samples_max: int, buckets: int) -> None:
        assert axes in (1, 2)
        assert samples_max > 0
        assert isqrt(buckets) ** 2 == buckets > 0
        self._samples_max = samples_max
        self._cells = buckets if axes == 1 else isqrt(buckets)
        self._low = [0.0] * axes
        self._high = [0.0] * axes
        self._buckets: dict[tuple[int, ...], deque[Sample]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        for bucket in self._buckets.values():
            yield from bucket

    @property
    def high(self) -> tuple[float, ...]:
        """The largest x of each axis that was ever seen."""
        return tuple(self._high)

    def add(self, sample: Sample) -> None:
        """One more; beyond the bound the oldest of the fullest bucket goes. O(samples_max)."""
        if self._widen(sample.x):
            kept = list(self)
            self._buckets = {}
            for other in kept:
                self._put(other)
        self._put(sample)
        self._count += 1
        if self._count > self._samples_max:
            fullest = max(self._buckets.values(), key=len)
            fullest.popleft()
            self._count -= 1

    def _widen(self, x: tuple[float, ...]) -> bool:
        """Whether the range grew."""
        if not self._count:
            self._low, self._high = list(x), list(x)
            return False
        low = [min(a, b) for a, b in zip(self._low, x, strict=True)]
        high = [max(a, b) for a, b in zip(self._high, x, strict=True)]
        grew = low != self._low or high != self._high
        self._low, self._high = low, high
        return grew

    def _put(self, sample: Sample) -> None:
        self._buckets.setdefault(self._cell(sample.x), deque()).append(sample)

    def _cell(self, x: tuple[float, ...]) -> tuple[int, ...]:
        return tuple(
            min(int((value - low) / (high - low) * self._cells), self._cells - 1)
            if high > low
            else 0
            for value, low, high in zip(x, self._low, self._high, strict=True)
        )

    def check_invariants(self) -> None:
        """Every sample in the cell of its x, none too many. For tests."""
        assert self._count == sum(map(len, self._buckets.values())) <= self._samples_max
        for cell, bucket in self._buckets.items():
            assert all(self._cell(sample.x) == cell for sample in bucket)
