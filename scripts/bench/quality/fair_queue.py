"""Waits of a client beside one that sends too much, with and without `fairness_id`.

Four clients share eight simulated ranks behind the queue of the real core.  The victim sends the
same prompts at the same times in every run.  In the second run one neighbour sends `--factor` times
a quarter of the capacity.  All prompts are different, so caches do not matter.  With the weight
`first` the victim has strict priority: no order of a queue that never holds back room lets it wait
less.

    python -m scripts.bench.quality.fair_queue [--seconds 100] [--seeds 1:2] [--factor 10]
"""

import argparse
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from scripts.bench.quality.generated_workloads import draw_length
from select_service.core.admission.policy_classes import (
    CacheBucket,
    PolicyClassProfile,
    PolicyDocument,
    QueueBounds,
    QueuePolicy,
    QueueRules,
    single_class_profile,
)
from select_service.core.placement.router_config import RouterConfig
from select_service.sim.engine.block_streams import ReplaySession, ReplayWorkload
from select_service.sim.engine.core_router import CoreRouter, CoreScene, SelectorUsage
from select_service.sim.engine.gpu_hardware import EQUAL
from select_service.sim.engine.replay_world import RankRequest, ReplayWorld
from select_service.sim.engine.text_streams import BlockNumbers, TextStream

CAPACITY = 18.0
"""Requests per second at which the fleet is full (`--capacity`)."""
VICTIM, NEIGHBOURS = 0, 3
VICTIM_LOAD = 0.1
MIXES = {"115 %": 0.35, "95 %": 0.283, "victim alone": 0.0}
"""Load of each neighbour in the first run, by the load of the fleet; shares of the capacity."""
AGGRESSOR_LOAD = 0.25
"""Load of the aggressor in the second run, before `--factor`."""
PROMPT_TOKENS, PROMPT_SPREAD, OUTPUT_TOKENS = 3000.0, 0.6, 60
THRESHOLD = 1.0
UNBOUNDED = QueueBounds(10**9, 10**15)


class Waits(NamedTuple):
    """Seconds of the victim's requests until they have a rank, and the first token; and seconds of
    everyone's until they have a rank.
    """

    rank_s: NDArray[np.float64]
    token_s: NDArray[np.float64]
    all_s: NDArray[np.float64]


class TimedRouter(CoreRouter):
    """Router of the core that records when requests get their rank."""

    def __init__(self, scene: CoreScene, config: RouterConfig, setting: SelectorUsage) -> None:
        super().__init__(scene, config, setting)
        self.got_rank_at: dict[int, float] = {}

    def choose(self, ask: RankRequest, now: float) -> int | None:
        rank = super().choose(ask, now)
        if rank is not None:
            self.got_rank_at[ask.number] = now
        return rank

    def released(self, now: float) -> Iterable[tuple[int, int]]:
        for number, rank in super().released(now):
            self.got_rank_at[number] = now
            yield number, rank


def make_workload(loads: Sequence[float], seconds: float, seed: int) -> ReplayWorkload:
    """Return requests of each client at random times, the same for a client with an equal load."""
    blocks = BlockNumbers()
    found: list[tuple[float, int, ReplaySession]] = []
    for client, load in enumerate(loads):
        # Own numbers per client: another client's load must not change the victim's requests.
        rng = np.random.default_rng([seed, client])
        at = rng.exponential()
        while load and at / (load * CAPACITY) < seconds:
            tokens = draw_length(rng, PROMPT_TOKENS, PROMPT_SPREAD, 16_384)
            stream = TextStream(blocks).append_unique(tokens)
            found.append((at / (load * CAPACITY), client, (stream.make_request(OUTPUT_TOKENS),)))
            at += rng.exponential()
    found.sort(key=lambda each: each[0])
    return ReplayWorkload(
        tuple(session for _, _, session in found),
        np.array([start for start, _, _ in found]),
        blocks.count,
        timed=lambda units, _: units,
        labels=tuple(client for _, client, _ in found),
    )


class Variant(NamedTuple):
    """Rules of the queue.

    weight: of the victim; None means that requests have no fairness_id
    is_first: whether the victim has strict priority
    """

    order: QueuePolicy
    weight: float | None = None
    is_first: bool = False

    def make_rules(self) -> QueueRules:
        usual = single_class_profile(self.order, THRESHOLD)
        weights = {} if self.weight is None else {str(VICTIM): self.weight}
        only = msgspec.structs.replace(usual.classes[0], fairness_weights=weights)
        document = PolicyDocument(
            default_policy_family=usual.default_family,
            uncached_isl_buckets=[CacheBucket(min_tokens=0, bucket="all")],
            policy_classes=[only],
        )
        return QueueRules(PolicyClassProfile(document), bounds=UNBOUNDED)


