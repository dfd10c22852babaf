"""Tests of the tokens an engine computes again after a hit: part of both hit and prefill."""

import numpy as np
import pytest

from indexer.index.reuse_layouts import RankLayout
from indexer.tiers import Tier
from select_service.core.identity import Rank
from select_service.core.placement.router_config import RouterConfig
from tests.builders import a_select, a_selector, a_worker
from tests.models.cache_groups_model import DENSE, CacheGroupsModel, GroupModel

SIZE, BLOCKS = 16, 8


@pytest.mark.parametrize("policy", ["reference", "work"])
@pytest.mark.parametrize(
    ("replay", "reused"), [(0, BLOCKS), (32, BLOCKS), (40, BLOCKS), (SIZE * BLOCKS, 0)]
)
def test_tokens_computed_again_are_prefill_and_do_not_shorten_the_hit(policy, replay, reused):
    selector = a_selector(RouterConfig(policy=policy))
    selector.register_worker(a_worker(1, block_size=SIZE))
    (partition,) = selector.fleet.partitions.values()
    writer = partition.table.writer_of(Rank(1, 0))
    path = np.arange(1, BLOCKS + 1, dtype=np.uint64)
    writer.store(Tier.GPU, None, path, path)
    layout = RankLayout(replay=replay)
    assert writer.change_tree(lambda tree: tree.layouts.set_layout(writer.slot, layout, SIZE))
    hashes, tokens = path.tolist(), SIZE * BLOCKS + 5
    request = a_select(
        block_hashes=hashes, sequence_hashes=hashes, token_ids=None, isl_tokens=tokens
    )
    selection = selector.select(request, 0.0).selection
    assert selection.overlap.gpu == selection.overlap.dp[0] == SIZE * reused
    again = replay if reused else 0
    assert selection.effective_prefill_tokens == tokens - SIZE * reused + again


@pytest.mark.parametrize("policy", ["reference", "work"])
@pytest.mark.parametrize("replay", [0, 5, 32, 40])
@pytest.mark.parametrize("confirmed", [0, 1, 3])
@pytest.mark.parametrize("assumed", [0, 1, 2, 3, BLOCKS])
def test_assumed_blocks_are_computed_again_as_confirmed_ones(policy, replay, confirmed, assumed):
    selector = a_selector(RouterConfig(policy=policy))
    selector.register_worker(a_worker(1, block_size=SIZE))
    (partition,) = selector.fleet.partitions.values()
    writer, placer = partition.table.writer_of(Rank(1, 0)), partition.placer
    path, prompt = np.arange(1, BLOCKS + 1, dtype=np.uint64), list(range(SIZE * BLOCKS + 5))
    writer.store(Tier.GPU, None, path[:confirmed], path[:confirmed])
    layout = RankLayout(replay=replay)
    assert writer.change_tree(lambda tree: tree.layouts.set_layout(writer.slot, layout, SIZE))
    engine = CacheGroupsModel([GroupModel(0, DENSE, SIZE)], SIZE, replay=replay)
    for end in range(SIZE, SIZE * max(confirmed, assumed) + 1, SIZE):
        engine.store(0, engine.prefix(prompt, end))
    reused = engine.reusable_tokens(prompt)
    placer.set_session_floor(writer.slot, SIZE * assumed)
    hashes = path.tolist()
    request = a_select(
        block_hashes=hashes, sequence_hashes=hashes, token_ids=None, isl_tokens=len(prompt)
    )
    selection = selector.select(request, 0.0).selection
    assert selection.overlap.gpu == selection.overlap.dp[0] == reused
    saved = reused - replay if reused else 0
    assert selection.effective_prefill_tokens == len(prompt) - saved
    tally = placer.total_tally
    counted = tally.exact_tokens, tally.bound_tokens, tally.assumed_tokens
    assert min(counted) >= 0
    assert sum(counted) == saved
