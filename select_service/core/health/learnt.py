"""What ranks and requests have shown: how fast, how long, how much of it was cached."""

from collections import deque
from math import inf

from select_service.core.health.capacity import LoadMeans
from select_service.core.health.move_cost import PREFILL_TOKENS_PER_S

ALPHA = 0.1
"""Share of the newest sample in a rate."""
WINDOW_S = 600.0
BUCKETS = 10
"""The window passes in so many steps."""


class LearntRate:
    """Tokens/s of one rank; None before the first sample."""

    def __init__(self) -> None:
        self.value: float | None = None

    def learn(self, tokens: float, seconds: float) -> None:
        """A sample; what took no time or had no tokens says nothing."""
        if tokens <= 0.0 or seconds <= 0.0:
            return
        rate = tokens / seconds
        self.value = rate if self.value is None else self.value + ALPHA * (rate - self.value)

    @property
    def or_default(self) -> float:
        """For plans, which need a number."""
        return PREFILL_TOKENS_PER_S if self.value is None else self.value


class RequestMeans:
    """Means of the requests of the last ten minutes of a model; of those before, while none comes.

    booked_at, ended_at: of the last request, in s; -inf: none yet
    """

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, list[float]]] = deque()
        """(number of the bucket, [requests, input, cached, ended, output tokens])"""
        self._last = LoadMeans()
        self.booked_at = self.ended_at = -inf

    def booked(self, isl: int, cached: int, now: float) -> None:
        """A request with so many tokens, of which so many were cached."""
        self.booked_at = now
        sums = self._sums(now)
        sums[0] += 1
        sums[1] += isl
        sums[2] += cached

    def ended(self, osl: int, now: float) -> None:
        """A request has ended after so many tokens."""
        self.ended_at = now
        sums = self._sums(now)
        sums[3] += 1
        sums[4] += osl

    def means(self, now: float) -> LoadMeans:
        """Defaults for what nothing was ever known of."""
        self._forget(now)
        columns = zip(*(sums for _, sums in self._buckets), strict=True)
        requests, isl, cached, ended, osl = map(sum, columns) if self._buckets else [0.0] * 5
        self._last = LoadMeans(
            isl / requests if requests else self._last.isl,
            osl / ended if ended and osl else self._last.osl,
            cached / isl if isl else self._last.hit_rate,
        )
        return self._last

    def _sums(self, now: float) -> list[float]:
        self._forget(now)
        number = _bucket(now)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, [0.0] * 5))
        return self._buckets[-1][1]

    def _forget(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] <= _bucket(now) - BUCKETS:
            self._buckets.popleft()


def _bucket(now: float) -> int:
    return int(now // (WINDOW_S / BUCKETS))
