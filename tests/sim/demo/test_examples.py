"""The example prompt of the demo: one that tells the ranks apart."""

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
    """Every request has been served, by the ranks in turn."""
    return [engine.pool for engine in round_robin(workload, a_shape(4096, ranks)).engines]


def captions(workload: ConversationWorkload, ranks: int) -> tuple[list[int], int, str]:
    """(blocks of the prompt that each rank holds, blocks it has, all that is said of it)."""
    known = distinguishing_prompt(filled_pools(workload, ranks), workload)
    assert len(known.tokens) == known.blocks * BLOCK_SIZE
    names = [f"worker {n}" for n in range(1, ranks + 1)]
    told = " ".join(each.caption for each in curl_examples("http://x", "m", known, names))
    return known.cached_blocks, known.blocks, told


def test_one_rank_alone_holds_the_prompt_and_it_is_told_what_the_others_would_compute() -> None:
    held, blocks, told = captions(generate_workload(WorkloadShape(60, BLOCK_SIZE, 4, seed=1)), 4)
    assert sum(each == blocks for each in held) == 1
    assert blocks >= EXAMPLE_BLOCKS
    assert f"worker {1 + held.index(blocks)} holds all {blocks} blocks, the others would" in told


def test_nothing_is_said_of_others_when_there_are_none() -> None:
    held, blocks, told = captions(generate_workload(WorkloadShape(10, BLOCK_SIZE, 1, seed=1)), 1)
    assert held == [blocks] == [EXAMPLE_BLOCKS]
    assert "others" not in told
