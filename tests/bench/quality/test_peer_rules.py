"""Tests of other routers' rules: costs, predictions, and Dynamo's rule against the core's."""

import numpy as np
import pytest

from scripts.bench.quality import quality_report, quality_runs
from scripts.bench.quality.knowledge_workloads import FLEET, make_session_workload
from scripts.bench.quality.peer_rules import (
    PEER_RULES,
    PeerRouter,
    PeerRule,
    dynamo_cost,
    llmd_cost,
    lmetric_cost,
    lmetric_own_cost,
    lmetric_runs_cost,
    load_aware_cost,
)
from scripts.bench.quality.quality_figures import RunKey, RunOutcome, compute_outcome
from scripts.bench.quality.rank_states import PredictedBlocks, RankStates
from scripts.bench.quality.situations import HEURISTICS
from select_service.sim.engine.core_router import CoreRouter, CoreScene
from select_service.sim.engine.replay_world import ReplayWorld

STATE = RankStates(
    isl=1000,
    block=100,
    own=np.array([1000.0, 200.0]),
    work=np.array([1000.0, 100.0]),
    left=np.array([0.0, 300.0]),
    booked=np.array([0.0, 400.0]),
    requests=np.array([0.0, 3.0]),
    active=np.array([1000.0, 2600.0]),
    memory=np.array([1e5, 1e5]),
    queue=np.array([0.0, 2.0]),
    use=np.array([0.1, 0.5]),
)


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (lmetric_cost, [1000.0, 2000.0]),
        (lmetric_own_cost, [1000.0, 800.0]),
        (lmetric_runs_cost, [1000.0, 1600.0]),
        (llmd_cost, [-(0 + 1.8 + 2), -(2.4 + 1 + 0)]),
        (load_aware_cost, [1.0 - 1.0, 0.2 + 1.0]),
        (PEER_RULES["load-aware 0.5"].cost, [1.0 - 0.5, 0.2 + 0.5]),
        (dynamo_cost, [20.0, 32.0]),
    ],
)
def test_costs_are_those_of_the_published_rules(cost, expected):
    assert cost(STATE).tolist() == pytest.approx(expected)


def run(router, seed=3, name="rlasync"):
    workload = make_session_workload(name, seed, 300)
    world = ReplayWorld(workload, FLEET)
    chooser = router(CoreScene(FLEET, workload.n_blocks, seed))
    chooser.join_world(world)
    return compute_outcome(world.run_open(chooser, 4.0), FLEET), chooser


@pytest.mark.parametrize("name", ["rlasync", "agentic"])
def test_dynamos_rule_without_predictions_is_the_policy_reference(name):
    own, _ = run(CoreRouter, name=name)
    found, chooser = run(lambda scene: PeerRouter(scene, PeerRule(dynamo_cost)), name=name)
    assert found == own
    chooser.selector.check_invariants()
    assert len(chooser.selector.ledger.reservations) == 0


def test_predictions_change_where_siblings_go():
    own, _ = run(CoreRouter)
    found, _ = run(lambda scene: PeerRouter(scene, PEER_RULES["Dynamo predicted"]))
    assert found.hit_rate > own.hit_rate


@pytest.mark.parametrize(
    ("joins", "first", "later"), [(False, [3, 2], [1, 2]), (True, [4, 2], [1, 2])]
)
def test_predicted_blocks_end_after_their_time_to_live(joins, first, later):
    predicted = PredictedBlocks(CoreScene(FLEET[:2], 10, 1), 2.0, joins)
    chain = np.arange(4, dtype=np.int32)
    predicted.book(0, chain[:3] if not joins else chain[1:], 5.0)
    matched = np.array([1, 2])
    assert predicted.extend_runs(matched, chain, 6.9).tolist() == first
    assert predicted.extend_runs(matched, chain, 7.0).tolist() == later


@pytest.mark.parametrize("name", [*HEURISTICS, "work"])
def test_every_heuristic_serves_all_requests(name):
    case = quality_runs.make_cases(None, None, 200)["agentic"]
    found = quality_runs.run_cell(RunKey("agentic", 0.3, 1, name), case)
    assert 0.0 < found.ttft_mean <= found.ttft_p99
    assert found.objective_share > 0.5


def test_the_best_other_is_named_by_cell_and_losses_come_first():
    def outcome(ttft, tpot, share):
        return RunOutcome(ttft, ttft, 1.0, tpot, 0.5, 0, share)

    rows = {
        ("won", "work"): outcome(1.0, 1.0, 0.9),
        ("won", "a"): outcome(2.0, 1.5, 0.8),
        ("won", "b"): outcome(1.5, 2.0, 0.7),
        ("lost", "work"): outcome(1.0, 1.0, 0.9),
        ("lost", "a"): outcome(0.5, 1.5, 0.95),
        ("lost", "b"): outcome(0.8, 0.7, 0.99),
    }
    results = {RunKey(name, 1.0, 1, chooser): found for (name, chooser), found in rows.items()}
    table = quality_report.render_markdown(results, "work").split("\n\n")[0].splitlines()
    assert table[2:] == [
        "| lost, 1 | 0.50 a | 0.50 a | 1.00 a | 0.70 b | 0.990 b, work 0.900 |",
        "| won, 1 | 1.50 b | 1.50 b | 1.00 a | 1.50 a | 0.800 a, work 0.900 |",
    ]
