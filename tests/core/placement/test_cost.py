"""Tests of the reference policy against its naive twin and numbers of the reference service."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.placement.candidates import preference_factors
from select_service.core.placement.placement_kernels import (
    CACHED_TOKENS,
    COST,
    EFFECTIVE_PREFILL_TOKENS,
)
from select_service.core.placement.policies import reference_kernels as reference
from select_service.core.placement.policies.reference_policy import credit_blocks
from select_service.core.placement.router_config import RouterConfig, apply_override
from select_service.schemas.prompts import RouterConfigOverride
from tests.core.placement.plans import terms_of
from tests.core.workers.tables import a_table
from tests.models import cost_model
from tests.models.cost_model import Query, RankState

UNIT = st.floats(0, 1)
CONFIGS = st.builds(
    RouterConfig,
    overlap_score_credit=st.floats(0, 4),
    overlap_score_credit_decay=st.floats(0, 10),
    prefill_load_scale=st.floats(0, 4),
    decode_active_request_weight=st.floats(0, 4),
    host_cache_hit_weight=UNIT,
    disk_cache_hit_weight=UNIT,
    track_prefill_tokens=st.booleans(),
    track_active_blocks=st.booleans(),
)
RANKS = st.builds(
    RankState,
    device=st.integers(0, 50),
    host=st.integers(0, 50),
    disk=st.integers(0, 50),
    prefill_tokens=st.integers(0, 2**40),
    active_blocks=st.integers(0, 2**24),
    leading_run=st.integers(0, 50),
    requests=st.integers(0, 2**20),
)


@given(
    ranks=st.lists(RANKS, min_size=1, max_size=5),
    config=CONFIGS,
    block_size=st.integers(1, 1024),
    isl_tokens=st.integers(0, 2**40),
    n_blocks=st.integers(50, 5000),
    pinned=st.booleans(),
)
def test_terms_agree_with_the_formulas(ranks, config, block_size, isl_tokens, n_blocks, pinned):
    terms = terms_of(
        ranks,
        config,
        block_size=block_size,
        isl_tokens=isl_tokens,
        n_blocks=n_blocks,
        pinned=pinned,
    )
    lowest = min(r.prefill_tokens for r in ranks)
    query = Query(isl_tokens, n_blocks, block_size, lowest, pinned)
    for row, rank in zip(terms.T, ranks, strict=True):
        assert row[EFFECTIVE_PREFILL_TOKENS] == cost_model.effective_prefill_tokens(
            rank, query, config
        )
        assert row[COST] == cost_model.cost(rank, query, config)


@given(rank=RANKS, more=st.integers(1, 9), config=CONFIGS)
def test_more_overlap_never_raises_effective_prefill_tokens(rank, more, config):
    richer = RankState(
        rank.device + more,
        rank.host,
        rank.disk,
        rank.prefill_tokens,
        rank.active_blocks,
        rank.leading_run,
    )
    terms = terms_of([rank, richer], config, isl_tokens=400)
    assert terms[EFFECTIVE_PREFILL_TOKENS, 1] <= terms[EFFECTIVE_PREFILL_TOKENS, 0]


def idle(device=0, host=0, disk=0):
    return RankState(device, host, disk, prefill_tokens=0, active_blocks=0, leading_run=0)


def costs(terms):
    return terms[COST].tolist()


def test_live_reservations_cost_their_weight():
    ranks = [idle(), replace(idle(), requests=2)]
    terms = terms_of(ranks, RouterConfig(decode_active_request_weight=3.0))
    assert (costs(terms)[1] - costs(terms)[0], terms[reference.REQUEST_COST, 1]) == (6.0, 6.0)
    assert len(set(costs(terms_of(ranks, RouterConfig())))) == 1


def test_measured_costs_of_idle_ranks():
    ranks = [idle(3, 2, 1), idle(2), idle(1)]
    assert costs(terms_of(ranks, RouterConfig())) == [11.75, 14.5, 15.5]
    half = RouterConfig(overlap_score_credit=0.5)
    assert costs(terms_of(ranks, half)) == [13.25, 15.5, 16.0]
    assert terms_of(ranks, half)[EFFECTIVE_PREFILL_TOKENS, 0] == 15


def test_measured_costs_of_a_loaded_rank_and_its_decay():
    loaded = RankState(3, 2, 1, prefill_tokens=15, active_blocks=8, leading_run=8)
    ranks = [loaded, idle(2), idle(1)]
    assert costs(terms_of(ranks, RouterConfig()))[0] == 15.5
    decayed = terms_of(ranks, RouterConfig(overlap_score_credit_decay=2.0))
    assert costs(decayed)[0] == pytest.approx(16.864, abs=1e-3)


def test_pinned_requests_do_not_decay():
    loaded = RankState(3, 2, 1, prefill_tokens=15, active_blocks=8, leading_run=8)
    config = RouterConfig(overlap_score_credit_decay=2.0)
    assert costs(terms_of([loaded, idle(2)], config, pinned=True))[0] == 15.5


def test_more_cached_than_asked_inflates_raw_as_measured():
    rank = RankState(3, 2, 1, prefill_tokens=15, active_blocks=0, leading_run=0)
    terms = terms_of([rank], RouterConfig(), isl_tokens=3, n_blocks=8)
    assert terms[reference.RAW, 0] == 8.5
    assert terms[EFFECTIVE_PREFILL_TOKENS, 0] == 0


def test_cached_tokens_round_half_up():
    rank = idle(1, 2, 0)
    terms = terms_of([rank], RouterConfig(), block_size=3, isl_tokens=100)
    assert terms[CACHED_TOKENS, 0] == 8


@pytest.mark.parametrize(
    ("base", "weight", "expected"), [(4.0, 1.0, 1.8677), (10.0, 5.0, 3.6791), (4.0, 0.0, 4.0)]
)
def test_preferred_taints_scale_the_cost_as_measured(base, weight, expected):
    (factor,) = preference_factors(a_table(["x"]), {"x": weight})
    assert base * factor == pytest.approx(expected, abs=1e-4)
    assert expected == pytest.approx(base * math.exp(-math.tanh(weight)), abs=1e-4)


def test_lowest_prefill_load_is_taken_over_eligible_ranks_only():
    loaded = RankState(3, 0, 0, prefill_tokens=40, active_blocks=0, leading_run=0)
    config = RouterConfig(overlap_score_credit_decay=1.0)
    ranks, size = [loaded, idle()], {"isl_tokens": 40, "n_blocks": 10}
    alone = terms_of(ranks, config, eligible=[True, False], **size)
    both = terms_of(ranks, config, eligible=[True, True], **size)
    assert alone[reference.CREDIT, 0] == 3.0
    assert both[reference.CREDIT, 0] == 1.5


def test_override_replaces_only_the_given_fields():
    config = apply_override(
        RouterConfig(temperature=0.5), RouterConfigOverride(prefill_load_scale=3.0)
    )
    assert config == RouterConfig(temperature=0.5, prefill_load_scale=3.0)


def test_deprecated_weight_of_zero_also_takes_the_credit_away():
    config = apply_override(RouterConfig(), RouterConfigOverride(overlap_score_weight=0.0))
    assert (config.prefill_load_scale, config.overlap_score_credit) == (0.0, 0.0)
    config = apply_override(RouterConfig(), RouterConfigOverride(overlap_score_weight=2.0))
    assert (config.prefill_load_scale, config.overlap_score_credit) == (2.0, 1.0)


def test_router_credit_weighs_each_tier():
    row = np.array([2, 3, 4, 5], np.int32)
    assert credit_blocks(row, RouterConfig()) == 2 + 0.75 + 0.25 * 2


@given(
    weighted=st.lists(
        st.tuples(RANKS, st.sampled_from([1.0, 0.5, 0.0]) | st.floats(0.01, 1.0)), min_size=1
    ),
    config=CONFIGS,
    isl_tokens=st.integers(0, 2**40),
)
def test_a_weight_changes_the_cost_alone(weighted, config, isl_tokens):
    ranks, weights = zip(*weighted, strict=True)
    size = {"isl_tokens": isl_tokens, "n_blocks": 50}
    plain = terms_of(ranks, config, **size)
    terms = terms_of(ranks, config, weight=weights, **size)
    assert np.array_equal(np.delete(terms, COST, 0), np.delete(plain, COST, 0))
    for found, cost, weight in zip(terms[COST], plain[COST], weights, strict=True):
        expected = cost_model.weighted_cost(cost, weight)
        assert found == (expected if weight == 1.0 else pytest.approx(expected, rel=1e-12))


def test_a_weight_counts_where_all_is_idle_and_free():
    config = RouterConfig(track_prefill_tokens=False, track_active_blocks=False)
    assert costs(terms_of([idle()] * 3, config, weight=[1.0, 0.5, 0.25])) == [0.0, 1.0, 3.0]


def test_an_infinite_cost_stays_infinite_at_any_weight():
    config = RouterConfig(prefill_load_scale=1e308)
    ranks = [RankState(0, 0, 0, prefill_tokens=2**40, active_blocks=0, leading_run=0)] * 3
    assert costs(terms_of(ranks, config, weight=[1.0, 0.5, 0.0])) == [math.inf] * 3
