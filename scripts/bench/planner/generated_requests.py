"""Requests generated from a rate that changes with time."""

from collections.abc import Callable, Iterator
from random import Random

from select_service.planner.replay.simulated_engine import SimulatedRequest


def generate_requests(
    rate: Callable[[float], float],
    *,
    until_s: float,
    rate_max: float,
    lengths: Callable[[Random], tuple[int, int, int]],
    seed: int,
) -> Iterator[SimulatedRequest]:
    """Generate a Poisson process of a changing rate.

    Source: thinning of a process with `rate_max` requests a second.
    lengths: function for ISL, uncached ISL and OSL of a request
    """
    rng, now = Random(seed), 0.0
    while True:
        now += rng.expovariate(rate_max)
        if now >= until_s:
            return
        if rng.random() * rate_max < rate(now):
            isl, uncached, osl = lengths(rng)
            yield SimulatedRequest(now, isl, osl, uncached)
