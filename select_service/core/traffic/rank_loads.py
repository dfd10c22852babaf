"""Ranks of a partition as autoscalers receive them."""

from collections.abc import Iterator

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from select_service.core.identity import Rank
from select_service.core.load.compiled import load_layout as layout
from select_service.core.rank_condition import ConditionOf, RankCondition
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.engine_load import EngineLoads
from select_service.schemas.observation import ObservedEngine, ObservedRank

RANKS_PER_STEP = 64
"""Ranks per step, before the event loop runs other tasks."""
_encode = msgspec.json.Encoder().encode


def has_prefill_workers(partition: Partition) -> bool:
    """Return whether any rank prefills for others. O(ranks), below a microsecond each"""
    row_at, slots = partition.table.row_at, partition.table.iterate_slots()
    return any(row_at(slot).worker.registration.role == "prefill" for _, slot in slots)


def slots_by_part(partition: Partition) -> tuple[list[int], list[int]]:
    """Return the slots of the ranks that may prefill, and that may decode.  O(ranks)"""
    row_at, slots = partition.table.row_at, partition.table.iterate_slots()
    roles = [(slot, row_at(slot).worker.registration.role) for _, slot in slots]
    return (
        [slot for slot, role in roles if role != "decode"],
        [slot for slot, role in roles if role != "prefill"],
    )


def rank_loads(
    partition: Partition, engines: EngineLoads, condition_of: ConditionOf | None, now: float
) -> Iterator[msgspec.Raw | None]:
    """Yield `ObservedRank`s as JSON, by worker and rank, with None before the first and after some.

    Each row is current when yielded; ranks that leave meanwhile are left out.
    condition_of: None if health is off
    """
    ranks = sorted(partition.table.sorted_ranks())
    yield None
    blocks = partition.load.compute_active_blocks()
    for number, rank in enumerate(ranks, 1):
        slot = partition.table.find_slot(rank)
        if slot is not None and slot < len(blocks):
            shown = _rank_view(partition, rank, slot, int(blocks[slot]))
            shown.engine = _engine_view(engines, rank, now)
            if condition_of is not None:
                _add_condition(shown, condition_of(rank, now))
                shown.weight = round(float(partition.table.columns.weight[slot]), 3)
            yield msgspec.Raw(_encode(shown))
        if number % RANKS_PER_STEP == 0:
            yield None


def _add_condition(shown: ObservedRank, found: RankCondition | None) -> None:
    """Add the health of a rank; None means unknown."""
    if found is None:
        return
    shown.state = found.state
    if found.cause is not None:
        shown.cause = found.cause
    if found.out_s is not None:
        shown.out_s = round(found.out_s, 3)
    if found.is_spare:
        shown.spare = True


def _rank_view(partition: Partition, rank: Rank, slot: int, active_blocks: int) -> ObservedRank:
    given = partition.table.row_at(slot).worker.registration
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


def _engine_view(engines: EngineLoads, rank: Rank, now: float) -> ObservedEngine | UnsetType:
    heard = engines.last_reading(rank)
    # Stale numbers would mislead an autoscaler more than no numbers.
    if heard is None or not engines.is_fresh(heard, now):
        return UNSET
    reading = heard.reading
    return ObservedEngine(
        requests_waiting=reading.requests_waiting,
        requests_running=reading.requests_running,
        kv_usage=reading.kv_usage,
    )
