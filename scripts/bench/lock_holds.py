"""How long one step holds the lock of an index, by what it does: the longest, in ms of CPU.

    python scripts/bench/lock_holds.py [--blocks 3000000] [--runs 3]

CPU time of the holding thread, page faults included. All runs take the same steps; of each step the
fastest run counts, so that what neighbours on the machine do is left out. An index with 4 ranks;
half of the blocks are held by two of them, which name them differently.
"""

import argparse
import time

import numpy as np

from indexer.index.prefix_index import PrefixIndex
from indexer.mutex import Mutex
from indexer.tiers import Tier

CHAIN_BLOCKS = 4096
STORE_BLOCKS = 64
RANKS = 4096
ORPHANS = 50_000
PROMPT_BLOCKS = 4096


class TimedLock(Mutex):
    """Keeps how long it was held each time."""

    def __init__(self):
        super().__init__()
        self.held_s = []

    def __enter__(self):
        self._since = time.thread_time()

    def __exit__(self, *_):
        self.held_s.append(time.thread_time() - self._since)


def stored(writer, contents, names):
    for chain in range(contents.shape[0]):
        for start in range(0, CHAIN_BLOCKS, STORE_BLOCKS):
            part = slice(start, start + STORE_BLOCKS)
            parent = int(names[chain, start - 1]) if start else None
            writer.store(Tier.GPU, parent, contents[chain, part], names[chain, part])


def orphans(writer):
    names = np.arange(1, ORPHANS + 1, dtype=np.uint64).reshape(-1, 1)
    for name in names[1:]:
        writer.store(Tier.GPU, 1, name, name)
    writer.store(Tier.GPU, None, names[0], names[0])


def removed(writer, names):
    for chain in names:
        for start in range(0, CHAIN_BLOCKS, STORE_BLOCKS):
            writer.remove(Tier.GPU, chain[start : start + STORE_BLOCKS])


def steps_of(index, blocks):
    """(what is done, function, its arguments)"""
    rng = np.random.default_rng(1)
    chains = blocks // CHAIN_BLOCKS
    contents = rng.integers(0, 2**64, (chains, CHAIN_BLOCKS), np.uint64)
    half = contents[: chains // 2]
    names = half + np.uint64(1)
    big = rng.integers(0, 2**64, 100_000, np.uint64)
    writers = [index.open_slot() for _ in range(4)]

    def registered():
        writers.extend(index.open_slot() for _ in range(RANKS - len(writers)))

    def everywhere():
        for writer in writers:
            writer.store(Tier.GPU, None, half[0, :STORE_BLOCKS], half[0, :STORE_BLOCKS])

    return (
        (f"store {contents.size} blocks, 64 at a time", stored, writers[0], contents, contents),
        ("a second rank has half of them by other names", stored, writers[1], half, names),
        ("one event of 100,000 blocks", writers[2].store, Tier.GPU, None, big, big),
        ("50,000 orphans of one parent come home", orphans, writers[3]),
        ("snapshot", index.snapshot),
        ("stats", index.stats),
        (f"{RANKS} ranks register", registered),
        ("each stores the same 64 blocks", everywhere),
        (f"match {PROMPT_BLOCKS} blocks, {RANKS} ranks", index.match, contents[0, :PROMPT_BLOCKS]),
        ("remove the half, first blocks first", removed, writers[1], names),
        ("clear the first rank", writers[0].clear),
    )


def run(blocks):
    """What is done -> how long each step held the lock, float64 [steps]."""
    lock, held = TimedLock(), {}
    for what, step, *arguments in steps_of(PrefixIndex(4 << 20, lock=lock), blocks):
        lock.held_s.clear()
        step(*arguments)
        held[what] = np.array(lock.held_s)
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=3_000_000)
    parser.add_argument("--runs", type=int, default=3)
    chosen = parser.parse_args()
    runs = [run(chosen.blocks) for _ in range(chosen.runs)]
    for what in runs[0]:
        held = np.minimum.reduce([each[what] for each in runs])
        print(f"{held.max() * 1e3:8.2f} ms at most, {held.size:7} steps: {what}")


if __name__ == "__main__":
    main()
