"""Accuracy of experiments: two policies in an experiment, and each of them alone.

    python -m scripts.bench.quality.switchback agents "mixed lengths" --policies work:reference

The experiment of the core runs in virtual time on one fleet. The truth is the difference of two
further runs of the same requests, in which either policy has the whole fleet all the time.
"""

import argparse
from statistics import fmean
from typing import NamedTuple

from scripts.bench.quality import quality_runs
from select_service.core.analysis.comparison.switchback_experiment import (
    ExperimentResult,
    SwitchbackExperiment,
)
from select_service.core.placement.policies.policy_registry import PolicyChoice, parse_policy_choice
from select_service.core.registry.fleet.scoped_policies import PolicyScope
from select_service.sim.engine.core_router import REFERENCE, CoreRouter, CoreScene
from select_service.sim.engine.replay_world import ReplayWorld

LOAD = 0.85
STEP_S = 1.0
"""Time between two steps of the experiment, in seconds, as in the service."""


class SwitchbackPlan(NamedTuple):
    """Parameters of the runs."""

    workload: str
    policies: tuple[PolicyChoice, PolicyChoice]
    requests: int
    seed: int
    slot_s: float


class SwitchbackResult(NamedTuple):
    """Results.

    result: of the experiment;  alone: mean times of the policies with the whole fleet, in seconds
    """

    result: ExperimentResult
    alone: tuple[float, float]


def run_switchback(plan: SwitchbackPlan) -> SwitchbackResult:
    """Make three runs."""
    first, second = (_alone(plan, policy) for policy in plan.policies)
    return SwitchbackResult(_run_experiment(plan), (first, second))


def _alone(plan: SwitchbackPlan, policy: PolicyChoice) -> float:
    world, chooser, per_s = _make_workload(plan, policy)
    record = world.run_open(chooser, per_s)
    return fmean(life.first_s - life.arrived_s for life in record.histories)


def _run_experiment(plan: SwitchbackPlan) -> ExperimentResult:
    world, chooser, per_s = _make_workload(plan, plan.policies[0])
    experiment = _begin_experiment(plan, world, chooser)
    world.run_open(chooser, per_s)
    return experiment.compute_result()


def _make_workload(
    plan: SwitchbackPlan, policy: PolicyChoice
) -> tuple[ReplayWorld, CoreRouter, float]:
    """Return the workload and its sessions per second."""
    case = quality_runs.make_cases(None, None, plan.requests)[plan.workload]
    workload = case.workload(plan.seed)
    scene = CoreScene(case.fleet, workload.n_blocks, plan.seed)
    chooser = CoreRouter(scene, policy.apply_to(REFERENCE))
    per_s = LOAD * quality_runs.CAPACITY[plan.workload] / workload.mean_session_length
    return ReplayWorld(workload, case.fleet), chooser, per_s


def _begin_experiment(
    plan: SwitchbackPlan, world: ReplayWorld, chooser: CoreRouter
) -> SwitchbackExperiment:
    selector = chooser.selector
    experiments = selector.followers.evaluation.experiments
    experiment = experiments.begin_experiment(plan.policies, plan.slot_s, PolicyScope(), world.time)
    for _ in selector.fleet.policies.apply_to_partitions():
        pass

    def step() -> None:
        experiments.run_turn(world.time)

    world.schedule_every(STEP_S, step)
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
    first, second = map(parse_policy_choice, options.policies.split(":"))
    print("| workload | pairs | B less A, measured | 95 % | B less A, each alone |")
    print("|---|---|---|---|---|")
    for workload in options.workloads:
        plan = SwitchbackPlan(
            workload, (first, second), options.requests, options.seed, options.slot
        )
        print(_row(workload, run_switchback(plan)), flush=True)


def _row(workload: str, seen: SwitchbackResult) -> str:
    alone, measured = seen.alone[1] - seen.alone[0], seen.result.difference
    interval = ("", "")
    if measured is not None:
        interval = f"{measured.mean:.3f} s", f"{measured.low:.3f} to {measured.high:.3f}"
    texts = (workload, str(seen.result.pairs), *interval, f"{alone:.3f} s")
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    main()
