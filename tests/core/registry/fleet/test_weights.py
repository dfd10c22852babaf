"""Tests of rank weights: shares of requests, ranks without requests, and errors of callers."""

from collections import deque
from functools import partial
from random import Random

import numpy as np
import pytest

from select_service.base.errors import NoEligibleRank
from select_service.core.identity import Rank
from select_service.core.placement.router_config import RouterConfig
from select_service.core.views.decision_views import DecisionFilter
from tests.builders import (
    a_patch,
    a_reservation,
    a_select,
    a_select_and_reserve,
    a_selector,
    a_worker,
)
from tests.builders.steps import lines_of

POLICIES = ["reference", "work", "least_work"]
PINNED = {"pinned_worker": {"worker_id": 1, "dp_rank": 0}}


def a_fleet(policy="work", n_workers=3, **options):
    selector = a_selector(RouterConfig(policy=policy), **options)
    for worker_id in range(1, n_workers + 1):
        selector.register_worker(a_worker(worker_id, taints=["odd"] if worker_id % 2 else []))
    return selector


def weigh(selector, *weights, state="unhealthy"):
    """Set the weights of the ranks of workers 1, 2, …"""
    for worker_id, weight in enumerate(weights, 1):
        selector.fleet.set_weight(Rank(worker_id, 0), weight, state)


def chosen_workers(selector, n=30, **fields):
    """Return the workers that a prompt may go to now."""
    return {selector.select(a_select(**fields), 0.0).selection.worker_id for _ in range(n)}


def refusal(selector, **fields):
    with pytest.raises(NoEligibleRank) as caught:
        selector.select(a_select(**fields), 0.0)
    return caught.value


@pytest.mark.parametrize("policy", POLICIES)
def test_an_idle_fleet_prefers_ranks_of_full_weight(policy):
    selector = a_fleet(policy)
    assert chosen_workers(selector) == {1, 2, 3}
    weigh(selector, 0.9)
    assert chosen_workers(selector) == {2, 3}
    weigh(selector, 0.9, 0.5, 0.5)
    assert chosen_workers(selector) == {1}
    weigh(selector, 1.0, 1.0, 1.0)
    assert chosen_workers(selector) == {1, 2, 3}
    selector.check_invariants()