def run_world(
    workload: ReplayWorkload, variant: Variant, seed: int
) -> tuple[ReplayWorld, TimedRouter]:
    world = ReplayWorld(workload, EQUAL)
    usage = SelectorUsage(
        queue=variant.make_rules(),
        has_flows=variant.weight is not None,
        urgent_client=VICTIM if variant.is_first else None,
    )
    scene = CoreScene(EQUAL, workload.n_blocks, seed)
    router = TimedRouter(scene, RouterConfig(policy="work"), usage)
    router.join_world(world)
    world.run_open(router, 1.0)
    return world, router


def measure_victim(loads: Sequence[float], options: argparse.Namespace, variant: Variant) -> Waits:
    """Return the waits of the victim over all seeds."""
    parts: list[Waits] = []
    for seed in options.seeds:
        workload = make_workload(loads, options.seconds, seed)
        world, router = run_world(workload, variant, seed)
        each = [
            (
                workload.labels[world.turn_of(number)[0]] == VICTIM,
                router.got_rank_at[number] - history.arrived_s,
                history.first_s - history.arrived_s,
            )
            for number, history in enumerate(world.record.histories)
        ]
        is_mine, rank_s, token_s = np.array(each).T
        parts.append(Waits(rank_s[is_mine > 0], token_s[is_mine > 0], rank_s))
    return Waits(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def measure_capacity(seconds: float) -> float:
    """Return completions per second of the fleet with a long queue."""
    workload = make_workload((4.0,), seconds, 99)
    world, _ = run_world(workload, Variant("fcfs"), 99)
    ends = sorted(history.end_s for history in world.record.histories)
    # The first and last quarters are not at capacity: the queue fills, then drains.
    quarter = len(ends) // 4
    return 2 * quarter / (ends[3 * quarter] - ends[quarter])


def render_row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    options = _parse_options()
    if options.capacity:
        print(f"{measure_capacity(options.seconds):.1f} requests/s")
        return
    quantities = ("wait mean", "wait p99", "first token p99", "ratios of p99", "wait mean of all")
    print(render_row(("load", "order", "weight", *quantities)))
    print(render_row(["---"] * 8))
    for (name, load), variant in list_cases():
        calm = measure_victim((VICTIM_LOAD, *[load] * NEIGHBOURS), options, variant)
        loud = (VICTIM_LOAD, *[load] * (NEIGHBOURS - 1), AGGRESSOR_LOAD * options.factor)
        beside = measure_victim(loud, options, variant)
        print(render_row((name, *render_variant(variant), *compare(calm, beside))), flush=True)


def list_cases() -> list[tuple[tuple[str, float], Variant]]:
    """Return the mixes with the variants: all orders for the first, `fcfs` for the others."""
    usual = [Variant("fcfs", weight) for weight in (None, 1.0, 4.0)]
    usual.append(Variant("fcfs", 1.0, is_first=True))
    others: tuple[QueuePolicy, ...] = ("wspt", "lcfs", "work")
    first, *more = MIXES.items()
    return [
        *((first, variant) for variant in (*usual, *(Variant(order, 1.0) for order in others))),
        *product(more, usual),
    ]


def render_variant(variant: Variant) -> tuple[str, str]:
    if variant.is_first:
        return variant.order, "first"
    return variant.order, "no names" if variant.weight is None else f"{variant.weight:g}"


def compare(calm: Waits, beside: Waits) -> list[str]:
    """Return the cells that compare two runs."""
    pairs = [
        (float(figure(a)), float(figure(b)))
        for figure, a, b in (
            (np.mean, calm.rank_s, beside.rank_s),
            (p99, calm.rank_s, beside.rank_s),
            (p99, calm.token_s, beside.token_s),
            (np.mean, calm.all_s, beside.all_s),
        )
    ]
    ratios = [f"{b / a:.2f}" if a else "-" for a, b in pairs[1:3]]
    *mine, of_all = (f"{a:.2f} → {b:.2f} s" for a, b in pairs)
    return [*mine, " / ".join(ratios), of_all]


def p99(values: NDArray[np.float64]) -> float:
    return float(np.quantile(values, 0.99))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.quality.fair_queue",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seconds", type=float, default=100.0, help="of arrivals; 100")
    add("--seeds", type=_integers, default=(1, 2), metavar="I:J", help="1:2")
    add("--factor", type=float, default=10.0, help="of the aggressor; 10")
    add("--capacity", action="store_true", help="measure the capacity, nothing else")
    return parser.parse_args()


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(":")))


if __name__ == "__main__":
    main()
