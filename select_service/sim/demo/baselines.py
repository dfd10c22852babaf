"""Baselines: the same workload under two policies without knowledge of caches.

The baselines run in this process on fresh engines, in the same world and time model as the run
through the service.
"""

import random
from collections.abc import Callable

from select_service.sim.demo.conversations import ConversationWorkload
from select_service.sim.demo.prefix_cache import PrefixCache
from select_service.sim.demo.virtual_world import DemoRequest, RequestStep, VirtualWorld

Policy = Callable[[VirtualWorld, DemoRequest], int]
"""Function from a world and a request to the index of the chosen rank."""


def round_robin() -> Policy:
    """Return a policy that takes the ranks in turn."""
    turn = -1

    def choose(world: VirtualWorld, request: DemoRequest) -> int:
        nonlocal turn
        turn = (turn + 1) % len(world.lines)
        return turn

    return choose


def least_loaded(seed: int) -> Policy:
    """Return a policy that takes the rank with the fewest unfinished requests, with a seeded tie
    break.
    """
    # A separate generator, so that a run is reproducible whatever else draws.
    rng = random.Random(seed)

    def choose(world: VirtualWorld, request: DemoRequest) -> int:
        fewest = min(line.live_requests for line in world.lines)
        tied = [i for i, line in enumerate(world.lines) if line.live_requests == fewest]
        return rng.choice(tied)

    return choose


def run_baseline(
    workload: ConversationWorkload, engines: list[PrefixCache], policy: Policy
) -> VirtualWorld:
    """Run the whole workload and return the world with its tally."""
    world = VirtualWorld(workload, engines)
    while (happening := world.next_step()) is not None:
        if happening.step is RequestStep.CHOOSE:
            world.assign_rank(happening.request, policy(world, happening.request))
    return world