def shares(policy, weight):
    """Return the ratio of blocks on a rank of this weight to blocks on a rank of weight 1."""
    selector, rng = a_fleet(policy, 4), Random(7)
    weigh(selector, weight)
    held, blocks = deque(), np.zeros(4)
    for number in range(400):
        tokens = rng.randrange(40, 400)
        hashes = [rng.getrandbits(63) for _ in range(tokens // 4)]
        prompt = {"token_ids": None, "block_hashes": hashes, "sequence_hashes": hashes}
        name = str(number)
        request = a_select_and_reserve(**prompt, isl_tokens=tokens, reservation_id=name)
        selector.select_and_reserve(request, 0.0)
        held.append(name)
        if len(held) > 60:
            selector.complete_prefill(held[-60], 0.0)
        if len(held) > 120:
            selector.free_reservation(held.popleft(), 0.0)
            (loads,) = selector.inspection.partition_loads()
            blocks += [row.potential_decode_blocks for row in loads.loads]
    return blocks[0] / blocks[1:].mean()


@pytest.mark.parametrize("policy", POLICIES)
def test_in_balance_a_rank_carries_its_weight(policy):
    assert 0.9 < shares(policy, 1.0) < 1.1
    assert 0.35 < shares(policy, 0.5) < 0.6
    assert 0.1 < shares(policy, 0.25) < 0.35


@pytest.mark.parametrize("policy", POLICIES)
def test_a_rank_of_weight_0_is_no_candidate_at_any_cost(policy):
    selector = a_fleet(policy)
    for worker_id in (2, 3):
        selector.reserve(a_reservation(f"r{worker_id}", worker_id, 4000), 0.0)
    assert chosen_workers(selector) == {1}
    weigh(selector, 0.0)
    assert chosen_workers(selector) <= {2, 3}
    assert chosen_workers(selector, router_config_override={"router_temperature": 1.0}) == {2, 3}
    assert chosen_workers(selector, allowed_worker_ids=[1, 2]) == {2}
    assert chosen_workers(selector, routing_constraints={"required_taints": ["odd"]}) == {3}


def test_a_request_for_a_rank_of_weight_0_gets_its_state():
    selector = a_fleet()
    weigh(selector, 0.0, state="draining")
    error = refusal(selector, **PINNED)
    assert str(error).endswith("pinned worker 1 dp_rank 0 is draining, out of rotation")
    assert error.details == {
        "weight": 0,
        "ranks": 1,
        "states": {"draining": 1},
        "state": "draining",
    }
    weigh(selector, 0.25)
    assert chosen_workers(selector, **PINNED) == {1}


def test_a_request_without_a_rank_in_rotation_gets_their_number():
    selector = a_fleet()
    weigh(selector, 0.0, 0.0, 0.0)
    weigh(selector, 0.0, state="dead")
    error = refusal(selector)
    assert str(error).endswith("none of the ranks that fit is in rotation (1 dead, 2 unhealthy)")
    assert error.details == {"weight": 0, "ranks": 3, "states": {"dead": 1, "unhealthy": 2}}
    assert refusal(selector, allowed_worker_ids=[2, 9]).details["states"] == {"unhealthy": 1}
    odd = refusal(selector, routing_constraints={"required_taints": ["odd"]})
    assert odd.details["states"] == {"dead": 1, "unhealthy": 1}
    with pytest.raises(NoEligibleRank):
        selector.select_and_reserve(a_select_and_reserve(), 0.0)
    with pytest.raises(NoEligibleRank):
        selector.followers.explanations.explain_request(a_select(), None, None, 0.0)


def test_other_unmet_constraints_have_the_usual_errors():
    selector = a_fleet()
    weigh(selector, 0.0)
    for fields in (
        {"allowed_worker_ids": [9]},
        {"pinned_worker": {"worker_id": 9, "dp_rank": 0}},
        {"routing_constraints": {"required_taints": ["even"]}},
        {**PINNED, "routing_constraints": {"required_taints": ["even"]}},
    ):
        error = refusal(selector, **fields)
        assert "is schedulable here" in str(error) or "is not schedulable here" in str(error)
        assert error.details is None


def test_callers_cannot_book_on_a_rank_of_weight_0():
    for policy in POLICIES:
        selector = a_fleet(policy)
        selector.reserve(a_reservation("old", 1, 40), 0.0)
        weigh(selector, 0.0, state="draining")
        with pytest.raises(NoEligibleRank, match="worker 1 dp_rank 0 is draining") as refused:
            selector.reserve(a_reservation("new", 1, 40), 0.0)
        assert refused.value.details["state"] == "draining"
        selector.reserve(a_reservation("new", 2, 40), 0.0)
        (loads,) = selector.inspection.partition_loads()
        assert [row.active_requests for row in loads.loads] == [1, 1, 0]
        selector.free_reservation("old", 0.0)
        selector.check_invariants()


def test_a_weight_stays_through_a_patch_and_goes_with_the_rank():
    selector = a_fleet(n_workers=2)
    weigh(selector, 0.0)
    selector.patch_worker(1, a_patch(total_kv_blocks=77))
    assert chosen_workers(selector) == {2}
    selector.patch_worker(1, a_patch(data_parallel_size=2))
    ranks = [selector.select(a_select(), 0.0).selection for _ in range(30)]
    assert {(rank.worker_id, rank.dp_rank) for rank in ranks} == {(1, 1), (2, 0)}
    selector.check_invariants()
    selector.delete_worker(1, 0.0)
    selector.fleet.set_weight(Rank(1, 0), 0.0, "dead")
    selector.run_pending(0.0)
    for writer in selector.fleet.take_changes().retired:
        writer.close()
    selector.register_worker(a_worker(1))
    assert chosen_workers(selector) == {1, 2}
    selector.check_invariants()


def test_a_weight_for_an_unknown_rank_changes_nothing():
    selector = a_fleet()
    for rank in (Rank(9, 0), Rank(1, 7)):
        selector.fleet.set_weight(rank, 0.0, "dead")
    assert chosen_workers(selector) == {1, 2, 3}


@pytest.mark.parametrize("policy", POLICIES)
def test_decisions_keep_the_weights_of_their_moment(policy):
    selector = a_fleet(policy, decisions_kept=9)
    weigh(selector, 0.5, 1.0, 0.0)
    selector.select_and_reserve(a_select_and_reserve(reservation_id="r"), 0.0)
    weigh(selector, 0.25, 0.25, 0.25)
    kept = selector.followers.explanations.find_decision("r", 0.0)
    assert {view.worker_id: view.weight for view in kept.candidates} == {1: 0.5, 2: 1.0}
    unit = 1.0 if policy == "reference" else 4.0
    cost = {view.worker_id: view.terms["cost"] for view in kept.candidates}
    assert cost[1] == (cost[2] + unit) / 0.5 - unit
    asked = selector.followers.explanations.explain_request(a_select(), None, None, 0.0)
    assert [view.weight for view in asked.candidates] == [0.25] * 3
    rows = selector.followers.explanations.list_decisions(DecisionFilter(), 0.0)
    assert [row.runner_up_cost for row in rows] == [cost[1]]
    logged = selector.select(a_select(), 0.0, explain=True).candidates
    assert [row["weight"] for row in logged] == [0.25] * 3


def test_a_weight_is_set_without_a_look_at_other_ranks():
    lines = []
    for n_workers in (2, 200):
        selector = a_fleet(n_workers=n_workers)
        weigh(selector, 0.0, 0.0)
        lines.append(lines_of(partial(weigh, selector, 0.5, 0.0)))
    assert lines[0] == lines[1]
