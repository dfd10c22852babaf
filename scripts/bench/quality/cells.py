"""The runs: which workload at which load, by which chooser."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from scripts.bench.quality import traces
from scripts.bench.quality.figures import Key, Outcome, outcome_of
from scripts.bench.quality.named_choosers import chooser_of
from scripts.bench.quality.workloads import KINDS, made
from select_service.replaying.core_choosers import CoreChooser, Scene
from select_service.replaying.hardware import EQUAL, LARGE, Fleet
from select_service.replaying.streams import Workload, without_pauses
from select_service.replaying.world import World

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
"""Requests per second of the fleet, of which a load is a share: how many end while `reference`
chooses and 48 requests per rank are live (`--capacity --requests 5000`, two digits of it)."""
CLOSED = (12, 24, 48, 96)
"""Live requests per rank that `--capacity` tries."""

TRACE_REQUESTS = 2000


class Case(NamedTuple):
    """What a run of a workload needs.  workload: of a seed"""

    workload: Callable[[int], Workload]
    fleet: Fleet


def cases(mooncake: Path | None, azure: Path | None, requests: int | None) -> dict[str, Case]:
    """By name; the traces only where there are files.  requests: of a run, if not the usual."""
    found = {
        name: Case(lambda seed, kind=kind: made(kind, seed, requests), kind.fleet)  # type: ignore[misc]
        for name, kind in KINDS.items()
    }
    n = requests or TRACE_REQUESTS
    if mooncake is not None:
        rows = traces.mooncake(mooncake)
        found["mooncake"] = Case(lambda seed: traces.of_trace(rows, seed, n, traces.STAMP_S), LARGE)
    if azure is not None:
        lines = traces.azure(azure)
        found["azure"] = Case(lambda seed: traces.of_trace(lines, seed, n), EQUAL)
    return found


# --- runs


def run(key: Key, case: Case) -> Outcome:
    """One run, in virtual time."""
    workload = case.workload(key.seed)
    world = World(workload, case.fleet)
    chooser = chooser_of(key.chooser, Scene(case.fleet, workload.n_blocks, key.seed), world)
    per_s = key.load * CAPACITY[key.workload] / workload.turns
    return outcome_of(world.run_open(chooser, per_s))


def capacity(case: Case, live_per_rank: int, seed: int) -> float:
    """Requests per second that end, in the middle half of a run with always so many live.

    Nobody thinks between turns: sessions that think are not live, and would be missing.
    """
    workload = without_pauses(case.workload(seed))
    scene = Scene(case.fleet, workload.n_blocks, seed)
    world = World(workload, case.fleet)
    record = world.run_closed(CoreChooser(scene), live_per_rank * len(case.fleet))
    ends = sorted(life.end_s for life in record.lives)
    quarter = len(ends) // 4
    return 2 * quarter / (ends[3 * quarter] - ends[quarter])
