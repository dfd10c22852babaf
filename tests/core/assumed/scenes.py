"""Selectors with assumed indexes, and the lookup of a prompt."""

from random import Random

import numpy as np

from indexer.hashing.block_hashing import compute_block_hashes
from indexer.index.prefix_index import PrefixIndex
from select_service.core.assumed.rank_modes import AssumptionRules
from select_service.core.identity import Rank
from select_service.core.placement.router_config import RouterConfig
from select_service.core.selector_builder import SelectorConfig, build_selector
from tests.builders import a_select, a_select_and_reserve, a_worker

BLOCK_SIZE = 4


def assuming_selector(policy="reference", use_kv_events=False, blocks_max=4096, **rules):
    rules = {"assumes_without_events": not use_kv_events, **rules}
    config = SelectorConfig(
        RouterConfig(policy=policy),
        use_kv_events=use_kv_events,
        assumptions=AssumptionRules(**rules),
    )
    return build_selector(config, lambda: PrefixIndex(blocks_max), rng=Random(1))


def register(selector, worker_id, **fields):
    if selector.fleet._rules.use_kv_events and fields.get("index") != "assumed":
        fields.setdefault("kv_events_endpoint", f"tcp://127.0.0.1:{9000 + worker_id}")
    return selector.register_worker(a_worker(worker_id, **fields))


def book(selector, name, tokens, worker_id=1, now=0.0, **fields):
    request = a_select_and_reserve(
        token_ids=list(tokens),
        reservation_id=name,
        pinned_worker={"worker_id": worker_id, "dp_rank": 0},
        **fields,
    )
    return selector.select_and_reserve(request, now).selection


def overlaps(selector, tokens):
    """Return {worker id: (device blocks, assumed blocks)} of a prompt."""
    _, rows = selector.inspection.overlap_scores(a_select(token_ids=list(tokens)))
    return {row.worker_id: (row.device_blocks, row.assumed_blocks or 0) for row in rows}


def path_of(tokens):
    return compute_block_hashes(np.array(tokens, np.uint32), BLOCK_SIZE)


def partition_of(selector):
    (partition,) = selector.fleet.partitions.values()
    return partition


def writer_of(selector, worker_id):
    return partition_of(selector).table.writer_of(Rank(worker_id, 0))


def run_turns(selector, now):
    while selector.followers.assumptions.run_turn(now):
        pass
