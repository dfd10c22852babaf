"""Tests of credit for ranks with several cache groups, with reusable prefixes inside blocks."""

from math import floor

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from select_service.core.shared_caches.shared_hits import SharedHits
from tests.builders import a_select
from tests.core.placement.grouped_fleet import (
    ENDS,
    GBPS,
    KV_BYTES,
    SIZE,
    SPEED,
    TOKENS,
    GroupedFleet,
)
from tests.core.shared_caches.test_credit import EFFICIENCY, looked_up

PRICE = KV_BYTES * 8 / (GBPS * 1e9 * EFFICIENCY) * SPEED


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.lists(ENDS, min_size=1, max_size=3),
    st.integers(0, TOKENS),
    st.sampled_from([0, 0, 3, 12]),
)
def test_no_token_of_a_prompt_counts_twice(unit, ends, shared, replay):
    fleet = GroupedFleet(unit, ends, replay=replay)
    selector, hits = fleet.selector, SharedHits("hit", shared)
    for number, own in enumerate(fleet.reusable(), 1):
        credit = floor((1 - PRICE) * max(0, shared - own))
        cached = own - (replay if own else 0) + credit
        pin = {"pinned_worker": {"worker_id": number, "dp_rank": 0}}
        request, read = looked_up(hits, SIZE, **pin)
        decision = selector.select(request, 0.0, explain=True, read_ahead=read)
        overlap, (row,) = decision.selection.overlap, decision.candidates
        assert overlap.gpu == own
        assert (overlap.shared.tokens, overlap.shared.credit) == (max(0, shared - own), credit)
        assert decision.selection.effective_prefill_tokens == TOKENS - cached
        assert row["cached_tokens"] == cached
        request, read = looked_up(hits, SIZE, **pin)
        (row,) = selector.followers.explanations.explain_request(
            request, None, read, 0.0
        ).candidates
        assert row.terms["cached_tokens"] == cached
        assert (row.shared_credit_tokens or 0) == credit
    selector.check_invariants()


@given(st.sampled_from([1, 2, 4]), ENDS, ENDS, st.sampled_from([0, 0, 3, 12]))
def test_a_source_brings_only_tokens_that_the_rank_lacks(unit, ends, of_source, replay):
    fleet = GroupedFleet(unit, [ends, of_source], replay=replay, names_kv_sources=True)
    pin = {"pinned_worker": {"worker_id": 1, "dp_rank": 0}}
    own, there = fleet.reusable()
    found = fleet.selector.select(a_select(TOKENS, **pin), 0.0).selection.kv_source
    # Blocks are fetched as a whole, but for a part of the first block the rank computes nothing.
    whole = there // SIZE * SIZE
    if whole <= own:
        assert found is msgspec.UNSET
    else:
        assert (found.tokens, found.fetch_tokens) == (whole, whole - own)
