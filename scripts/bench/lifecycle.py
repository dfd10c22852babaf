"""CPU of the calls of a reservation's life inside the process, without HTTP, and its memory.

    python scripts/bench/lifecycle.py [--hashes 64 512] [--workers 8 256] [--live 1000]

Of each call the least average of several rounds, in microseconds of CPU, with so many reservations
live; prompts are hash lists of their own.  Then the bytes that a live reservation takes, most of
them in the load tables, of whose rows up to two thirds are free.
"""

import argparse
import gc
import time
from collections.abc import Callable
from random import Random

import numpy as np

from indexer.index.prefix_index import PrefixIndex
from select_service.bodies.reservations import ReservationRequest
from select_service.bodies.selection import SelectAndReserveRequest
from select_service.bodies.workers import WorkerRegistration
from select_service.core.selector import Selector, SelectorConfig

ROUNDS = 5
CALLS = 300
NOW = 1000.0
_RANDOM = np.random.default_rng(0)


def main() -> None:
    given = argparse.ArgumentParser(description="CPU of lifecycle calls inside the process")
    given.add_argument("--hashes", type=int, nargs="+", default=[64, 512])
    given.add_argument("--workers", type=int, nargs="+", default=[8, 256])
    given.add_argument("--live", type=int, default=1000)
    options = given.parse_args()
    for hashes in options.hashes:
        for workers in options.workers:
            _measure(hashes, workers, options.live)


def _measure(hashes: int, workers: int, live: int) -> None:
    selector = _selector(workers)
    before = _resident()
    for number in range(live):
        selector.reserve(_reservation(f"live-{number:031}", hashes, number % workers), NOW)
    memory = (_resident() - before) // live
    least: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, cost in _round(selector, hashes, workers):
            least[name] = min(cost, least.get(name, cost))
    costs = ", ".join(f"{name} {cost:.1f}" for name, cost in least.items())
    print(f"{hashes} hashes, {workers} workers: {costs} us; {memory} bytes", flush=True)


def _selector(workers: int) -> Selector:
    config = SelectorConfig(use_kv_events=False)
    selector = Selector(config, lambda: PrefixIndex(1 << 12), rng=Random(1))
    for worker_id in range(workers):
        selector.register(
            WorkerRegistration(
                worker_id=worker_id, model_name="m", endpoint="http://w", block_size=16
            )
        )
    return selector


def _round(selector: Selector, hashes: int, workers: int) -> list[tuple[str, float]]:
    ids = [f"{number:036}" for number in range(CALLS)]
    requests = [_reservation(name, hashes, n % workers) for n, name in enumerate(ids)]
    chosen = [_choice(name, hashes) for name in ids]
    costs = [
        ("reserve", _cost(lambda n: selector.reserve(requests[n], NOW))),
        ("output_block", _cost(lambda n: selector.output_block(ids[n], None, NOW))),
        ("with decay", _cost(lambda n: selector.output_block(ids[n], 0.5, NOW))),
        ("prefill_complete", _cost(lambda n: selector.prefill_complete(ids[n], NOW))),
        ("renew", _cost(lambda n: selector.renew(ids[n], NOW))),
        ("free", _cost(lambda n: selector.free(ids[n], NOW))),
        ("select_and_reserve", _cost(lambda n: selector.select_and_reserve(chosen[n], NOW))),
    ]
    for name in ids:
        selector.free(name, NOW)
    return costs


def _cost(call: Callable[[int], object]) -> float:
    """Microseconds of CPU of one call, on average."""
    gc.collect()
    gc.disable()
    began = time.process_time()
    for number in range(CALLS):
        call(number)
    cost = (time.process_time() - began) / CALLS * 1e6
    gc.enable()
    return cost


def _prompt(hashes: int) -> list[int]:
    found: list[int] = _RANDOM.integers(1, 2**63, hashes).tolist()
    return found


def _reservation(name: str, hashes: int, worker_id: int) -> ReservationRequest:
    prompt = _prompt(hashes)
    return ReservationRequest(
        model_name="m",
        reservation_id=name,
        worker_id=worker_id,
        block_hashes=prompt,
        sequence_hashes=prompt,
        isl_tokens=16 * hashes,
    )


def _choice(name: str, hashes: int) -> SelectAndReserveRequest:
    prompt = _prompt(hashes)
    return SelectAndReserveRequest(
        model_name="m",
        reservation_id=name,
        block_hashes=prompt,
        sequence_hashes=prompt,
        isl_tokens=16 * hashes,
    )


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


if __name__ == "__main__":
    main()
