"""Synchronous steps of reinforcement learning: all rollouts begin together, the last ends the step.

Modelled on a published fleet (github PrimeIntellect-ai/prime-rl, pull request 3255): rollouts of
about 32 turns, mean prompts of 31,000 tokens, 400,000 tokens of cache an engine.
"""

import argparse
from statistics import fmean
from typing import NamedTuple

import numpy as np

from scripts.bench.quality.knowledge_workloads import ENGINE, Rollouts, make_step
from scripts.bench.quality.quality_runs import make_world
from scripts.bench.quality.situations import HEURISTICS

ROLLOUTS = Rollouts(8, (24, 40), 14, 18, 380, 330, 8.0)
"""Chosen so that 64 rollouts fit into 4 engines, and 96 find some 0.75 of their tokens cached."""
SCENES = ((4, 64), (4, 96), (12, 240))
"""Engines and rollouts of a step."""
UNSEEN = ("work in assumed", "work, session in no index")
CHOOSERS = (*HEURISTICS, "work", *UNSEEN)


class StepOutcome(NamedTuple):
    """Result of a step.  busiest: busy seconds of the busiest engine, in those of a mean engine"""

    seconds: float
    hit_rate: float
    busiest: float


def run_step(chooser: str, engines: int, rollouts: int, seed: int) -> StepOutcome:
    """Return the result of a step."""
    step = make_step(ROLLOUTS, rollouts, seed)
    world, router = make_world(chooser, step, (ENGINE,) * engines, seed)
    record = world.run_open(router, 1.0)
    lives, busy = record.histories, [work.busy_s for work in record.work]
    hits = sum(life.cached for life in lives) / sum(life.turn.prompt_tokens for life in lives)
    return StepOutcome(max(life.end_s for life in lives), hits, max(busy) / fmean(busy))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3, 4), metavar="I")
    seeds = parser.parse_args().seeds
    heads = [f"{rollouts} rollouts, {engines} engines" for engines, rollouts in SCENES]
    print(f"| step, hit rate, busiest / mean | {' | '.join(heads)} |")
    print("|---" * (1 + len(SCENES)) + "|")
    for chooser in CHOOSERS:
        cells = []
        for scene in SCENES:
            runs = [run_step(chooser, *scene, seed) for seed in seeds]
            seconds, hit_rate, busiest = np.mean(runs, axis=0)
            cells.append(f"{seconds:,.0f} s, {hit_rate:.3f}, {busiest:.2f}")
        print(f"| {chooser} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
