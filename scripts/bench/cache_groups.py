"""Cost of matching ranks with several cache groups, beside the match of their dense group.

    python -m scripts.bench.cache_groups [--cases 64:1:128 ...] [--rounds 200]

A case is ranks:lanes:blocks. Each rank holds about half of 50 conversations up to a random block,
and every lane a state at each 16th block and at the end. The conversations share their first
quarter. Microseconds of a call from Python: the medians of the rounds and, in parentheses, the
fastest; match and match with groups take turns. Sets are the holder sets of the index, steps the
runs that the longest refinement examined.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.hashing.block_hashing import Hashes
from indexer.index import reuse_layout
from indexer.index.header_kernels import REUSE_STEPS
from indexer.index.match_kernels import match_prompt
from indexer.index.prefix_index import PrefixIndex
from indexer.index.reuse_kernels import refine_matches
from indexer.index.reuse_layouts import Lane, RankLayout
from indexer.tiers import N_TIERS, Tier

CONVERSATIONS = 50
STATE_BLOCKS = 16
BLOCK_SIZE = 16
CASES = ("16:1:128", "64:1:128", "64:3:128", "64:1:1024", "256:1:128")


class GroupCase(NamedTuple):
    """Numbers of ranks, of lanes per rank, and of blocks per conversation."""

    ranks: int
    lanes: int
    blocks: int


def parse_case(text: str) -> GroupCase:
    """Return the case of a text as ranks:lanes:blocks."""
    ranks, lanes, blocks = map(int, text.split(":"))
    return GroupCase(ranks, lanes, blocks)


def fill_index(case: GroupCase) -> tuple[PrefixIndex, list[Hashes]]:
    """Return an index of ranks with lanes, and their conversations."""
    rng = np.random.default_rng(1)
    index = PrefixIndex(1 << 20)
    writers = [index.open_slot() for _ in range(case.ranks)]
    tiers = range(N_TIERS, N_TIERS + case.lanes)
    layout = RankLayout(lanes=tuple(Lane(tier, reuse_layout.STATE) for tier in tiers))
    with index.lock:
        tree = index._tree
        while tree.lanes < case.lanes:
            tree.memory.add_lane_step(case.lanes)
        for writer in writers:
            tree.layouts.set_layout(writer.slot, layout, BLOCK_SIZE)
    shape = CONVERSATIONS, case.blocks
    conversations = rng.integers(1, 2**63, shape).astype(np.uint64)
    conversations[:, : case.blocks // 4] = conversations[0, : case.blocks // 4]
    for writer in writers:
        for blocks in conversations[rng.random(CONVERSATIONS) < 0.5]:
            prefix = blocks[: rng.integers(case.blocks // 8, case.blocks + 1)].copy()
            writer.store(Tier.GPU, None, prefix, prefix)
            states = np.concatenate([prefix[STATE_BLOCKS - 1 :: STATE_BLOCKS], prefix[-1:]])
            for tier in tiers:
                writer.store_known(tier, states)
    return index, list(conversations)


def measure_us(call: Callable[[Hashes], None], prompts: list[Hashes]) -> float:
    """Return the microseconds of a call, over all prompts once."""
    begin = time.thread_time_ns()
    for prompt in prompts:
        call(prompt)
    return (time.thread_time_ns() - begin) / len(prompts) / 1e3


def measure_case(case: GroupCase, rounds: int) -> str:
    """Return the row of a case."""
    index, prompts = fill_index(case)
    header = index.header
    matched: NDArray[np.int32] = np.zeros((index.n_slots, N_TIERS), np.int32)

    def match_alone(prompt: Hashes) -> None:
        match_prompt(header, prompt, matched)

    def match_groups(prompt: Hashes) -> None:
        match_prompt(header, prompt, matched)
        refine_matches(header, prompt, matched)

    steps = 0
    for prompt in prompts:
        match_groups(prompt)
        steps = max(steps, int(header[REUSE_STEPS]))
    alone, groups = [], []
    for _ in range(rounds):
        alone.append(measure_us(match_alone, prompts))
        groups.append(measure_us(match_groups, prompts))
    more = median(b - a for a, b in zip(alone, groups, strict=True))
    figures = [f"{median(us):.2f} ({min(us):.2f})" for us in (alone, groups)]
    sets = index.stats().holder_sets
    columns = [*map(str, case), *figures, f"{more:.2f}", str(sets), str(steps)]
    return f"| {' | '.join(columns)} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=parse_case, nargs="+", default=[*map(parse_case, CASES)])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    print("| ranks | lanes | blocks | match | with groups | more | sets | steps |")
    print("|---|---|---|---|---|---|---|---|")
    for case in options.cases:
        print(measure_case(case, options.rounds), flush=True)


if __name__ == "__main__":
    main()
