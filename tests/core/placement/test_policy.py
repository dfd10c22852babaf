"""Tests of a custom policy through the same interface as `reference`: kernel, record, name."""

import pytest

from indexer.index.header_kernels import f64_view, i64_view, tiers_view
from indexer.jit.decorators import compiled
from indexer.jit.function_pointers import function_address
from select_service.core.load.compiled.load_layout import N_TOTALS, REQUESTS, TOTALS
from select_service.core.placement.placement_kernels import (
    CACHED_TOKENS,
    COST,
    DECODE,
    EFFECTIVE_PREFILL_TOKENS,
    N_COMMON_TERMS,
    NO_SLOT,
    PLACE_SIGNATURE,
    TERMS_SIGNATURE,
    choose_slot,
    match_prompt,
    write_token_summary,
)
from select_service.core.placement.plan_layout import (
    BLOCK_SIZE,
    COSTS,
    LOAD,
    MATCHED,
    N_COMMON_PARAMETERS,
    PARAMETERS,
    REQUEST_BLOCKS,
    REQUEST_ISL_TOKENS,
)
from select_service.core.placement.policies.policy import PlacementPolicy
from select_service.core.placement.policies.policy_registry import POLICIES
from select_service.core.placement.router_config import POLICY_NAMES, RouterConfig
from select_service.schemas.prompts import PromptQuery
from tests.builders import a_select, a_select_and_reserve, a_selector, a_worker

P_PER_REQUEST = N_COMMON_PARAMETERS
SURCHARGE = N_COMMON_TERMS
PER_REQUEST = 100.0


@compiled()
def surcharge_of(plan, slot):
    requests = i64_view(i64_view(plan, LOAD), TOTALS)[slot * N_TOTALS + REQUESTS]
    return f64_view(plan, PARAMETERS)[P_PER_REQUEST] * requests


@compiled(error_model="numpy")
def fewest_requests(plan, path, sequence, eligible, factors):
    """Choose by the number of requests, then by matched blocks of any tier."""
    match_prompt(plan, path, sequence)
    matched, costs = tiers_view(plan, MATCHED), f64_view(plan, COSTS)
    for slot in range(eligible.shape[0]):
        costs[slot] = surcharge_of(plan, slot) - matched[slot, 3]
    chosen = choose_slot(plan, eligible)
    if chosen != NO_SLOT:
        cached = matched[chosen, 3] * plan[BLOCK_SIZE]
        write_token_summary(plan, max(0.0, plan[REQUEST_ISL_TOKENS] - cached), 1.0)
    return chosen


_address_of_fewest = function_address(PLACE_SIGNATURE, fewest_requests)


@compiled("int64()")
def address_of_fewest():
    return _address_of_fewest()


@compiled(TERMS_SIGNATURE, error_model="numpy")
def terms_of_fewest(plan, eligible, factors, out):
    matched = tiers_view(plan, MATCHED)
    for slot in range(out.shape[1]):
        cached = matched[slot, 3] * plan[BLOCK_SIZE]
        out[CACHED_TOKENS, slot] = cached
        out[EFFECTIVE_PREFILL_TOKENS, slot] = max(0.0, plan[REQUEST_ISL_TOKENS] - cached)
        out[DECODE, slot] = plan[REQUEST_BLOCKS]
        out[SURCHARGE, slot] = surcharge_of(plan, slot)
        out[COST, slot] = f64_view(plan, COSTS)[slot]


FEWEST = PlacementPolicy(
    name="fewest-requests",
    address_of_place=address_of_fewest,
    fill_terms=terms_of_fewest,
    own_term_names=("surcharge",),
    own_parameters=lambda config: (PER_REQUEST,),
    credit_blocks=lambda matched, config: float(matched[3]),
)


def a_query():
    return PromptQuery(model_name="m", token_ids=list(range(8)))


@pytest.fixture
def selector(monkeypatch):
    monkeypatch.setitem(POLICIES, FEWEST.name, FEWEST)
    selector = a_selector(RouterConfig(policy=FEWEST.name))
    selector.register_worker(a_worker(1))
    selector.register_worker(a_worker(2))
    return selector


def chosen_of(decision):
    return decision.selection.worker_id


def test_settings_accept_the_names_of_the_policies():
    assert tuple(POLICIES) == POLICY_NAMES
    assert all(POLICIES[name].name == name for name in POLICY_NAMES)


def test_another_policy_chooses_and_books_by_its_own_terms(selector):
    first = selector.select_and_reserve(a_select_and_reserve(reservation_id="a"), 0.0)
    second = selector.select_and_reserve(a_select_and_reserve(reservation_id="b"), 0.0)
    assert {chosen_of(first), chosen_of(second)} == {1, 2}
    (booked,) = (each for each in selector.ledger.reservations if each.reservation_id == "a")
    assert booked.prefill_tokens == first.selection.effective_prefill_tokens > 0


def test_every_view_shows_the_terms_of_the_policy(selector):
    taken = chosen_of(selector.select_and_reserve(a_select_and_reserve(reservation_id="a"), 0.0))
    decision = selector.select(a_select(), 0.0, explain=True)
    cheapest, dearest = decision.candidates
    assert cheapest["chosen"]
    assert cheapest["worker_id"] != taken
    assert (cheapest["surcharge"], dearest["surcharge"]) == (0.0, PER_REQUEST)
    assert "credit" not in cheapest
    assert cheapest["cost"] < dearest["cost"]
    by_worker = {load.worker_id: load for load in selector.inspection.potential_loads(a_query())}
    assert by_worker[taken].potential_prefill_tokens > 0
    assert [
        row.router_credit_blocks for row in selector.inspection.overlap_scores(a_query())[1]
    ] == [0, 0]
