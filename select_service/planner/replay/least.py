"""The fewest GPU hours that could have kept the promise, for somebody who knew the future.

For each interval by itself: the least number of replicas of a role with which the requests that
arrive in it keep their latency as often as wanted, when the other role is plenty. Replicas come and
go for nothing between two intervals, and what an interval before left over is forgotten, so no
planner can be below it by much, and none that has to wait for starts reaches it.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from select_service.planner.core.inputs import Role
from select_service.planner.replay.engine import Request
from select_service.planner.replay.fleet import Fleet, FleetOptions

WARM_S = 60.0
"""Of requests before an interval, so that it begins with engines at work."""
AFTERWARDS_S = 3600.0
"""Open requests get so long."""


class Promise(Struct, frozen=True, kw_only=True):
    """attainment: part of the requests that have to keep both latencies"""

    ttft_s: float
    itl_s: float
    attainment: float

    def is_kept(self, request: Request) -> bool:
        """False as well for a request that never ended."""
        if request.done_s is None or request.ttft_s is None or request.ttft_s > self.ttft_s:
            return False
        return request.itl_s is None or request.itl_s <= self.itl_s


def least_replicas(
    requests: Sequence[Request],
    options: FleetOptions,
    promise: Promise,
    *,
    interval_s: float,
    most: Mapping[Role, int],
) -> dict[Role, list[int]]:
    """By role, for each interval from 0 to the last arrival; `most` where even that is too few."""
    begins = [each.arrived_s for each in requests]
    intervals = max(1, ceil(begins[-1] / interval_s)) if begins else 1
    result: dict[Role, list[int]] = {role: [] for role in options.roles}
    for at in range(intervals):
        begin_s = at * interval_s
        first = bisect_left(begins, begin_s - WARM_S)
        last = bisect_left(begins, begin_s + interval_s)
        stretch = _Stretch(requests[first:last], begin_s, options, promise)
        for role, needed in result.items():
            guess = needed[-1] if needed else 1
            needed.append(_fewest(stretch, role, guess, most))
    return result


def least_gpu_hours(
    needed: Mapping[Role, Sequence[int]],
    gpus: Mapping[Role, int],
    *,
    interval_s: float,
    least: Mapping[Role, int],
) -> float:
    """least: replicas that must always be there"""
    seconds = sum(
        interval_s * gpus[role] * sum(max(each, least[role]) for each in counts)
        for role, counts in needed.items()
    )
    return seconds / 3600.0


class _Stretch(NamedTuple):
    """Requests of one interval, and of a while before it that fills the engines."""

    requests: Sequence[Request]
    begin_s: float
    options: FleetOptions
    promise: Promise

    def is_kept(self, replicas: Mapping[Role, int]) -> bool:
        """With so many from the beginning."""
        start_s = self.requests[0].arrived_s if self.requests else self.begin_s
        fleet = Fleet(replace(self.options, drain_s=inf), replicas, start_s)
        copies = [
            Request(each.arrived_s, each.isl, each.osl, each.uncached) for each in self.requests
        ]
        for each in copies:
            fleet.arrive(each, each.arrived_s)
        fleet.advance(start_s + AFTERWARDS_S)
        own = [each for each in copies if each.arrived_s >= self.begin_s]
        return sum(map(self.promise.is_kept, own)) >= self.promise.attainment * len(own)


def _fewest(stretch: _Stretch, role: Role, guess: int, most: Mapping[Role, int]) -> int:
    """From a guess, which mostly is right: up to the first that suffices, or down to the last."""
    own = {each: count for each, count in most.items() if each in stretch.options.roles}
    count = max(1, guess)
    if stretch.is_kept({**own, role: count}):
        while count > 1 and stretch.is_kept({**own, role: count - 1}):
            count -= 1
        return count
    while count < most[role]:
        count += 1
        if stretch.is_kept({**own, role: count}):
            break
    return count
