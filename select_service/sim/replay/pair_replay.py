"""Replay with the ranks split into prefill and decode, beside the same ranks together."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from select_service.sim.engine.core_router import CoreRouter, CoreScene
from select_service.sim.engine.highest_rate import RATE_RANGE, find_highest_rate
from select_service.sim.engine.pair_fleet import PairFleet, split_fleet
from select_service.sim.engine.pair_world import WORK, CorePairRouter, PairWorld
from select_service.sim.engine.replay_world import ReplayWorld, RequestHistory
from select_service.sim.engine.service_goal import FIRST_S, GOAL_SHARE, TOKEN_S, share_in_time
from select_service.sim.replay.decision_log_reader import ReplayError
from select_service.sim.replay.recorded_workload import RecordedWorkload
from select_service.sim.replay.replay_report import WARM_SHARE

SPLITS_MAX = 8
GOODPUT_STEP = 1.05
"""Precision of the goodput."""
DIFFERENCE = 1.05
"""Smallest ratio of goodputs that is a difference, as they are found to GOODPUT_STEP."""


class FleetSplit(NamedTuple):
    """Number of ranks for each part."""

    prefills: int
    decodes: int

    def __str__(self) -> str:
        return f"{self.prefills}:{self.decodes}"


class PairAssumptions(NamedTuple):
    """Assumptions beside the records.  link_gbps: speed of the network link of a host"""

    splits: tuple[FleetSplit, ...]
    link_gbps: float
    ranks_per_host: int
    seed: int


class PairFigures(NamedTuple):
    """Figures of the counted requests of a run at the recorded speed, in seconds and tokens.

    itl:       mean time between tokens
    local:     share of requests with a prompt that the decode rank computes; None without a split
    moved:     moved tokens of a request;  link_use: mean use of the links between hosts
    goodput:   most requests/s of which GOAL_SHARE keep their goal
    is_bound:  whether the search ended at its upper bound
    """

    ttft_mean: float
    ttft_p99: float
    itl: float
    local: float | None
    moved: float
    link_use: float | None
    goodput: float
    is_bound: bool


def parse_splits(text: str) -> tuple[FleetSplit, ...]:
    """Return the splits of `4:12,6:10`.  Raises ValueError."""
    splits = []
    for part in text.split(","):
        prefills, colon, decodes = part.partition(":")
        is_number = prefills.isdecimal() and decodes.isdecimal() and len(part) <= 9
        if not (colon and is_number and int(prefills) and int(decodes)):
            raise ValueError("splits like 4:12,6:10: ranks for prefill and for decode, 1 or more")
        splits.append(FleetSplit(int(prefills), int(decodes)))
    if len(splits) > SPLITS_MAX:
        raise ValueError(f"up to {SPLITS_MAX} splits")
    return tuple(dict.fromkeys(splits))


class _Run(NamedTuple):
    histories: list[RequestHistory]
    link_use: float | None = None


def replay_splits(traffic: RecordedWorkload, given: PairAssumptions) -> dict[str, PairFigures]:
    """Return the figures of all ranks together, then of each split.

    Raises ReplayError for a split with another number of ranks.
    """
    n = len(traffic.fleet)
    for split in given.splits:
        if sum(split) != n:
            raise ReplayError(
                f"--pairs {split}: {sum(split)} ranks, but the fleet has {n}: give "
                f"splits of {n} ranks"
            )
    together = f"{n} together"
    found = {together: _measure(together, partial(_run_mixed, traffic, given), traffic)}
    for split in given.splits:
        pairs = split_fleet(traffic.fleet, split.prefills, given.link_gbps, given.ranks_per_host)
        found[str(split)] = _measure(
            str(split), partial(_run_pairs, traffic, given, pairs), traffic
        )
    return found


def _run_mixed(traffic: RecordedWorkload, given: PairAssumptions, speed: float) -> _Run:
    scene = CoreScene(traffic.fleet, traffic.workload.n_blocks, given.seed)
    world = ReplayWorld(traffic.workload, traffic.fleet)
    return _Run(world.run_open(CoreRouter(scene, WORK), speed).histories)


def _run_pairs(
    traffic: RecordedWorkload, given: PairAssumptions, pairs: PairFleet, speed: float
) -> _Run:
    ranks = pairs.declare_ranks()
    scene = CoreScene(traffic.fleet, traffic.workload.n_blocks, given.seed, ranks=ranks)
    world = PairWorld(traffic.workload, pairs)
    record = world.run_pairs(CorePairRouter(scene), speed)
    hosts = pairs.count_links()
    seconds = max(each.end_s for each in record.histories)
    return _Run(record.histories, world.links.busy_s / (hosts * seconds) if hosts else None)


def _measure(name: str, run: Callable[[float], _Run], traffic: RecordedWorkload) -> PairFigures:
    """Return the figures of a fleet.  run: runs at a multiple of the recorded speed"""
    print(f"{name}: {traffic.workload.requests} requests, several times ...", file=sys.stderr)
    first = run(1.0)

    def meets(speed: float) -> bool:
        lives = first.histories if speed == 1.0 else run(speed).histories
        return share_in_time(_skip_warm_up(lives), traffic.fleet) >= GOAL_SHARE

    speed = find_highest_rate(meets, 1.0, GOODPUT_STEP)
    lives = _skip_warm_up(first.histories)
    ttft = np.array([each.first_s - each.arrived_s for each in lives])
    gaps = [
        (each.end_s - each.first_s) / (each.turn.output_tokens - 1)
        for each in lives
        if each.turn.output_tokens > 1
    ]
    is_split = first.link_use is not None or any(each.prefill_rank >= 0 for each in lives)
    # Requests per second as recorded, whatever part of it is counted.
    per_s = traffic.workload.requests / max(float(traffic.workload.units[-1]), 1e-9)
    return PairFigures(
        ttft_mean=float(ttft.mean()),
        ttft_p99=float(np.quantile(ttft, 0.99)),
        itl=float(np.mean(gaps)) if gaps else 0.0,
        local=float(np.mean([each.prefill_rank < 0 for each in lives])) if is_split else None,
        moved=float(np.mean([each.moved for each in lives])),
        link_use=first.link_use,
        goodput=speed * per_s,
        is_bound=speed >= RATE_RANGE,
    )


def _skip_warm_up(histories: Sequence[RequestHistory]) -> Sequence[RequestHistory]:
    return histories[int(WARM_SHARE * len(histories)) :]


# Report


def pair_notes(given: PairAssumptions) -> list[str]:
    """Return the assumptions, one per line."""
    return [
        f"splits: {given.ranks_per_host} ranks of both roles on a host, with one link of "
        f"{given.link_gbps:g} Gb/s in each direction; both ranks are chosen together, and decode "
        "ranks may compute prompts",
        f"goodput: most requests per second at which {GOAL_SHARE:.0%} keep their goal, a first "
        f"token within {FIRST_S:g} s and twice the time of their prompt, then {1000 * TOKEN_S:g} "
        "ms a token; found by replaying the requests faster or slower",
    ]


HEAD = (
    *("ranks", "TTFT mean, s", "TTFT p99, s", "between tokens, ms", "goodput, 1/s"),
    *("prompts computed by decode ranks", "tokens moved a request", "links in use"),
)


def render_splits(title: str, notes: Sequence[str], found: dict[str, PairFigures]) -> str:
    """Return the report as Markdown, with a verdict."""
    rows = [list(HEAD), ["---", *["---:"] * (len(HEAD) - 1)]]
    for name, each in found.items():
        rows.append(
            [
                name,
                f"{each.ttft_mean:.3f}",
                f"{each.ttft_p99:.3f}",
                f"{1000 * each.itl:.1f}",
                f"{'at least ' * each.is_bound}{each.goodput:.2f}",
                "-" if each.local is None else f"{each.local:.0%}",
                "-" if each.local is None else f"{each.moved:.0f}",
                "-" if each.link_use is None else f"{each.link_use:.0%}",
            ]
        )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    listed = "\n".join(f"* {note}" for note in notes)
    return f"# {title}\n\n{listed}\n\n{table}\n\n{judge_splits(found)}\n"


def judge_splits(found: dict[str, PairFigures]) -> str:
    """Return whether splitting pays, in a sentence.  found: the ranks together come first"""
    (together, mixed), *splits = found.items()
    name, best = max(splits, key=lambda each: each[1].goodput)
    if not (mixed.goodput or best.goodput):
        return (
            "**No fleet keeps the goals, however slow the requests come**: compare the times, or "
            "give another --gpu."
        )
    if mixed.is_bound and best.is_bound:
        return (
            f"**The traffic does not load the fleet**: {together} and {name} keep the goals at "
            f"{RATE_RANGE:g} times its speed. Replay a busier time."
        )
    carried = f"{best.goodput:.2f} requests/s within the goals, {together} {mixed.goodput:.2f}"
    if best.goodput > DIFFERENCE * mixed.goodput:
        return f"**Splitting pays**: {name} carries {carried}."
    if best.goodput * DIFFERENCE >= mixed.goodput:
        return f"**Splitting makes no difference**: {name} carries {carried}."
    return f"**Splitting does not pay**: the best split, {name}, carries {carried}."
