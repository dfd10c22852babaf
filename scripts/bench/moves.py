"""CPU of moving the reservations of a rank: planned and booked on other ranks, turn by turn.

    python scripts/bench/moves.py [--reservations 1000] [--hashes 64] [--workers 8 64]

Of several rounds the least: all turns together, and the longest of them, in milliseconds of CPU.
Requests are in their decode phase with some output; targets have parts of their prompts.
"""

import argparse
import gc
import time
from random import Random

import numpy as np

from indexer.hashing.hashes import block_hashes
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.bodies.reservations import ReservationRequest
from select_service.bodies.workers import WorkerRegistration
from select_service.core.health.kinds import Kind
from select_service.core.health.monitor import HealthMonitor
from select_service.core.health.rules import HealthRules
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.move_wishes import KeptWishes
from select_service.core.moving.learnt import Learnt
from select_service.core.moving.mover import Mover
from select_service.core.selector import Selector, SelectorConfig
from select_service.core.touched import Touched

ROUNDS = 7
NOW = 1000.0
KEY = PartitionKey("m", "default")
_RANDOM = np.random.default_rng(0)


def main() -> None:
    given = argparse.ArgumentParser(description="CPU of moving the reservations of a rank")
    given.add_argument("--reservations", type=int, default=1000)
    given.add_argument("--hashes", type=int, default=64)
    given.add_argument("--workers", type=int, nargs="+", default=[8, 64])
    options = given.parse_args()
    for workers in options.workers:
        rounds = [_round(options.reservations, options.hashes, workers) for _ in range(ROUNDS)]
        total, longest = min(sum(r) for r in rounds), min(max(r) for r in rounds)
        print(
            f"{options.reservations} reservations of {options.hashes} blocks, {workers} workers: "
            f"{total:.1f} ms in {len(rounds[0])} turns, the longest {longest:.1f} ms",
            flush=True,
        )


def _round(reservations: int, hashes: int, workers: int) -> list[float]:
    """Milliseconds of each turn."""
    selector = Selector(
        SelectorConfig(use_kv_events=False),
        lambda: PrefixIndex(1 << 18, bytes_max=1 << 28),
        rng=Random(1),
    )
    touched, learnt = Touched(lambda: None), Learnt(KeptWishes())
    monitor = HealthMonitor(HealthRules(), lambda key: (), lambda rank: 0, touched)
    fleet = selector.fleet
    mover = Mover(monitor, fleet.partitions, selector.ledger, learnt, lambda *_: None, touched)
    selector.decisions.keeps_wishes = True
    selector.ledger.follow(learnt, tells_moves=False)
    _fill(selector, reservations, hashes, workers)
    table = fleet.partitions[KEY].table
    here = table.find(Rank(0, 0))
    assert here is not None
    table.set_weight(here, 0.0, "draining")
    gc.collect()
    gc.disable()
    turns = []
    begin = time.process_time()
    mover.ask(KEY, Rank(0, 0), Kind.TIMEOUT)
    while mover.is_busy:
        mover.settle(NOW)
        end = time.process_time()
        turns.append((end - begin) * 1e3)
        begin = end
    gc.enable()
    moved = mover.moves.after(0, reservations).events
    assert len(moved) == reservations
    assert all(event.target is not None for event in moved)
    return turns


def _fill(selector: Selector, reservations: int, hashes: int, workers: int) -> None:
    for worker_id in range(workers):
        selector.register(
            WorkerRegistration(
                worker_id=worker_id,
                model_name="m",
                endpoint=f"http://w{worker_id}:8000",
                block_size=16,
                total_kv_blocks=reservations * hashes * 4,
                data_parallel_size=1,
            )
        )
    table = selector.fleet.partitions[KEY].table
    for number in range(reservations):
        tokens = _RANDOM.integers(0, 1 << 31, 16 * hashes).astype(np.uint32)
        content = block_hashes(tokens, 16)
        name = f"request-{number:028}"
        selector.reserve(_reservation(name, tokens.tolist()), NOW - 60.0)
        selector.prefill_complete(name, NOW - 50.0)
        selector.output_block(name, None, NOW - 40.0)
        if workers > 1:
            held = content[: hashes // 2]
            writer = table.writer(Rank(1 + number % (workers - 1), 0))
            writer.store(Tier.GPU, None, held, held + np.uint64(1))


def _reservation(name: str, tokens: list[int]) -> ReservationRequest:
    return ReservationRequest(reservation_id=name, model_name="m", worker_id=0, token_ids=tokens)


if __name__ == "__main__":
    main()
