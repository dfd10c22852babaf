"""A policy of its own, through the same seam as `reference`: a kernel, a record, a name."""

import numpy as np
import pytest

from indexer.compiled import compiled
from indexer.index.kernels import match
from indexer.index.state_kernels import i64_view
from select_service.bodies.prompts import PromptQuery
from select_service.core.decide.explain import explained
from select_service.core.decide.pick_kernels import pick
from select_service.core.decide.placement_kernels import (
    CACHED_TOKENS,
    COST,
    DECODE,
    EFFECTIVE_PREFILL_TOKENS,
    N_COMMON_TERMS,
    PLACE,
    summarise,
)
from select_service.core.decide.policies import POLICIES
from select_service.core.decide.policy import COMMON_TERMS, Policy
from select_service.core.decide.router_config import POLICY_NAMES, RouterConfig
from select_service.core.load.kernels import active_blocks
from select_service.core.load.load_layout import N_TOTALS, REQUESTS, TOTALS
from tests.builders import a_select, a_select_and_reserve, a_selector, a_worker

P_BLOCK_SIZE, P_PER_REQUEST = range(2)
SURCHARGE = N_COMMON_TERMS
PER_REQUEST = 100.0


@compiled(PLACE, error_model="numpy")
def fewest_requests(
    index,
    path,
    sequence,
    load,
    eligible,
    weight,
    factors,
    parameters,
    isl_tokens,
    pinned,
    draw,
    matched,
    blocks,
    terms,
    summary,
):
    """Requests count, then matched blocks of whatever tier."""
    match(index, path, matched)
    active_blocks(load, blocks[0])
    totals = i64_view(load, TOTALS)
    for slot in range(terms.shape[1]):
        cached = matched[slot, 3] * parameters[P_BLOCK_SIZE]
        terms[CACHED_TOKENS, slot] = cached
        terms[EFFECTIVE_PREFILL_TOKENS, slot] = max(0.0, isl_tokens - cached)
        terms[DECODE, slot] = blocks[0, slot] + sequence.shape[0]
        terms[SURCHARGE, slot] = parameters[P_PER_REQUEST] * totals[slot * N_TOTALS + REQUESTS]
        terms[COST, slot] = terms[SURCHARGE, slot] - matched[slot, 3]
    chosen = pick(terms[COST], eligible, 0.0, draw)
    summarise(matched, eligible, terms, chosen, summary)
    return chosen


FEWEST = Policy(
    name="fewest-requests",
    place=fewest_requests,
    own_terms=("surcharge",),
    parameters_of=lambda config, block_size: np.array([block_size, PER_REQUEST]),
    credit_blocks=lambda matched, config: float(matched[3]),
)


def a_query():
    return PromptQuery(model_name="m", token_ids=list(range(8)))


@pytest.fixture
def selector(monkeypatch):
    monkeypatch.setitem(POLICIES, FEWEST.name, FEWEST)
    selector = a_selector(RouterConfig(policy=FEWEST.name))
    selector.register(a_worker(1))
    selector.register(a_worker(2))
    return selector


def chosen_of(decision):
    return decision.selection.worker_id


def test_the_names_that_settings_accept_are_those_of_the_policies():
    assert tuple(POLICIES) == POLICY_NAMES
    assert all(POLICIES[name].name == name for name in POLICY_NAMES)


def test_another_policy_chooses_and_books_by_its_own_terms(selector):
    first = selector.select_and_reserve(a_select_and_reserve(reservation_id="a"), 0.0)
    second = selector.select_and_reserve(a_select_and_reserve(reservation_id="b"), 0.0)
    assert {chosen_of(first), chosen_of(second)} == {1, 2}
    (booked,) = (each for each in selector.held if each.reservation_id == "a")
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
    by_worker = {load.worker_id: load for load in selector.potential_loads(a_query())}
    assert by_worker[taken].potential_prefill_tokens > 0
    assert [row.router_credit_blocks for row in selector.overlap_scores(a_query())[1]] == [
        0,
        0,
    ]


def test_a_partition_follows_a_change_of_policy(selector):
    (partition,) = selector.fleet.partitions.values()
    selector.select(a_select(), 0.0)
    assert partition.placing.last.terms.shape[0] == len(COMMON_TERMS) + 1
    everybody, prompt = partition.table.open, selector._asked(a_query())[1]
    slot = partition.placing.place(prompt, RouterConfig(), everybody)
    assert partition.placing.last.terms.shape[0] == len(POLICIES["reference"].terms)
    assert "credit" in explained(partition.placing, everybody, slot)[0]
