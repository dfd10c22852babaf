"""Tests of the demo's example prompt: ranks differ in the blocks that they hold of the prompt."""

from select_service.sim.demo.conversations import (
    ConversationWorkload,
    WorkloadShape,
    generate_workload,
)
from select_service.sim.demo.curl_examples import (
    EXAMPLE_BLOCKS,
    curl_examples,
    distinguishing_prompt,
)
from select_service.sim.engine.kv_block_pool import KvBlockPool
from tests.sim.demo.test_world import a_shape, round_robin

BLOCK_SIZE = 16


def filled_pools(workload: ConversationWorkload, ranks: int) -> list[KvBlockPool]:
    """Return the pools of the ranks after a round-robin run of the whole workload."""
    return [engine.pool for engine in round_robin(workload, a_shape(4096, ranks)).engines]


def captions(workload: ConversationWorkload, ranks: int) -> tuple[list[int], int, str]:
    """Return each rank's blocks of the prompt, the prompt's blocks, and all captions."""
    known = distinguishing_prompt(filled_pools(workload, ranks), workload)
    assert len(known.tokens) == known.blocks * BLOCK_SIZE
    names = [f"worker {n}" for n in range(1, ranks + 1)]
    told = " ".join(each.caption for each in curl_examples("http://x", "m", known, names))
    return known.cached_blocks, known.blocks, told


def test_the_caption_names_the_only_holder_and_the_others_work() -> None:
    held, blocks, told = captions(generate_workload(WorkloadShape(60, BLOCK_SIZE, 4, seed=1)), 4)
    assert sum(each == blocks for each in held) == 1
    assert blocks >= EXAMPLE_BLOCKS
    assert f"worker {1 + held.index(blocks)} holds all {blocks} blocks, the others would" in told


def test_a_single_rank_has_no_caption_about_others() -> None:
    held, blocks, told = captions(generate_workload(WorkloadShape(10, BLOCK_SIZE, 1, seed=1)), 1)
    assert held == [blocks] == [EXAMPLE_BLOCKS]
    assert "others" not in told
