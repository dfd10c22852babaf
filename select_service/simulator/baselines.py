"""What the same workload does under two policies that know nothing of caches.

Run in process on fresh engines, in the same world and time model as the run through the service.
"""

import random
from collections.abc import Callable

from select_service.simulator.engine import Engine
from select_service.simulator.workload import Workload
from select_service.simulator.world import SimRequest, Step, World

Policy = Callable[[World, SimRequest], int]
"""(world, request) -> index of the rank to use."""


def round_robin() -> Policy:
    """Each rank in turn."""
    turn = -1

    def choose(world: World, request: SimRequest) -> int:
        nonlocal turn
        turn = (turn + 1) % len(world.lines)
        return turn

    return choose


def least_loaded(seed: int) -> Policy:
    """The rank with the fewest unfinished requests; a seeded draw among equals."""
    rng = random.Random(seed)

    def choose(world: World, request: SimRequest) -> int:
        fewest = min(line.live_requests for line in world.lines)
        tied = [i for i, line in enumerate(world.lines) if line.live_requests == fewest]
        return rng.choice(tied)

    return choose


def run_baseline(workload: Workload, engines: list[Engine], policy: Policy) -> World:
    """Work off the whole workload; returns the world with its tally."""
    world = World(workload, engines)
    while (happening := world.next_step()) is not None:
        if happening.step is Step.CHOOSE:
            world.assign(happening.request, policy(world, happening.request))
    return world
