"""The fewest GPU hours that could have kept the promise, for somebody who knew the future.

For each interval by itself: the least number of replicas of a role with which the requests that
arrive in it keep their latency as often as wanted, when that number runs all the time and the other
role is plenty. Replicas come and go for nothing between two intervals, so no planner can be below
it by much, and none that has to wait for starts reaches it.
"""

from collections.abc import Mapping, Sequence
from math import ceil, inf

from msgspec import Struct
from msgspec.structs import replace

from select_service.planner.core.inputs import Role
from select_service.planner.replay.engine import Request
from select_service.planner.replay.fleet import Fleet, FleetOptions


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
    end = requests[-1].arrived_s if requests else 0.0
    intervals = max(1, ceil(end / interval_s))
    result = {}
    for role in options.roles:
        needed = [most[role]] * intervals
        for replicas in range(most[role] - 1, 0, -1):
            kept = _kept(requests, options, {**most, role: replicas}, promise, interval_s)
            suffices = [part >= promise.attainment for part in kept]
            needed = [
                replicas if enough and before == replicas + 1 else before
                for enough, before in zip(suffices, needed, strict=True)
            ]
            if not any(each == replicas for each in needed):
                break
        result[role] = needed
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


def _kept(
    requests: Sequence[Request],
    options: FleetOptions,
    replicas: Mapping[Role, int],
    promise: Promise,
    interval_s: float,
) -> list[float]:
    """Part of the requests of each interval that keep the promise; 1 where there are none."""
    own = {role: count for role, count in replicas.items() if role in options.roles}
    fleet = Fleet(replace(options, drain_s=inf), own, 0.0)
    copies = [Request(each.arrived_s, each.isl, each.osl, each.uncached) for each in requests]
    for each in copies:
        fleet.arrive(each, each.arrived_s)
    end = copies[-1].arrived_s if copies else 0.0
    fleet.advance(end + 3600.0)
    counts = [[0, 0] for _ in range(max(1, ceil(end / interval_s)))]
    for each in copies:
        at = counts[min(len(counts) - 1, int(each.arrived_s / interval_s))]
        at[0] += promise.is_kept(each)
        at[1] += 1
    return [kept / total if total else 1.0 for kept, total in counts]
