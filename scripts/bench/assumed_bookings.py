"""Cost of bookings on ranks with assumed blocks: microseconds per booking, by prompt length.

    python -m scripts.bench.assumed_bookings [--ranks 8] [--bookings 4000]

A booking is `select_and_reserve` of the core with token ids, freed at once; `off` has no assumed
blocks. Half of each prompt is shared with earlier prompts. The caches are full, so that each
booking evicts as many blocks as it adds.
"""

import argparse
from random import Random
from time import perf_counter

import numpy as np

from indexer.index.prefix_index import PrefixIndex
from select_service.core.assumed.rank_modes import AssumptionRules
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector import SelectorCore
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.schemas.selection import SelectAndReserveRequest
from select_service.schemas.workers import WorkerRegistration

BLOCK_SIZE = 16
LENGTHS = (8, 64, 512, 4096)
"""Prompt lengths in blocks."""
CACHE_BLOCKS = 20_000


def build(ranks: int, is_assumed: bool) -> SelectorCore:
    """Return a selector with ranks without KV events."""
    rules = AssumptionRules(assumes_without_events=is_assumed)
    config = SelectorConfig(RouterConfig(), use_kv_events=False, assumptions=rules)
    selector = build_selector(config, lambda: PrefixIndex(1 << 22), rng=Random(1))
    for worker_id in range(ranks):
        selector.register_worker(
            WorkerRegistration(
                worker_id=worker_id,
                model_name="m",
                endpoint=f"http://w{worker_id}:8000",
                block_size=BLOCK_SIZE,
                total_kv_blocks=CACHE_BLOCKS,
            )
        )
    return selector


def measure(selector: SelectorCore, n_blocks: int, bookings: int) -> float:
    """Return the first quintile of the times of bookings, in microseconds."""
    rng, times = np.random.default_rng(1), []
    heads = rng.integers(0, 2**17, (16, n_blocks // 2 * BLOCK_SIZE))
    for number in range(bookings):
        tail = rng.integers(0, 2**17, (n_blocks - n_blocks // 2) * BLOCK_SIZE)
        tokens = np.concatenate([heads[number % 16], tail]).tolist()
        request = SelectAndReserveRequest(model_name="m", token_ids=tokens, reservation_id="r")
        begun = perf_counter()
        selector.select_and_reserve(request, float(number))
        times.append(perf_counter() - begun)
        selector.free_reservation("r", float(number))
    return float(np.quantile(times[bookings // 2 :], 0.2)) * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--bookings", type=int, default=4000)
    options = parser.parse_args()
    print("blocks   off us    on us   difference us")
    for n_blocks in LENGTHS:
        bookings = max(200, options.bookings * 8 // n_blocks)
        off, on = (
            measure(build(options.ranks, is_assumed), n_blocks, bookings)
            for is_assumed in (False, True)
        )
        print(f"{n_blocks:6} {off:8.1f} {on:8.1f} {on - off:15.1f}")


if __name__ == "__main__":
    main()
