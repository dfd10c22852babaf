"""Do experiments find out what is true?  Two policies in an experiment, and each of them alone.

    python -m scripts.bench.quality.switchback agents "mixed lengths" --policies work:reference

The experiment of the core runs in virtual time on one fleet; what is true is the difference of two
further runs of the same requests, in which either policy has the whole fleet all the time.
"""

import argparse
from statistics import fmean
from typing import NamedTuple

from scripts.bench.quality import cells
from select_service.core.comparing.experiment import Experiment, Result
from select_service.core.decide.policies import PolicyChoice, choice_named
from select_service.core.fleet.scoped_policies import PolicyScope
from select_service.replaying.core_choosers import REFERENCE, CoreChooser, Scene
from select_service.replaying.world import World

LOAD = 0.85
STEP_S = 1.0
"""Between looks at the clock, as in the service."""


class Plan(NamedTuple):
    """What is run."""

    workload: str
    policies: tuple[PolicyChoice, PolicyChoice]
    requests: int
    seed: int
    slot_s: float


class Found(NamedTuple):
    """result: of the experiment;  alone: mean times of the policies that had the fleet, seconds"""

    result: Result
    alone: tuple[float, float]


def found(plan: Plan) -> Found:
    """Three runs."""
    first, second = (_alone(plan, policy) for policy in plan.policies)
    return Found(_switched(plan), (first, second))


def _alone(plan: Plan, policy: PolicyChoice) -> float:
    world, chooser, per_s = _made(plan, policy)
    record = world.run_open(chooser, per_s)
    return fmean(life.first_s - life.asked_s for life in record.lives)


def _switched(plan: Plan) -> Result:
    world, chooser, per_s = _made(plan, plan.policies[0])
    experiment = _begun(plan, world, chooser)
    world.run_open(chooser, per_s)
    return experiment.result()


def _made(plan: Plan, policy: PolicyChoice) -> tuple[World, CoreChooser, float]:
    """With the sessions that start per second."""
    case = cells.cases(None, None, plan.requests)[plan.workload]
    workload = case.workload(plan.seed)
    scene = Scene(case.fleet, workload.n_blocks, plan.seed)
    chooser = CoreChooser(scene, policy.within(REFERENCE))
    per_s = LOAD * cells.CAPACITY[plan.workload] / workload.turns
    return World(workload, case.fleet), chooser, per_s


def _begun(plan: Plan, world: World, chooser: CoreChooser) -> Experiment:
    selector = chooser.selector
    experiments = selector.hindsight.experiments
    experiment = experiments.begin(plan.policies, plan.slot_s, PolicyScope(), world.time)
    for _ in selector.fleet.policies.following():
        pass

    def step() -> None:
        experiments.step(world.time)

    world.every(STEP_S, step)
    return experiment


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+", help="of scripts.bench.quality")
    parser.add_argument("--policies", default="work:reference", metavar="A:B")
    parser.add_argument("--requests", type=int, default=25_000, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slot", type=float, default=120.0, metavar="SECONDS")
    options = parser.parse_args()
    first, second = map(choice_named, options.policies.split(":"))
    print("| workload | pairs | B less A, measured | 95 % | B less A, each alone |")
    print("|---|---|---|---|---|")
    for workload in options.workloads:
        plan = Plan(workload, (first, second), options.requests, options.seed, options.slot)
        print(_row(workload, found(plan)), flush=True)


def _row(workload: str, seen: Found) -> str:
    alone, measured = seen.alone[1] - seen.alone[0], seen.result.difference
    interval = ("", "")
    if measured is not None:
        interval = f"{measured.mean:.3f} s", f"{measured.low:.3f} to {measured.high:.3f}"
    texts = (workload, str(seen.result.pairs), *interval, f"{alone:.3f} s")
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    main()
