"""Simulation of a queue with n servers, request by request, as a check of sizing."""

from heapq import heapify, heapreplace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from select_service.planner.core.tick_input import LengthBins

Floats = NDArray[np.float64]


class Kind(NamedTuple):
    """Kind of load.

    slo_s, wanted: target of the time to first token in s, and the share that must meet it
    """

    lengths: str
    rate: float
    arrival_variation: float
    slo_s: float
    wanted: float


def lengths_of(kind: str, n: int, rng: np.random.Generator) -> Floats:
    """Return the uncached tokens of prompts."""
    if kind == "equal":
        return np.full(n, 2000.0)
    if kind == "heavy":
        return np.clip(rng.lognormal(6.7, 1.0, n), 16, 32_000).round()
    return np.where(rng.random(n) < 0.075, 16_000.0, 400.0)


def service_s(tokens: float) -> float:
    return 0.01 + 6e-5 * tokens


def bins_of(values: Floats, bins: int = 64) -> LengthBins:
    """Return the selector's log-spaced bins with their sums."""
    edges = np.logspace(0, np.log10(2**20), bins + 1)
    at = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, bins - 1)
    counts = np.bincount(at, minlength=bins).astype(float)
    sums = np.bincount(at, weights=values, minlength=bins)
    used = counts > 0
    return LengthBins(means=tuple(sums[used] / counts[used]), counts=tuple(counts[used]))


def gaps_of(rate: float, variation: float, n: int, rng: np.random.Generator) -> Floats:
    """Return gaps of a Poisson stream, or of bursts: hyperexponential with balanced means."""
    if variation <= 1.0:
        return rng.exponential(1.0 / rate, n)
    part = 0.5 * (1.0 + np.sqrt((variation - 1.0) / (variation + 1.0)))
    fast = rng.random(n) < part
    mean = np.where(fast, 1.0 / (2.0 * part * rate), 1.0 / (2.0 * (1.0 - part) * rate))
    return rng.exponential(1.0, n) * mean


def attained(kind: Kind, replicas: int, requests: int, seed: int) -> float:
    """Return the share of requests within the target, first come first served.

    The first tenth warms up.

    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(gaps_of(kind.rate, kind.arrival_variation, requests, rng))
    seconds = service_s(lengths_of(kind.lengths, requests, rng))  # type: ignore[arg-type]
    free = [0.0] * replicas
    heapify(free)
    met = 0
    warm = requests // 10
    for at, (arrived, takes) in enumerate(zip(arrivals.tolist(), seconds.tolist(), strict=True)):
        done = max(arrived, free[0]) + takes
        heapreplace(free, done)
        met += at >= warm and done - arrived <= kind.slo_s
    return met / (requests - warm)
