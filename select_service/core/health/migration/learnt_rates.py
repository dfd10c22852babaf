"""Learnt rates of ranks and mean lengths of requests."""

from collections import deque
from math import inf

from select_service.core.health.capacity_estimate import RequestMeanValues

SMOOTHING = 0.1
"""Weight of the newest sample in a rate."""
WINDOW_S = 600.0
N_BUCKETS = 10
"""Number of buckets of the sliding window."""


class LearntRate:
    """Moving average of a rank's speed, in tokens/s; None before the first sample."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add_sample(self, tokens: float, seconds: float) -> None:
        """Add a sample; samples without time or tokens are ignored."""
        # Clock resolution may give 0 s for tiny prefills; such a sample would be infinite.
        if tokens <= 0.0 or seconds <= 0.0:
            return
        rate = tokens / seconds
        self.value = rate if self.value is None else self.value + SMOOTHING * (rate - self.value)


class RequestMeans:
    """Mean properties of a model's requests over the last ten minutes.

    Without requests in the window the previous means remain.

    booked_at, ended_at: time of the latest request, in s; -inf means no request yet
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, list[float]]] = deque()
        """(bucket number, [requests, input tokens, cached tokens, ended requests, output
        tokens])
        """
        self._last = RequestMeanValues()
        self.booked_at = self.ended_at = -inf

    def add_request(self, isl: int, cached: int, now: float) -> None:
        """Add a booked request with its input length and cached part, in tokens."""
        self.booked_at = now
        sums = self._current_sums(now)
        sums[0] += 1
        sums[1] += isl
        sums[2] += cached

    def add_ended_request(self, osl: int, now: float) -> None:
        """Add an ended request with its output length, in tokens."""
        self.ended_at = now
        sums = self._current_sums(now)
        sums[3] += 1
        sums[4] += osl

    def compute_means(self, now: float) -> RequestMeanValues:
        """Return the means; defaults stand in for properties that were never observed."""
        self._drop_expired(now)
        columns = zip(*(sums for _, sums in self._buckets), strict=True)
        requests, isl, cached, ended, osl = map(sum, columns) if self._buckets else [0.0] * 5
        self._last = RequestMeanValues(
            isl / requests if requests else self._last.isl,
            # Clients that never report output blocks would otherwise make the mean output 0.
            osl / ended if ended and osl else self._last.osl,
            cached / isl if isl else self._last.hit_rate,
        )
        return self._last

    def _current_sums(self, now: float) -> list[float]:
        self._drop_expired(now)
        number = _bucket_number(now)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, [0.0] * 5))
        return self._buckets[-1][1]

    def _drop_expired(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] <= _bucket_number(now) - N_BUCKETS:
            self._buckets.popleft()


def _bucket_number(now: float) -> int:
    return int(now // (WINDOW_S / N_BUCKETS))
