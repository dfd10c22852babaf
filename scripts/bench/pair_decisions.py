"""Cost of choosing and booking pairs in process: CPU time of one thread, without sockets.

    python -m scripts.bench.pair_decisions [--ranks 8 256] [--hosts 1 8 64] [--rounds 40] [--kind K]

`--ranks` counts the prefill ranks; there are as many decode ranks, all spread over `--hosts`.
Microseconds: the median of the rounds and, in parentheses, the fastest, which shows an idle
machine.  Prompts have 64 block hashes; some decode ranks hold a part of each.

    choose   the compiled choice, called from Python
    book     POST /select_pair_and_reserve on the ordinary path, without HTTP and JSON
    free     DELETE of these, with the end of the prefill leg in the next turn
    pair     POST /select_pair_and_reserve on the fast path, from the bytes of requests to answers
    token    POST first_token of these in the same way
    gone     DELETE of these in the same way, with the end of the prefill leg in the next turn
    one      POST /select_and_reserve in the same way
    one gone DELETE of these in the same way
"""

import argparse
import time
from collections.abc import Callable, Iterator
from random import Random
from statistics import median
from typing import Any

import msgspec
import numpy as np

from indexer.hashing.block_hashing import Hashes
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.core.identity import Rank
from select_service.core.pairs.pair_links import pair_masks
from select_service.core.placement.candidates import find_candidates
from select_service.core.placement.prompt import Prompt
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector import SelectorCore
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.fastpath.pair_answers import PAIR_KERNEL
from select_service.fastpath.service_handler import ServiceHandler
from select_service.metrics.service_metrics import ServiceMetrics
from select_service.schemas.pairs import SelectPairAndReserveRequest
from select_service.schemas.workers import WorkerRegistration

BLOCK_SIZE = 16
HASHES = 64
PROMPTS = 32
STANDING = 4
"""Booked pairs for each rank of a role."""
NOW = 1000.0
HEADERS = "host: selector.llm.svc:8092\r\nuser-agent: python-httpx/0.28.1\r\naccept: */*"

Call = Callable[[int], object]
"""Measured call; it takes the number of a prompt."""


def selector_of(ranks: int, hosts: int, kind: str) -> SelectorCore:
    """Return a selector with `ranks` prefill and as many decode ranks."""
    config = SelectorConfig(RouterConfig(policy="work"))
    selector = build_selector(config, lambda: PrefixIndex(1 << 18), rng=Random(1))
    for worker_id in range(2 * ranks):
        given = {
            "worker_id": worker_id,
            "endpoint": f"http://worker-{worker_id}:8000",
            "block_size": BLOCK_SIZE,
            "kv_events_endpoint": "tcp://worker:5557",
            "total_kv_blocks": 100_000,
            "role": "prefill" if worker_id < ranks else "decode",
            "prefill_tokens_per_s": 30_000.0,
            "kv_transfer": {
                "kind": kind,
                "host": f"host-{worker_id % hosts}",
                "bytes_per_token": 131_072.0,
                "link_gbps": 100.0,
            },
        }
        selector.register_worker(msgspec.convert(given, WorkerRegistration))
    return selector


def body_of(blocks: Hashes, name: str) -> dict[str, Any]:
    """Return the body of a booking."""
    hashes = blocks.tolist()
    body = {"reservation_id": name, "block_hashes": hashes, "sequence_hashes": hashes}
    return {**body, "isl_tokens": BLOCK_SIZE * len(hashes)}


def pair_request(blocks: Hashes, name: str) -> SelectPairAndReserveRequest:
    return msgspec.convert(body_of(blocks, name), SelectPairAndReserveRequest)


def fill(selector: SelectorCore, prompts: list[Hashes], ranks: int) -> None:
    """Store a part of each prompt on some decode ranks, and book pairs of other prompts."""
    (partition,) = selector.fleet.partitions.values()
    rng = np.random.default_rng(2)
    for blocks in prompts:
        for worker_id in rng.integers(ranks, 2 * ranks, 2).tolist():
            held = blocks[: int(rng.integers(1, len(blocks)))]
            partition.table.writer_of(Rank(worker_id, 0)).store(Tier.GPU, None, held, held)
    for number in range(STANDING * ranks):
        blocks = rng.integers(1, 2**63, int(rng.integers(16, 128))).astype(np.uint64)
        name = f"standing-{number}"
        selector.select_pair(pair_request(blocks, name), NOW)
        if number % 2:
            selector.complete_prefill(name, NOW)
            selector.pairs.book.run_turn(NOW)


