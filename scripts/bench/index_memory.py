"""Memory and update speed of an index of a million blocks, each held by 2.6 workers on average.

    python scripts/bench/index_memory.py [--workers 8] [--seeds 1]

`--seeds 1`: all workers name a block by the same engine hash; more: by as many different ones, as
engines do whose hash seed is not fixed. RSS is the growth of the process from just before the
index is made; `accounted` is what `stats().bytes` says.
"""

import argparse
import os
import time

import numpy as np

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier

CHAINS = 128
CHAIN_BLOCKS = 8192
STORE_BLOCKS = 64
SINGLE_STORES = 100_000


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def plan(workers, rng):
    """(slot, chain, depth): 2.6 holders per block on average, the first of each chain whole."""
    for chain in range(CHAINS):
        depths = [CHAIN_BLOCKS, *rng.integers(1, CHAIN_BLOCKS, 3).tolist()]
        for slot, depth in zip(rng.choice(workers, 4, replace=False).tolist(), depths, strict=True):
            yield slot, chain, depth


def names_of(contents, seed):
    return contents * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)


def fill(writers, contents, names, work):
    stored = 0
    for slot, chain, depth in work:
        mine = names[slot % len(names)][chain]
        for start in range(0, depth, STORE_BLOCKS):
            part = slice(start, min(depth, start + STORE_BLOCKS))
            parent = int(mine[start - 1]) if start else None
            stored += writers[slot].store(Tier.GPU, parent, contents[chain, part], mine[part])
    return stored


def drain(writers, names, work):
    removed = 0
    for slot, chain, depth in work:
        mine = names[slot % len(names)][chain]
        for start in range(0, depth, STORE_BLOCKS):
            part = mine[start : min(depth, start + STORE_BLOCKS)]
            removed += writers[slot].remove(Tier.GPU, part[::-1].copy())
    return removed


def single_stores(writer):
    """One block per call, below the root, then removed one per call."""
    hashes = np.arange(1, SINGLE_STORES + 1, dtype=np.uint64).reshape(-1, 1)
    for block in hashes:
        writer.store(Tier.GPU, None, block, block)
    for block in hashes:
        writer.remove(Tier.GPU, block)
    return 2 * SINGLE_STORES


def timed(what, work, *arguments):
    started = time.perf_counter()
    count = work(*arguments)
    seconds = time.perf_counter() - started
    print(f"{what}: {count / seconds / 1e6:.2f} M/s ({count} in {seconds:.2f} s)")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(1)
    contents = rng.integers(0, 2**64, (CHAINS, CHAIN_BLOCKS), np.uint64)
    names = [names_of(contents, seed) for seed in range(options.seeds)]
    work = list(plan(options.workers, rng))
    before = resident_bytes()
    index = PrefixIndex(2 * CHAINS * CHAIN_BLOCKS)
    writers = [index.open_slot() for _ in range(options.workers)]
    timed("store memberships, 64 per call", fill, writers, contents, names, work)
    grown = resident_bytes() - before
    stats = index.stats()
    print(
        f"{stats.blocks} blocks, {stats.memberships} memberships, {stats.records} records:"
        f" RSS {grown / stats.blocks:.1f}, accounted {stats.bytes / stats.blocks:.1f} bytes a block"
    )
    timed("remove memberships, 64 per call", drain, writers, names, work)
    assert index.stats().blocks == 0
    timed("store and remove, 1 per call", single_stores, writers[0])
    fill(writers, contents, names, work)
    started = time.perf_counter()
    writers[0].close()
    print(f"close of one slot: {(time.perf_counter() - started) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
