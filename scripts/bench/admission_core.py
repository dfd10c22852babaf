"""One contender of admission.py: times a selector of the source tree on PYTHONPATH, round by round.

    python scripts/bench/admission_core.py SETUP WORKERS PAIRS

Prints `ready`; then, for every line on its input, one line with the microseconds of CPU that
`select_and_reserve` and `free` together took, on average over PAIRS of them.  The setup
`off` has no admission rules at all; see `_rules` for the others.
"""

import sys
import time
from random import Random

import msgspec
import numpy as np

from indexer.index.prefix_index import PrefixIndex
from indexer.tiers import Tier
from select_service.bodies.selection import SelectAndReserveRequest
from select_service.bodies.workers import WorkerRegistration
from select_service.core.identity import Rank
from select_service.core.selector import Selector, SelectorConfig

BLOCKS = 128
BLOCK_SIZE = 16
PROMPTS = 16
STANDING = 4
"""Reservations that every worker holds all the time."""
NOW = 1000.0


def _rules(setup):
    from select_service.core.admission.policy_classes import QueueRules, single_class
    from select_service.core.admission.rules import AdmissionRules
    from select_service.core.admission.thresholds import BusyThresholds

    thresholds = BusyThresholds(0.95, 10_000_000) if setup in ("thresholds", "all") else None
    queue = QueueRules(single_class("fcfs", 1e6), timeout_s=60.0)
    return AdmissionRules(
        thresholds=thresholds or BusyThresholds(),
        queue=queue if setup in ("queue", "all") else None,
    )


def selector_of(setup, workers):
    config = SelectorConfig(use_kv_events=False)
    if setup != "off":
        config = config._replace(admission=_rules(setup))
    selector = Selector(config, lambda: PrefixIndex(1 << 17), rng=Random(1))
    for worker_id in range(workers):
        given = {
            "worker_id": worker_id,
            "endpoint": "http://w",
            "block_size": BLOCK_SIZE,
            "max_num_batched_tokens": 8192,
            "total_kv_blocks": 1_000_000,
        }
        selector.register(msgspec.convert(given, WorkerRegistration))
    if setup == "all":
        selector.shed("best_effort")
    return selector


def prompts_of(setup):
    """Bodies whose blocks are all different."""
    tier = {"priority_tier": "premium"} if setup == "all" else {}
    for number in range(PROMPTS):
        hashes = np.random.default_rng(number).integers(1, 2**63, (2, BLOCKS)).tolist()
        body = {
            "block_hashes": hashes[0],
            "sequence_hashes": hashes[1],
            "isl_tokens": BLOCKS * BLOCK_SIZE,
        }
        yield msgspec.convert(body | tier, SelectAndReserveRequest)


def fill(selector, requests, workers):
    """Half of every prompt is cached on one worker in four; each worker has something to do."""
    (partition,) = selector.fleet.partitions.values()
    for number, request in enumerate(requests):
        blocks = np.array(request.block_hashes[: BLOCKS // 2], np.uint64)
        for worker_id in range(number % 4, workers, 4):
            partition.table.writer(Rank(worker_id, 0)).store(Tier.GPU, None, blocks, blocks)
    for number in range(STANDING * workers):
        selector.select_and_reserve(requests[number % PROMPTS], NOW)


def main():
    setup, workers, pairs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    selector, requests = selector_of(setup, workers), list(prompts_of(setup))
    fill(selector, requests, workers)
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.process_time()
        for number in range(pairs):
            decision = selector.select_and_reserve(requests[number % PROMPTS], NOW)
            selector.free(decision.selection.reservation_id, NOW)
        print((time.process_time() - begin) / pairs * 1e6, flush=True)


if __name__ == "__main__":
    main()
