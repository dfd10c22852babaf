"""Runs of the benchmark: a workload at a load with a router."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from scripts.bench.quality import trace_workloads
from scripts.bench.quality.generated_workloads import KINDS, make_workload
from scripts.bench.quality.named_routers import make_named_router
from scripts.bench.quality.quality_figures import RunKey, RunOutcome, compute_outcome
from scripts.bench.quality.text_streams import without_pauses
from select_service.sim.engine.block_streams import ReplayWorkload
from select_service.sim.engine.core_router import CoreRouter, CoreScene
from select_service.sim.engine.gpu_hardware import EQUAL, LARGE, Fleet
from select_service.sim.engine.replay_world import ReplayWorld

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
CLOSED = (12, 24, 48, 96)
"""Live requests per rank in `--capacity`."""

TRACE_REQUESTS = 2000


class WorkloadCase(NamedTuple):
    """Parameters of a run.  workload: function of a seed"""

    workload: Callable[[int], ReplayWorkload]
    fleet: Fleet


def make_cases(
    mooncake: Path | None, azure: Path | None, requests: int | None
) -> dict[str, WorkloadCase]:
    """Return the cases by name; traces only if their files exist.

    requests: number of a run; None means the default of the workload
    """
    found = {
        name: WorkloadCase(lambda seed, kind=kind: make_workload(kind, seed, requests), kind.fleet)  # type: ignore[misc]
        for name, kind in KINDS.items()
    }
    n = requests or TRACE_REQUESTS
    if mooncake is not None:
        rows = trace_workloads.read_mooncake(mooncake)
        found["mooncake"] = WorkloadCase(
            lambda seed: trace_workloads.trace_workload(rows, seed, n, trace_workloads.STAMP_S),
            LARGE,
        )
    if azure is not None:
        lines = trace_workloads.read_azure(azure)
        found["azure"] = WorkloadCase(
            lambda seed: trace_workloads.trace_workload(lines, seed, n), EQUAL
        )
    return found


# Runs


def run_cell(key: RunKey, case: WorkloadCase) -> RunOutcome:
    """Make one run in virtual time."""
    workload = case.workload(key.seed)
    world = ReplayWorld(workload, case.fleet)
    chooser = make_named_router(
        key.chooser, CoreScene(case.fleet, workload.n_blocks, key.seed), world
    )
    per_s = key.load * CAPACITY[key.workload] / workload.mean_session_length
    return compute_outcome(world.run_open(chooser, per_s))


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