def posted(path: str, body: object = None) -> bytes:
    """Return the bytes of a request."""
    content = b"" if body is None else msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\n{HEADERS}\r\ncontent-length: {len(content)}\r\n"
    kind = "" if body is None else "content-type: application/json\r\n"
    return f"{head}{kind}\r\n".encode() + content


def freed(name: str) -> bytes:
    return f"DELETE /reservations/{name} HTTP/1.1\r\n{HEADERS}\r\n\r\n".encode()


def ordinary_calls(selector: SelectorCore, prompts: list[Hashes]) -> Iterator[tuple[str, Call]]:
    """Iterate over the calls without the fast path."""
    (partition,) = selector.fleet.partitions.values()
    requests = [pair_request(blocks, f"book-{at}") for at, blocks in enumerate(prompts)]
    links = selector.pairs.links.links_of(partition)
    eligible = find_candidates(partition.table, requests[0])
    masks = pair_masks(partition.table, links, requests[0], eligible)
    read = [Prompt(blocks, blocks, BLOCK_SIZE * len(blocks)) for blocks in prompts]

    def free(number: int) -> None:
        selector.free_reservation(f"book-{number}", NOW)
        selector.pairs.book.run_turn(NOW)

    yield "choose", lambda number: links.placer.place_pair(read[number], masks, 0.5)
    yield "book", lambda number: selector.select_pair(requests[number], NOW)
    yield "free", free


def fast_calls(selector: SelectorCore, prompts: list[Hashes]) -> Iterator[tuple[str, Call]]:
    """Iterate over the calls of the fast path."""
    PAIR_KERNEL.load()
    handler = ServiceHandler(selector, ServiceMetrics("0"))

    def answering(requests: list[bytes], *, ends_legs: bool = False) -> Call:
        def answer(number: int) -> None:
            assert handler.answer_request(requests[number], 0) is not None
            if ends_legs:
                selector.pairs.book.run_turn(NOW)

        return answer

    def booking(path: str, name: str) -> list[bytes]:
        return [posted(path, body_of(each, f"{name}-{at}")) for at, each in enumerate(prompts)]

    numbers = range(len(prompts))
    yield "pair", answering(booking("/select_pair_and_reserve", "pair"))
    yield "token", answering([posted(f"/reservations/pair-{at}/first_token") for at in numbers])
    yield "gone", answering([freed(f"pair-{at}") for at in numbers], ends_legs=True)
    yield "one", answering(booking("/select_and_reserve", "one"))
    yield "one gone", answering([freed(f"one-{at}") for at in numbers])


def us_of(call: Call) -> float:
    """Return the microseconds of a call."""
    begin = time.thread_time_ns()
    for number in range(PROMPTS):
        call(number)
    return (time.thread_time_ns() - begin) / PROMPTS / 1e3


def measure(ranks: int, hosts: int, kind: str, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of each round by the name of a call."""
    selector, rng = selector_of(ranks, hosts, kind), np.random.default_rng(1)
    prompts = [rng.integers(1, 2**63, HASHES).astype(np.uint64) for _ in range(PROMPTS)]
    fill(selector, prompts, ranks)
    found: dict[str, list[float]] = {}
    # In turns by path, as a service has one of them in its caches.
    for calls in (dict(ordinary_calls(selector, prompts)), dict(fast_calls(selector, prompts))):
        found |= {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                found[name].append(us_of(call))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 256])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--kind", default="nixl", help="connector of the workers")
    given = parser.parse_args()
    for ranks in given.ranks:
        for hosts in given.hosts:
            if hosts <= 2 * ranks:
                found = measure(ranks, hosts, given.kind, given.rounds)
                texts = [f"{median(times):.1f} ({min(times):.1f})" for times in found.values()]
                for cells in (["ranks", "hosts", *found], [f"{ranks} + {ranks}", hosts, *texts]):
                    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
