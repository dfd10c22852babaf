"""The ranks of a partition as an autoscaler sees them."""

from collections.abc import Callable, Iterator

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from select_service.bodies.observation import ObservedEngine, ObservedRank
from select_service.core.engines.engine_load import EngineLoads
from select_service.core.fleet.partition import Partition
from select_service.core.identity import Rank
from select_service.core.load import load_layout as layout

RANKS_PER_STEP = 64
"""Ranks that are shown before others may be served."""
StateOf = Callable[[Rank], str | None]
"""The word for the health of a rank; None: it is unknown."""
_encode = msgspec.json.Encoder().encode


def has_prefill_workers(partition: Partition) -> bool:
    """Are there ranks that prefill for others?  O(ranks), below a microsecond each"""
    table = partition.table
    return any(table.row(slot).worker.given.role == "prefill" for _, slot in table.slots())


def rank_loads(
    partition: Partition, engines: EngineLoads, state_of: StateOf | None, now: float
) -> Iterator[msgspec.Raw | None]:
    """`ObservedRank`s as JSON, by worker and rank; None after some of them, and before.

    Each as it is when it is made; ranks that leave meanwhile are left out.  state_of: None: health
    is off
    """
    ranks = sorted(partition.table.ranks())
    yield None
    blocks = partition.load.active_blocks()
    for number, rank in enumerate(ranks, 1):
        slot = partition.table.find(rank)
        if slot is not None and slot < len(blocks):
            shown = _rank(partition, rank, slot, int(blocks[slot]))
            shown.engine = _engine(engines, rank, now)
            if state_of is not None:
                shown.state = state_of(rank) or UNSET
                shown.weight = round(float(partition.table.columns.weight[slot]), 3)
            yield msgspec.Raw(_encode(shown))
        if number % RANKS_PER_STEP == 0:
            yield None


def _rank(partition: Partition, rank: Rank, slot: int, active_blocks: int) -> ObservedRank:
    given = partition.table.row(slot).worker.given
    totals: np.ndarray = partition.load.totals[slot]
    return ObservedRank(
        worker_id=rank.worker_id,
        dp_rank=rank.dp_rank,
        role=given.role or "aggregated",
        active_prefill_tokens=int(totals[layout.PREFILL_TOKENS]),
        active_blocks=active_blocks,
        live_requests=int(totals[layout.REQUESTS]),
        block_size=partition.block_size,
        total_kv_blocks=given.total_kv_blocks,
        max_num_batched_tokens=given.max_num_batched_tokens,
    )


def _engine(engines: EngineLoads, rank: Rank, now: float) -> ObservedEngine | UnsetType:
    heard = engines.last(rank)
    if heard is None or not engines.is_fresh(heard, now):
        return UNSET
    reading = heard.reading
    return ObservedEngine(
        requests_waiting=reading.requests_waiting,
        requests_running=reading.requests_running,
        kv_usage=reading.kv_usage,
    )
