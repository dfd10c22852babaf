"""How long an engine may take for its first token before it counts as hung.

A minute is right for no fleet: where first tokens come within 0.2 s, clients of an engine that
hangs would wait for 300 times as long as usual.  The service knows how long first tokens have
taken, as callers report them, and is asked for it again and again.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

UNKNOWN_S = 60.0
"""Until the service knows enough."""
LEAST_S = 2.0
MOST_S = 600.0
MEDIANS = 10.0
SLOWEST = 2.0
"""So many medians, or 99th percentiles if these are more: long prompts take their time."""
SAMPLES_MIN = 20
LOOK_S = 15.0
MODELS_MAX = 64
"""Models that the service is asked about, those of the last requests."""


class Observer(Protocol):
    """What is needed of `gateway_selector.Selector`."""

    async def observed(self, model: str) -> Mapping[str, Any]: ...


class FirstTokens:
    """Seconds by model."""

    def __init__(self, selector: Observer, given_s: float | None) -> None:
        """given_s: what an operator wants for all models; None: what the service knows"""
        self._selector, self._given_s = selector, given_s
        self._seconds: dict[str, float] = {}

    def seconds(self, model: str) -> float:
        """Return how long to wait for the first token of a request for the model."""
        if self._given_s is not None:
            return self._given_s
        seconds = self._seconds.pop(model, UNKNOWN_S)
        self._seconds[model] = seconds  # behind all others
        if len(self._seconds) > MODELS_MAX:
            del self._seconds[next(iter(self._seconds))]
        return seconds

    async def follow(self) -> None:
        """Ask the service for ever."""
        while self._given_s is None:
            for model in list(self._seconds):
                found = await self._selector.observed(model)
                if model in self._seconds:
                    self._seconds[model] = patience_of(found, self._seconds[model])
            await asyncio.sleep(LOOK_S)


def patience_of(observed: Mapping[str, Any], before: float) -> float:
    """Return what follows from an answer of GET /planner/observation; without one, as before."""
    try:
        counts, edges = observed["ttft_s"]["counts"], observed["bins"]["seconds"]
    except KeyError:
        return before
    if sum(counts) < SAMPLES_MIN:
        return before
    wanted = max(MEDIANS * quantile(counts, edges, 0.5), SLOWEST * quantile(counts, edges, 0.99))
    return min(max(wanted, LEAST_S), MOST_S)


def quantile(counts: list[int], edges: list[float], part: float) -> float:
    """Return the upper edge of the bin that has it."""
    left = part * sum(counts)
    for count, edge in zip(counts, edges[1:], strict=True):
        left -= count
        if left <= 0.0:
            return edge
    return edges[-1]
