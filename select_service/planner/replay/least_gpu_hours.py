"""Least GPU hours that could have kept the promise, with knowledge of the future.

For each interval alone: the least number of replicas of a role with which the requests that arrive
in the interval keep their latency as often as promised, with plenty of the other role. Replicas
start and stop for free between two intervals, and the backlog of earlier intervals is ignored. So
no planner can be much below, and none that waits for start-ups reaches it.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from select_service.planner.core.tick_input import Role
from select_service.planner.replay.simulated_engine import SimulatedRequest
from select_service.planner.replay.simulated_fleet import FleetOptions, SimulatedFleet

WARM_S = 60.0
"""Length of requests before an interval, so that engines are at work at its start, seconds."""
AFTERWARDS_S = 3600.0
"""Time for open requests at the end, seconds."""


class ServicePromise(Struct, frozen=True, kw_only=True):
    """Service level. attainment: part of the requests that must keep both latencies"""

    ttft_s: float
    itl_s: float
    attainment: float

    def is_kept(self, request: SimulatedRequest) -> bool:
        """Return whether a request kept both latencies; False for an unfinished one."""
        if request.done_s is None or request.ttft_s is None or request.ttft_s > self.ttft_s:
            return False
        return request.itl_s is None or request.itl_s <= self.itl_s


def find_least_replicas(
    requests: Sequence[SimulatedRequest],
    options: FleetOptions,
    promise: ServicePromise,
    *,
    interval_s: float,
    most: Mapping[Role, int],
) -> dict[Role, list[int]]:
    """Return the counts by role, for each interval from 0 to the last arrival; at most `most`."""
    begins = [each.arrived_s for each in requests]
    intervals = max(1, ceil(begins[-1] / interval_s)) if begins else 1
    result: dict[Role, list[int]] = {role: [] for role in options.roles}
    for at in range(intervals):
        begin_s = at * interval_s
        first = bisect_left(begins, begin_s - WARM_S)
        last = bisect_left(begins, begin_s + interval_s)
        stretch = _IntervalRequests(requests[first:last], begin_s, options, promise)
        for role, needed in result.items():
            guess = needed[-1] if needed else 1
            needed.append(_find_fewest(stretch, role, guess, most))
    return result


def least_gpu_hours(
    needed: Mapping[Role, Sequence[int]],
    gpus: Mapping[Role, int],
    *,
    interval_s: float,
    least: Mapping[Role, int],
) -> float:
    """Return the GPU hours. least: replicas that are always kept"""
    seconds = sum(
        interval_s * gpus[role] * sum(max(each, least[role]) for each in counts)
        for role, counts in needed.items()
    )
    return seconds / 3600.0


class _IntervalRequests(NamedTuple):
    """Requests of an interval, and of a while before that fills the engines."""

    requests: Sequence[SimulatedRequest]
    begin_s: float
    options: FleetOptions
    promise: ServicePromise

    def is_kept(self, replicas: Mapping[Role, int]) -> bool:
        """Return whether so many replicas keep the promise."""
        start_s = self.requests[0].arrived_s if self.requests else self.begin_s
        fleet = SimulatedFleet(replace(self.options, drain_s=inf), replicas, start_s)
        # Runs modify their requests, and every guess needs fresh requests.
        copies = [
            SimulatedRequest(each.arrived_s, each.isl, each.osl, each.uncached)
            for each in self.requests
        ]
        for each in copies:
            fleet.add_request(each, each.arrived_s)
        fleet.advance_to(start_s + AFTERWARDS_S)
        own = [each for each in copies if each.arrived_s >= self.begin_s]
        return sum(map(self.promise.is_kept, own)) >= self.promise.attainment * len(own)


def _find_fewest(
    stretch: _IntervalRequests, role: Role, guess: int, most: Mapping[Role, int]
) -> int:
    """Return the fewest replicas, searched from a mostly right guess."""
    own = {each: count for each, count in most.items() if each in stretch.options.roles}
    count = max(1, guess)
    if stretch.is_kept({**own, role: count}):
        # Neighbouring intervals need similar numbers, so a linear search from the last answer beats
        # bisection.
        while count > 1 and stretch.is_kept({**own, role: count - 1}):
            count -= 1
        return count
    while count < most[role]:
        count += 1
        if stretch.is_kept({**own, role: count}):
            break
    return count
