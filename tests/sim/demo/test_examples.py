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
from select_service.sim.demo.prefix_cache import PrefixCache
from select_service.sim.demo.virtual_world import VirtualWorld

BLOCK_SIZE = 16


def a_world(workload: ConversationWorkload, ranks: int) -> VirtualWorld:
    """Every request has been served, by the ranks in turn."""
    world = VirtualWorld(
        workload, [PrefixCache(4096, BLOCK_SIZE, hash_seed=n) for n in range(ranks)]
    )
    served = 0
    while (happening := world.next_step()) is not None:
        if happening.request.rank_index is None:
            world.assign_rank(happening.request, served % ranks)
            served += 1
    return world


def captions(workload: ConversationWorkload, ranks: int) -> tuple[list[int], int, str]:
    """(blocks of the prompt that each rank holds, blocks it has, all that is said of it)."""
    known = distinguishing_prompt(a_world(workload, ranks), workload)
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
