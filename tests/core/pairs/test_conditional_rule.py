"""Tests of Dynamo's conditional rule for pairs, with the policy `reference`."""

import re

import msgspec
import numpy as np
import pytest

from indexer.tiers import Tier
from select_service.base.errors import NoEligibleRank
from select_service.core.identity import Rank
from select_service.core.pairs.conditional_rule import is_local_by_rule
from select_service.core.placement.router_config import RouterConfig
from select_service.schemas.pairs import SelectPairAndReserveRequest
from tests.builders import a_selector, a_worker
from tests.builders.selector_scenes import KEY

SIZE = 4


def a_fleet(**domains):
    """Return workers 1 and 2 that prefill, 3 and 4 that decode.

    domains: fields of workers by name `wN`
    """
    selector = a_selector(RouterConfig(policy="reference"))
    for worker_id in range(1, 5):
        role = "prefill" if worker_id < 3 else "decode"
        selector.register_worker(a_worker(worker_id, role=role, **domains.get(f"w{worker_id}", {})))
    return selector


def store(selector, worker_id, blocks):
    table = selector.fleet.partitions[KEY].table
    hashes = np.arange(1, blocks + 1, dtype=np.uint64)
    table.writer_of(Rank(worker_id, 0)).store(Tier.GPU, None, hashes, hashes)


def ask(selector, blocks, local="auto", **fields):
    hashes = list(range(1, blocks + 1))
    body = {
        "model_name": "m",
        "block_hashes": hashes,
        "sequence_hashes": hashes,
        "isl_tokens": SIZE * blocks,
        "local": local,
    }
    request = msgspec.convert(body | fields, SelectPairAndReserveRequest)
    return selector.select_pair(request, 0.0).pair


@pytest.mark.parametrize(
    ("isl", "cached", "is_local"),
    [
        (1000, 0, False),
        (1000, 300, False),
        (1000, 301, True),
        (10_000, 7952, False),
        (10_000, 7953, True),
        (4, 4, True),
        (0, 0, True),
    ],
)
def test_few_tokens_in_number_and_share_are_computed_by_the_decode_rank(isl, cached, is_local):
    assert is_local_by_rule(isl, cached) == is_local


def test_the_rule_decides_with_the_cache_of_the_chosen_decode_rank():
    selector = a_fleet()
    cold = ask(selector, 100)
    assert (cold.path, cold.reason) == ("remote", "threshold")
    assert (cold.local_cost, cold.remote_cost) == (None, None)
    assert cold.move_tokens == 400
    assert cold.move_cost > 0
    store(selector, 4, 50)
    warm = ask(selector, 100)
    assert (warm.path, warm.reason) == ("local", "threshold")
    assert {leg.worker_id for leg in warm.legs} == {4}
    assert warm.effective_prefill_tokens == 200
    selector.check_invariants()


def test_a_prefill_rank_is_chosen_by_its_own_cache():
    selector = a_fleet()
    store(selector, 2, 80)
    pair = ask(selector, 100)
    assert pair.legs[0].worker_id == 2
    assert pair.legs[0].cached_tokens == 320
    assert pair.effective_prefill_tokens == 80
    assert pair.move_tokens == 400


def test_requests_override_the_rule_and_domains_filter():
    rack = {"topology_domains": {"rack": "a"}}
    selector = a_fleet(w1=rack, w3=rack)
    assert ask(selector, 100, "always").path == "local"
    store(selector, 3, 90)
    assert ask(selector, 100, "never").path == "remote"
    topology = {"domain": "rack", "enforcement": "required"}
    decode = {"allowed_worker_ids": [3]}
    pair = ask(selector, 200, "never", topology=topology, decode=decode)
    assert [leg.worker_id for leg in pair.legs] == [1, 3]
    with pytest.raises(NoEligibleRank):
        ask(selector, 200, "never", topology=topology, decode={"allowed_worker_ids": [4]})
    advice = "1 for prefill, 0 for decode); register workers of both roles, or allow more workers"
    with pytest.raises(NoEligibleRank, match=re.escape(advice)):
        ask(selector, 200, "auto", allowed_worker_ids=[1])
