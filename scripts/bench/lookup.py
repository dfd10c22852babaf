"""How long a match takes in an index of a million blocks, by workers and prompt length.

    python scripts/bench/lookup.py [--workers 8 256] [--repeats 5]

`kernel` is the compiled match alone, measured in a compiled loop over different prompts; `call` is
`PrefixIndex.match` as Python calls it. Nanoseconds, the best of the repeats.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from scripts.bench.match_loop import match_many

CHAINS = 128
CHAIN_BLOCKS = 8192
HOLDERS = 4
STORE_BLOCKS = 64


def build(workers, rng):
    """128 chains of 8192 blocks, each held by four workers to ragged depths."""
    index = PrefixIndex(CHAINS * CHAIN_BLOCKS)
    writers = [index.open_slot() for _ in range(workers)]
    contents = rng.integers(0, 2**64, (CHAINS, CHAIN_BLOCKS), np.uint64)
    names = rng.integers(0, 2**64, (CHAINS, CHAIN_BLOCKS), np.uint64)
    started, stored = time.perf_counter(), 0
    for chain in range(CHAINS):
        depths = [CHAIN_BLOCKS, *rng.integers(1, CHAIN_BLOCKS, HOLDERS - 1).tolist()]
        holders = rng.choice(workers, HOLDERS, replace=False).tolist()
        for slot, depth in zip(holders, depths, strict=True):
            for start in range(0, depth, STORE_BLOCKS):
                part = slice(start, min(depth, start + STORE_BLOCKS))
                parent = int(names[chain, start - 1]) if start else None
                stored += writers[slot].store(
                    Tier.GPU, parent, contents[chain, part], names[chain, part]
                )
    print(f"store: {stored / (time.perf_counter() - started) / 1e6:.1f} M memberships/s")
    return index, contents


def best(repeats, work):
    return min(work() for _ in range(repeats))


def measure(index, contents, blocks, repeats, rng):
    paths = np.ascontiguousarray(contents[rng.permutation(CHAINS), :blocks])
    matched = np.zeros((index.n_slots, 4), np.int32)
    count = max(200, 400_000 // (blocks + 64))

    def kernel():
        started = time.perf_counter()
        match_many(index.header, paths, matched, count)
        return (time.perf_counter() - started) / count * 1e9

    def call():
        started = time.perf_counter()
        for i in range(count):
            index.match(paths[i % CHAINS])
        return (time.perf_counter() - started) / count * 1e9

    return best(repeats, kernel), best(repeats, call)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for workers in options.workers:
        rng = np.random.default_rng(1)
        index, contents = build(workers, rng)
        stats = index.stats()
        print(
            f"{workers} workers, {stats.blocks} blocks, {stats.memberships} memberships,"
            f" {stats.holder_sets} holder sets"
        )
        for blocks in (8, 64, 512, 4096, 8192):
            kernel, call = measure(index, contents, blocks, options.repeats, rng)
            print(f"  {blocks:5d} blocks: kernel {kernel:7.0f} ns, call {call:7.0f} ns")


if __name__ == "__main__":
    main()
