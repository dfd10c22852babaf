"""The runs: which workload at which load, by which chooser."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from scripts.bench.quality import choosers, traces
from scripts.bench.quality.core_choosers import CoreChooser, Scene
from scripts.bench.quality.figures import Key, Outcome, outcome_of
from scripts.bench.quality.hardware import EQUAL, LARGE, Fleet
from scripts.bench.quality.replicas import Link, Replicated
from scripts.bench.quality.streams import Workload
from scripts.bench.quality.work import LEAST_WORK, WORK, Rule, WorkChooser
from scripts.bench.quality.workloads import KINDS, made
from scripts.bench.quality.world import Chooser, World
from select_service.core.decide.router_config import POLICY_NAMES, RouterConfig

CAPACITY = {
    "conversation": 42.0,
    "tenants": 48.0,
    "agents": 9.6,
    "retrieval": 20.3,
    "few-shot": 195.0,
    "completion": 14.2,
    "mixed lengths": 13.4,
    "bursts": 27.0,
    "conversation, mixed fleet": 48.0,
    "tenants, mixed fleet": 60.0,
    "mooncake": 4.1,
    "azure": 40.0,
}
"""Requests per second of the fleet, of which a load is a share.  Set near to what `--capacity`
measures: the most that end when `reference` chooses and 12 to 96 requests per rank are live."""
CLOSED = (12, 24, 48, 96)

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


# --- choosers by name

BLIND: dict[str, Callable[[Scene], Chooser]] = {
    "round robin": lambda scene: choosers.RoundRobin(len(scene.fleet), scene.seed),
    "least requests": lambda scene: choosers.LeastRequests(len(scene.fleet), scene.seed),
    "least load": lambda scene: choosers.LeastLoad(len(scene.fleet), scene.seed),
    "prefix tree": lambda scene: choosers.PrefixTree(len(scene.fleet), scene.seed, scene.n_blocks),
}

MEMORY = WORK._replace(memory=4.0)

TRIALS: dict[str, Rule] = {
    "work": WORK,
    "least work": LEAST_WORK,
    "memory": MEMORY,
    "memory at 1": WORK._replace(memory=1.0),
    "memory learnt": MEMORY._replace(declared=False),
    "hold": MEMORY._replace(hold_tokens=8192),
    "own work x2": MEMORY._replace(own=2.0),
    "R/16": MEMORY._replace(r_scale=16.0, r_max=8.0),
    "no progress": MEMORY._replace(progress=False),
    "no R/32": MEMORY._replace(r_max=0.0),
    "no 256 R": MEMORY._replace(per_request=0.0),
    "no leading run": MEMORY._replace(leading=False),
    "decode": MEMORY._replace(decode=0.06),
    "strict tail": WORK._replace(r_scale=64.0, u_max=32_768.0, decode=0.1),
    "no reports": WORK._replace(booked=0.3, progress=False, r_max=0.0),
}
"""Variants of `work` that are computed in Python, named `trial NAME`."""


def names() -> list[str]:
    """All that may be asked to choose.  Behind a core's or a trial's there may be ` @ N x MS ms`:
    so many selectors, whose messages take so long.
    """
    return [*POLICY_NAMES, "reference x10", *BLIND, *(f"trial {name}" for name in TRIALS)]


def chooser_of(name: str, scene: Scene, world: World) -> Chooser:
    """Raises KeyError for a name that there is not."""
    name, _, apart = name.partition(" @ ")
    if name in BLIND:
        return BLIND[name](scene)
    if apart:
        link = link_of(apart)
        members = [core_of(name, scene, number) for number in range(link.selectors)]
        return Replicated(members, link, world)
    return core_of(name, scene, 0)


def core_of(name: str, scene: Scene, number: int) -> CoreChooser:
    """number: of the selector, among its peers"""
    reports = not name.endswith(", no reports")
    name = name.removesuffix(", no reports")
    if name.startswith("trial "):
        rule = TRIALS[name.removeprefix("trial ").removesuffix(", speeds")]
        if name.endswith(", speeds"):
            rule = rule._replace(speeds=True)
        return WorkChooser(scene, rule, reports=reports, selector_number=number)
    config = RouterConfig(policy=name.removesuffix(" x10"))
    if name.endswith(" x10"):
        config = config._replace(prefill_load_scale=10.0)
    return CoreChooser(scene, config, reports=reports, selector_number=number)


def link_of(text: str) -> Link:
    """From `2 x 5 ms`, `2 x 5 ms, loss 20` (in percent), `4 x 50 ms, sticky, no help`."""
    first, *more = text.split(", ")
    selectors, _, delay_ms, _ = first.split(" ")
    loss = next((float(x.removeprefix("loss ")) / 100 for x in more if x.startswith("loss ")), 0.0)
    return Link(
        int(selectors), float(delay_ms) / 1000, loss, "sticky" in more, "no help" not in more
    )


# --- runs


def run(key: Key, case: Case) -> Outcome:
    """One run, in virtual time."""
    workload = case.workload(key.seed)
    world = World(workload, case.fleet)
    chooser = chooser_of(key.chooser, Scene(case.fleet, workload.n_blocks, key.seed), world)
    per_s = key.load * CAPACITY[key.workload] / workload.turns
    return outcome_of(world.run_open(chooser, per_s))


def capacity(case: Case, live_per_rank: int, seed: int) -> float:
    """Requests per second that end, in the middle half of a run with always so many live."""
    workload = case.workload(seed)
    scene = Scene(case.fleet, workload.n_blocks, seed)
    world = World(workload, case.fleet)
    record = world.run_closed(CoreChooser(scene), live_per_rank * len(case.fleet))
    ends = sorted(life.end_s for life in record.lives)
    quarter = len(ends) // 4
    return 2 * quarter / (ends[3 * quarter] - ends[quarter])
