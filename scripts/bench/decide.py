"""Cost of a decision in process, by ranks and hashes: CPU time of one thread.

    python scripts/bench/decide.py [--ranks 8 256 1024 4096] [--hashes 8 64 512] [--rounds 100]
                                   [--decisions 4096] [--policies work work+copy-price reference]
                                   [--kv-blocks 8]

`place` is the compiled call from Python, `decide` a placement and its answer as records, `select`
all of POST /select except HTTP and JSON. Microseconds: the median of the rounds and, in
parentheses, the fastest, which shows an idle machine. Each of several policies has a row, measured
in turns. `moving` is `place` after a change of the index, so that `work` examines the progress of
prefills. Every rank has two reservations, and each of 16 prompts, used in turns, is live on some
ranks. Contents of the index:

    few     four ranks have some of each prompt
    shared  as above, and every rank has its first eighth
    ragged  a quarter of the ranks have some of each prompt, of random length
"""

import argparse
import time
from random import Random
from statistics import median

import msgspec
import numpy as np

from indexer.index.header_kernels import CHANGED
from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.core.identity import Rank
from select_service.core.placement.candidates import find_candidates
from select_service.core.placement.policies.policy_registry import parse_policy_choice
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector_builder import SelectorConfig, build_selector
from select_service.schemas.selection import SelectAndReserveRequest, SelectRequest
from select_service.schemas.workers import WorkerRegistration

BLOCK_SIZE = 16
PROMPTS = 16
LIVE = 4
"""Reservations of each prompt."""
STANDING_BLOCKS = 32
SCENES = ("few", "shared", "ragged")
NOW = 1000.0


def selector_of(ranks, policy, decisions_kept, kv_blocks):
    router = parse_policy_choice(policy).apply_to(RouterConfig())
    config = SelectorConfig(router, use_kv_events=False, decisions_kept=decisions_kept)
    selector = build_selector(config, lambda: PrefixIndex(1 << 18), rng=Random(1))
    for worker_id in range(ranks):
        given = {"worker_id": worker_id, "endpoint": "http://w", "block_size": BLOCK_SIZE}
        given |= {"total_kv_blocks": kv_blocks} if kv_blocks else {}
        selector.register_worker(msgspec.convert(given, WorkerRegistration))
    return selector


def prompts_of(hashes):
    """Return block hashes of prompts with a common beginning."""
    rng = np.random.default_rng(1)
    prompts = rng.integers(1, 2**63, (PROMPTS, hashes))
    prompts[:, : hashes // 8] = prompts[0, : hashes // 8]
    return list(prompts.astype(np.uint64))


def request_of(kind, blocks, **fields):
    hashes = blocks.tolist()
    body = {"block_hashes": hashes, "sequence_hashes": hashes}
    return msgspec.convert(body | {"isl_tokens": BLOCK_SIZE * len(hashes)} | fields, kind)


def holders_of(ranks, scene, rng):
    """Yield (worker, share of the prompt, 0 to 1) for one prompt."""
    if scene == "shared":
        yield from ((worker_id, 1 / 8) for worker_id in range(ranks))
    count = ranks // 4 if scene == "ragged" else 4
    for worker_id in rng.choice(ranks, count, replace=False).tolist():
        yield worker_id, rng.random()


def fill(selector, prompts, ranks, scene):
    (partition,) = selector.fleet.partitions.values()
    rng = np.random.default_rng(2)
    for blocks in prompts:
        for worker_id, part in holders_of(ranks, scene, rng):
            held = blocks[: int(np.ceil(part * len(blocks)))]
            partition.table.writer_of(Rank(worker_id, 0)).store(Tier.GPU, None, held, held)
    for number in range(2 * ranks):
        blocks = rng.integers(1, 2**63, STANDING_BLOCKS)
        there = {"allowed_worker_ids": [number % ranks]}
        selector.select_and_reserve(request_of(SelectAndReserveRequest, blocks, **there), NOW)
    for blocks in prompts * LIVE:
        selector.select_and_reserve(request_of(SelectAndReserveRequest, blocks), NOW)


def us_of(round_of):
    """Return the microseconds of a call.  round_of: called with the number of a prompt"""
    begin = time.thread_time_ns()
    for number in range(PROMPTS):
        round_of(number)
    return (time.thread_time_ns() - begin) / PROMPTS / 1e3


def calls_of(ranks, hashes, scene, policy, options):
    """Return the measured calls: place, moving, decide, select."""
    selector = selector_of(ranks, policy, options.decisions, options.kv_blocks)
    prompts = prompts_of(hashes)
    fill(selector, prompts, ranks, scene)
    requests = [request_of(SelectRequest, blocks) for blocks in prompts]
    jobs = [selector._make_request(request, False, None) for request in requests]
    (partition,) = selector.fleet.partitions.values()
    eligible = find_candidates(partition.table, requests[0])

    def place(number):
        job = jobs[number]
        partition.placer.place_prompt(job.prompt, job.config, eligible, draw=0.5)

    def moving(number):
        partition.index.header[CHANGED] += 1
        place(number)

    def decide(number):
        selector.decisions.decide(jobs[number], eligible, NOW)

    def select(number):
        selector.select(requests[number], NOW)

    return place, moving, decide, select


def measure(ranks, hashes, scene, options):
    """Return {policy: texts of the measurements, median and fastest}."""
    calls = {p: calls_of(ranks, hashes, scene, p, options) for p in options.policies}
    found: dict[str, list[list[float]]] = {
        policy: [[] for _ in own] for policy, own in calls.items()
    }
    for _ in range(options.rounds):
        for policy, own in calls.items():
            for times, call in zip(found[policy], own, strict=True):
                times.append(us_of(call))
    return {
        policy: [f"{median(times):.2f} ({min(times):.2f})" for times in rows]
        for policy, rows in found.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 256, 1024, 4096])
    parser.add_argument("--hashes", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=SCENES)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--decisions", type=int, default=0, help="that are kept")
    parser.add_argument("--policies", nargs="+", default=["work"], help="with +OPTION")
    parser.add_argument("--kv-blocks", type=int, help="of each rank; a few make caches full")
    options = parser.parse_args()
    print("| policy | holders | ranks | hashes | place | moving | decide | select |")
    print("|---|---|---|---|---|---|---|---|")
    for scene in options.scenes:
        for ranks in options.ranks:
            for hashes in options.hashes:
                for policy, row in measure(ranks, hashes, scene, options).items():
                    place = f"{policy} | {scene} | {ranks} | {hashes}"
                    print(f"| {place} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
