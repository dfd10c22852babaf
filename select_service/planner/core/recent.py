"""Distributions of the last windows together: one window alone has too few requests for its tail.

Whether 3 or 5 % of the prompts are too long decides about half of the replicas, and a window of a
hundred requests cannot tell that. Each window counts half as much as one `HALF_LIFE_S` later.
"""

from math import ceil, log2

from msgspec.structs import replace

from select_service.planner.core.inputs import Bins, Traffic

HALF_LIFE_S = 300.0
BINS, TOKENS_MAX = 128, 1 << 20
"""Equally wide in the logarithm, finer than those of selectors."""


class Lengths:
    """A histogram that fades."""

    def __init__(self) -> None:
        self._counts = [0.0] * BINS
        self._tokens = [0.0] * BINS

    def add(self, found: Bins, fading: float) -> Bins:
        """fading: part of what was there that stays"""
        self._counts = [count * fading for count in self._counts]
        self._tokens = [tokens * fading for tokens in self._tokens]
        for mean, count in zip(found.means, found.counts, strict=True):
            at = min(BINS - 1, max(0, ceil(log2(max(1.0, mean)) * BINS / log2(TOKENS_MAX)) - 1))
            self._counts[at] += count
            self._tokens[at] += mean * count
        pairs = zip(self._tokens, self._counts, strict=True)
        known = [(tokens / count, count) for tokens, count in pairs if count > 0.0]
        return Bins(means=tuple(m for m, _ in known), counts=tuple(c for _, c in known))


class Recent:
    """Of one deployment."""

    def __init__(self, interval_s: float) -> None:
        """interval_s: between two windows"""
        self._fading: float = 0.5 ** (interval_s / HALF_LIFE_S)
        self._uncached, self._context = Lengths(), Lengths()
        self._variation = self._requests = 0.0

    def with_window(self, traffic: Traffic) -> Traffic:
        """The same window, with the distributions of all that are recent. Once a window."""
        found = {
            name: lengths.add(bins, self._fading)
            for name, lengths, bins in (
                ("uncached_isl", self._uncached, traffic.uncached_isl),
                ("context", self._context, traffic.context),
            )
            if bins is not None
        }
        return replace(traffic, arrival_variation=self._varied(traffic), **found)

    def _varied(self, traffic: Traffic) -> float | None:
        """Weighted by requests."""
        self._variation *= self._fading
        self._requests *= self._fading
        if traffic.arrival_variation is not None and traffic.requests:
            self._variation += traffic.arrival_variation * traffic.requests
            self._requests += traffic.requests
        return self._variation / self._requests if self._requests else None
