"""Runs of the benchmark: a workload at a load with a router, `ROUTER` or `ROUTER in SITUATION`."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from scripts.bench.quality import knowledge_workloads, trace_workloads
from scripts.bench.quality.generated_workloads import KINDS, make_workload
from scripts.bench.quality.knowledge_workloads import conversation_workload, make_session_workload
from scripts.bench.quality.named_routers import make_named_router
from scripts.bench.quality.quality_figures import RunKey, RunOutcome, compute_outcome
from scripts.bench.quality.situations import SITUATIONS
from select_service.sim.engine.block_streams import ReplayWorkload
from select_service.sim.engine.core_router import CoreRouter, CoreScene
from select_service.sim.engine.gpu_hardware import EQUAL, LARGE, Fleet
from select_service.sim.engine.highest_rate import find_highest_rate
from select_service.sim.engine.replay_world import EVENT_DELAY_S, ReplayRouter, ReplayWorld
from select_service.sim.engine.service_goal import GOAL_SHARE
from select_service.sim.engine.text_streams import without_pauses

CAPACITY = {
    "conversation": 42.0,
    "tenants": 41.0,
    "agents": 8.9,
    "retrieval": 20.0,
    "few-shot": 190.0,
    "completion": 10.0,
    "mixed lengths": 13.0,
    "bursts": 33.0,
    "conversation, mixed fleet": 52.0,
    "tenants, mixed fleet": 54.0,
    "mooncake": 4.4,
    "azure": 36.0,
}
"""Capacity of the fleet in requests per second; loads are shares of it. Measured as completions
with `reference` and 48 live requests per rank (`--capacity --requests 5000`, two digits).
"""
SESSION_CAPACITY = {
    "agentlong": 23.0,
    "agentic": 21.0,
    "docqa": 5.5,
    "conv": 7.0,
    "rlasync": 50.0,
    "tenants, H100": 60.0,
    "longshort": 31.2,
    "synthetic": 10.9,
    "siblings": 45.3,
    "groups": 15.2,
    "prefix thrash": 20.5,
}
"""Requests per second at which `work` meets the objective for nine in ten; loads are shares of it.
Measured with seed 99 (`--rates`).
"""
CLOSED = (12, 24, 48, 96)
"""Live requests per rank in `--capacity`."""

TRACE_REQUESTS = 2000


class WorkloadCase(NamedTuple):
    """Parameters of a run.

    workload: function of a seed
    per_s: requests per second of load 1; None means the measured capacity
    """

    workload: Callable[[int], ReplayWorkload]
    fleet: Fleet
    per_s: float | None = None


def make_cases(
    mooncake: Path | None, azure: Path | None, requests: int | None, trace: Path | None = None
) -> dict[str, WorkloadCase]:
    """Return the cases by name; traces only if their files exist.

    requests: number of a run; None means the default of the workload
    """
    found = {
        name: WorkloadCase(lambda seed, kind=kind: make_workload(kind, seed, requests), kind.fleet)  # type: ignore[misc]
        for name, kind in KINDS.items()
    }
    for name in (*knowledge_workloads.SHAPES, *knowledge_workloads.GROUPS):
        found[name] = WorkloadCase(
            lambda seed, name=name: make_session_workload(name, seed, requests),  # type: ignore[misc]
            knowledge_workloads.FLEET,
        )
    n = requests or TRACE_REQUESTS
    if mooncake is not None:
        rows = trace_workloads.read_trace(mooncake)
        found["mooncake"] = WorkloadCase(
            lambda seed: trace_workloads.trace_workload(rows, seed, n, trace_workloads.STAMP_S),
            LARGE,
        )
        found["conv"] = WorkloadCase(
            lambda seed: conversation_workload(rows, seed, requests), knowledge_workloads.FLEET
        )
    if azure is not None:
        lines = trace_workloads.read_azure(azure)
        found["azure"] = WorkloadCase(
            lambda seed: trace_workloads.trace_workload(lines, seed, n), EQUAL
        )
    if trace is not None:
        given = trace_workloads.read_trace(trace)
        found["trace"] = WorkloadCase(
            lambda seed: trace_workloads.trace_workload(given, seed, n),
            LARGE,
            len(given) / max(given[-1].at_s - given[0].at_s, 1e-9),
        )
    return found


# Runs


def run_cell(key: RunKey, case: WorkloadCase) -> RunOutcome:
    """Make a run in virtual time.  Raises KeyError or ValueError for unknown choosers."""
    per_s = case.per_s or (CAPACITY | SESSION_CAPACITY)[key.workload]
    return run_at_rate(key, case, key.load * per_s)


def run_at_rate(key: RunKey, case: WorkloadCase, per_s: float) -> RunOutcome:
    """Make a run.  per_s: requests per second"""
    workload = case.workload(key.seed)
    world, chooser = make_world(key.chooser, workload, case.fleet, key.seed)
    record = world.run_open(chooser, per_s / workload.mean_session_length)
    claimed = chooser.claimed if isinstance(chooser, CoreRouter) else {}
    return compute_outcome(record, case.fleet, claimed)


def make_world(
    name: str, workload: ReplayWorkload, fleet: Fleet, seed: int
) -> tuple[ReplayWorld, ReplayRouter]:
    """Return a world and its router.  Raises KeyError or ValueError for unknown names."""
    router, _, known = name.rpartition(" in ")
    scene, delay_s = CoreScene(fleet, workload.n_blocks, seed), EVENT_DELAY_S
    if known in SITUATIONS:
        situation = SITUATIONS[known]
        scene = scene._replace(fleet=situation.change_fleet(fleet), knowledge=situation.knowledge)
        delay_s = situation.delay_s
    else:
        # Names of trials may contain the word.
        router = name
    world = ReplayWorld(workload, scene.fleet, delay_s)
    chooser = make_named_router(router, scene, world)
    if isinstance(chooser, CoreRouter):
        chooser.join_world(world)
    return world, chooser


def measure_rate(name: str, case: WorkloadCase, seed: int) -> float:
    """Return the rate at which `work` keeps the goal for GOAL_SHARE."""
    key = RunKey(name, 1.0, seed, "work in exact")
    return find_highest_rate(
        lambda per_s: run_at_rate(key, case, per_s).objective_share >= GOAL_SHARE,
        SESSION_CAPACITY.get(name, 32.0),
    )


def measure_capacity(case: WorkloadCase, live_per_rank: int, seed: int) -> float:
    """Return completions per second in the middle half of a run with a constant number of live
    requests.

    Sessions have no pauses, because pausing sessions are not live and would be missing.
    """
    workload = without_pauses(case.workload(seed))
    scene = CoreScene(case.fleet, workload.n_blocks, seed)
    world = ReplayWorld(workload, case.fleet)
    record = world.run_closed(CoreRouter(scene), live_per_rank * len(case.fleet))
    ends = sorted(life.end_s for life in record.histories)
    quarter = len(ends) // 4
    return 2 * quarter / (ends[3 * quarter] - ends[quarter])
