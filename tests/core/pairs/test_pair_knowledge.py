"""Tests that pairs use the same facts about caches as single requests, and mark assumed blocks."""

import msgspec
import pytest

from indexer.index.kv_cache_facts import KvCacheFacts
from select_service.core.identity import Rank
from select_service.core.pairs.pair_traffic_layout import PROMPT_TOKENS
from select_service.core.placement.router_config import RouterConfig
from select_service.schemas.pairs import SelectPairRequest
from tests.builders import a_select, a_selector, a_worker
from tests.core.assumed.scenes import assuming_selector, book, partition_of, register
from tests.indexer.events.grouped_rank import GroupedRank
from tests.indexer.events.test_recorded_groups import rows_of


def choose_local(selector, tokens):
    """Return the decode leg of a pair on one rank."""
    body = {"model_name": "m", "token_ids": list(tokens), "local": "always"}
    pair = selector.select_pair(msgspec.convert(body, SelectPairRequest), 0.0).pair
    return pair.legs[1]


def test_ends_inside_blocks_are_known_as_to_other_requests():
    rows = list(rows_of("full_mamba_unit16"))
    about = rows.pop(0)
    facts = dict(about["facts"])
    size = facts.pop("block_size")
    selector = a_selector(RouterConfig(policy="work"), blocks_max=100_000)
    selector.register_worker(a_worker(1, block_size=size))
    partition = partition_of(selector)
    writer = partition.table.writer_of(Rank(1, 0))
    facts = msgspec.convert(facts, KvCacheFacts)
    rank = GroupedRank(size, facts, partition.index, writer=writer)
    inside = tokens = cached = 0
    for row in rows:
        if "batch" in row:
            rank.apply_batch(row["batch"][1])
            continue
        if "lora" in row or "salt" in row:
            continue
        leg = choose_local(selector, row["tokens"])
        request = a_select(token_ids=row["tokens"])
        overlap = selector.select(request, 0.0).selection.overlap
        assert leg.overlap == overlap
        assert leg.cached_tokens == leg.overlap.gpu == row["reused"]
        inside += row["reused"] % size != 0
        tokens, cached = tokens + len(row["tokens"]), cached + row["reused"]
        assert selector.pairs.decided[PROMPT_TOKENS:].tolist() == [tokens, cached]
    assert inside > 10


@pytest.mark.parametrize("policy", ["work", "reference"])
def test_legs_mark_assumed_blocks(policy):
    selector = assuming_selector(policy)
    register(selector, 1)
    prompt = range(20)
    assert choose_local(selector, prompt).overlap.certainty is msgspec.UNSET
    book(selector, "a", prompt)
    overlap = choose_local(selector, prompt).overlap
    assert (overlap.gpu, overlap.assumed, overlap.certainty) == (20, 20, "assumed")
    selector.free_reservation("a", 0.0)
