"""Time limit for an engine's first token, from observed times.

A fixed minute fits no fleet: where first tokens take 0.2 s, clients of a hanging engine would wait
300 times as long as usual. The service collects the times that callers report; this module queries
the service regularly.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

DEFAULT_LIMIT_S = 60.0
"""Limit in seconds until the service has enough samples."""
LIMIT_S_MIN = 2.0
LIMIT_S_MAX = 600.0
MEDIAN_FACTOR = 10.0
"""Factor of the median."""
P99_FACTOR = 2.0
"""Factor of the 99th percentile. The larger limit counts, because long prompts are slow."""
SAMPLES_MIN = 20
QUERY_INTERVAL_S = 15.0
MODELS_MAX = 64
"""Models with queried times: the models of the latest requests."""


class Observer(Protocol):
    """Interface that this module needs of `gateway_selector.Selector`."""

    async def fetch_observation(self, model: str) -> Mapping[str, Any]: ...


class FirstTokenLimits:
    """Time limits by model, in seconds."""

    def __init__(self, selector: Observer, fixed_s: float | None) -> None:
        """fixed_s: limit for all models; None means a limit from observed times"""
        self._selector, self._fixed_s = selector, fixed_s
        self._limits_s: dict[str, float] = {}

    def get_limit_s(self, model: str) -> float:
        """Return the longest wait for the first token of a request for the model."""
        if self._fixed_s is not None:
            return self._fixed_s
        limit_s = self._limits_s.pop(model, DEFAULT_LIMIT_S)
        self._limits_s[model] = limit_s  # the most recent models are last
        if len(self._limits_s) > MODELS_MAX:
            del self._limits_s[next(iter(self._limits_s))]
        return limit_s

    async def follow_observations(self) -> None:
        """Query the service until cancelled."""
        while self._fixed_s is None:
            for model in list(self._limits_s):
                observation = await self._selector.fetch_observation(model)
                if model in self._limits_s:
                    self._limits_s[model] = compute_limit_s(observation, self._limits_s[model])
            await asyncio.sleep(QUERY_INTERVAL_S)


def compute_limit_s(observation: Mapping[str, Any], previous_s: float) -> float:
    """Return the limit from an observation, or the previous limit if samples are missing."""
    try:
        counts, edges = observation["ttft_s"]["counts"], observation["bins"]["seconds"]
    except KeyError:
        return previous_s
    if sum(counts) < SAMPLES_MIN:
        return previous_s
    median_s, p99_s = find_quantile(counts, edges, 0.5), find_quantile(counts, edges, 0.99)
    limit_s = max(MEDIAN_FACTOR * median_s, P99_FACTOR * p99_s)
    return min(max(limit_s, LIMIT_S_MIN), LIMIT_S_MAX)


def find_quantile(counts: list[int], edges: list[float], fraction: float) -> float:
    """Return the upper edge of the bin that contains the quantile."""
    remaining = fraction * sum(counts)
    for count, edge in zip(counts, edges[1:], strict=True):
        remaining -= count
        if remaining <= 0.0:
            return edge
    return edges[-1]
