"""Tests of rules that know the true lengths of answers, in runs with and without useful lengths."""

import pytest

from scripts.bench.quality.generated_workloads import KINDS, make_workload
from scripts.bench.quality.length_rules import LENGTH_USES, LengthRouter
from scripts.bench.quality.named_routers import make_core
from select_service.sim.engine.core_router import CoreScene
from select_service.sim.engine.gpu_hardware import BLOCK_TOKENS, EQUAL
from select_service.sim.engine.replay_world import ReplayWorld

REQUESTS = 150


def ranks_of_run(chooser_name, length):
    """Return the chosen ranks of a run in which all answers have `length` tokens."""
    workload = make_workload(KINDS["tenants"], 3, REQUESTS)
    sessions = tuple(
        tuple(
            turn._replace(
                output_tokens=length,
                chain=turn.chain[: (turn.prompt_tokens + length) // BLOCK_TOKENS],
            )
            for turn in session
        )
        for session in workload.sessions
    )
    world = ReplayWorld(workload._replace(sessions=sessions), EQUAL)
    chooser = make_core(chooser_name, CoreScene(EQUAL, workload.n_blocks, 3), 0)
    chooser.join_world(world)
    return [life.rank for life in world.run_open(chooser, 30.0).histories]


def test_equal_lengths_of_all_answers_change_nothing():
    assert ranks_of_run("lengths own", 8) == ranks_of_run("trial work", 8)
    assert ranks_of_run("lengths backlog", 8) != ranks_of_run("trial work", 8)


@pytest.mark.parametrize(("use", "number"), list(zip(LENGTH_USES, (2.4, 4.4, 4.0), strict=True)))
def test_weights_replace_the_number_of_requests(use, number):
    world = ReplayWorld(make_workload(KINDS["tenants"], 3, 1), EQUAL)
    router = LengthRouter(CoreScene(EQUAL, 1, 3), use)
    router.join_world(world)
    router._own, router._mean = 100, 50.0
    assert router.weigh_requests([20, 200]) == pytest.approx(number)
