"""Time limit for an engine's first token, from observed times.

A fixed minute fits no fleet: where first tokens take 0.2 s, clients of a hanging engine would wait
300 times as long as usual. The service knows the times that callers report, and is queried
regularly.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

UNKNOWN_S = 60.0
"""Limit in seconds until the service has enough samples."""
LEAST_S = 2.0
MOST_S = 600.0
MEDIANS = 10.0
"""Factor of the median."""
SLOWEST = 2.0
"""Factor of the 99th percentile. The larger limit counts, because long prompts are slow."""
SAMPLES_MIN = 20
LOOK_S = 15.0
MODELS_MAX = 64
"""Models whose times are queried: those of the latest requests."""


class Observer(Protocol):
    """Interface that this module needs of `gateway_selector.Selector`."""

    async def observed(self, model: str) -> Mapping[str, Any]: ...


class FirstTokens:
    """Time limits by model, in seconds."""

    def __init__(self, selector: Observer, given_s: float | None) -> None:
        """given_s: fixed limit for all models; None means the observed times"""
        self._selector, self._given_s = selector, given_s
        self._seconds: dict[str, float] = {}

    def seconds(self, model: str) -> float:
        """Return the longest wait for the first token of a request for the model."""
        if self._given_s is not None:
            return self._given_s
        seconds = self._seconds.pop(model, UNKNOWN_S)
        self._seconds[model] = seconds  # makes it the most recent one
        if len(self._seconds) > MODELS_MAX:
            del self._seconds[next(iter(self._seconds))]
        return seconds

    async def follow(self) -> None:
        """Query the service until cancelled."""
        while self._given_s is None:
            for model in list(self._seconds):
                found = await self._selector.observed(model)
                if model in self._seconds:
                    self._seconds[model] = patience_of(found, self._seconds[model])
            await asyncio.sleep(LOOK_S)


def patience_of(observed: Mapping[str, Any], before: float) -> float:
    """Return the limit from an observation of the service, or the previous one without it."""
    try:
        counts, edges = observed["ttft_s"]["counts"], observed["bins"]["seconds"]
    except KeyError:
        return before
    if sum(counts) < SAMPLES_MIN:
        return before
    wanted = max(MEDIANS * quantile(counts, edges, 0.5), SLOWEST * quantile(counts, edges, 0.99))
    return min(max(wanted, LEAST_S), MOST_S)


def quantile(counts: list[int], edges: list[float], part: float) -> float:
    """Return the upper edge of the bin that contains the quantile."""
    left = part * sum(counts)
    for count, edge in zip(counts, edges[1:], strict=True):
        left -= count
        if left <= 0.0:
            return edge
    return edges[-1]
