"""State report: workers, partitions and reservations as plain numbers for metrics.

Building a report changes nothing. It costs O(partitions + workers + requested ranks).
"""

from collections import Counter
from collections.abc import Generator, Mapping
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from indexer.index.prefix_index import IndexStats
from select_service.core.assumed.assumed_blocks import NOTHING_ASSUMED, AssumedStats
from select_service.core.load.compiled import load_layout as layout
from select_service.core.load.ledger import Ledger
from select_service.core.placement.pending_selections import (
    PendingSelectionCounts,
    PendingSelections,
)
from select_service.core.placement.placer import PlacementTally
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.worker_catalog import RegisteredWorker
from select_service.schemas.workers import Lifecycle


class RankLoadSums(NamedTuple):
    """Load of a rank, or the sum of several.

    kv_blocks_active: KV cache blocks in use as counted by admission: as reported by the engine if
        its reading is fresh and the cache size is known, else `active_blocks`
    kv_blocks_max: blocks of the KV cache; 0 if unknown
    """

    prefill_tokens: int
    active_blocks: int
    active_requests: int
    kv_blocks_active: int
    kv_blocks_max: int


class RankReport(NamedTuple):
    worker_id: int
    dp_rank: int
    load: RankLoadSums


class PartitionReport(NamedTuple):
    """State of a partition. `load` sums all `n_ranks` ranks, `ranks` may hold fewer.

    hint_outcomes: bookings by what became of their hint; empty without worker types
    shared_credit_tokens: tokens of prefill that shared caches save by the decisions
    kv_source_outcomes: decisions by the outcome of the search for a rank to fetch from
    reported_share: share of the latest ended prefills with an end that the client reported
    """

    model_name: str
    tenant_id: str
    block_size: int
    policy: str
    reported_share: float
    prefix_index: IndexStats
    assumed: AssumedStats
    tally: PlacementTally
    n_ranks: int
    load: RankLoadSums
    ranks: tuple[RankReport, ...]
    hint_outcomes: Mapping[str, int] = {}
    shared_credit_tokens: int = 0
    kv_source_outcomes: Mapping[str, int] = {}


class StateReport(NamedTuple):
    """State report; partitions in order of creation, ranks by worker and rank.

    expired, dropped_with_rank: reservations ended since start-up by expiry, and by departure of
        their rank
    selections: selections that a booking may take over by their id
    """

    partitions: tuple[PartitionReport, ...]
    workers: Mapping[Lifecycle, int]
    reservations_prefill: int
    reservations_decode: int
    reserved_blocks: int
    expired: int
    dropped_with_rank: int
    selections: PendingSelectionCounts

    @property
    def n_ranks(self) -> int:
        return sum(partition.n_ranks for partition in self.partitions)


def build_state_report(
    fleet: WorkerFleet, ledger: Ledger, pending: PendingSelections, ranks_max: int
) -> Generator[None, None, StateReport]:
    """Build the report, with at most `ranks_max` ranks over all partitions, one step per partition.

    Partitions removed meanwhile are left out.
    """
    partitions = []
    ranks_left = ranks_max
    for key, partition in list(fleet.partitions.items()):
        if fleet.partitions.get(key) is partition:
            partitions.append(_partition_report(partition, ranks_left))
            ranks_left -= len(partitions[-1].ranks)
            yield
    held = ledger.reservations
    return StateReport(
        partitions=tuple(partitions),
        workers=_by_lifecycle(list(fleet.catalog)),
        reservations_prefill=held.n_prefilling,
        reservations_decode=len(held) - held.n_prefilling,
        reserved_blocks=held.n_blocks,
        expired=ledger.expired_count,
        dropped_with_rank=ledger.released_with_rank,
        selections=pending.counts,
    )


def _by_lifecycle(workers: list[RegisteredWorker]) -> dict[Lifecycle, int]:
    """Return the number of workers for every lifecycle, including 0."""
    counted = Counter(worker.lifecycle for worker in workers)
    return {lifecycle: counted[lifecycle] for lifecycle in get_args(Lifecycle)}


def _partition_report(partition: Partition, ranks_max: int) -> PartitionReport:
    loads = _loads_by_slot(partition)
    by_rank = sorted(partition.table.iterate_slots()) if ranks_max else []
    return PartitionReport(
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        block_size=partition.block_size,
        policy=partition.placer.policy_choice.policy,
        reported_share=partition.load.reported_share,
        prefix_index=partition.index.stats(),
        assumed=NOTHING_ASSUMED if partition.assumed is None else partition.assumed.stats(),
        tally=partition.placer.total_tally,
        n_ranks=len(partition.table),
        load=RankLoadSums(*loads.sum(axis=0).tolist()),
        ranks=tuple(
            RankReport(*rank, RankLoadSums(*loads[slot].tolist()))
            for rank, slot in by_rank[:ranks_max]
        ),
        hint_outcomes=dict(partition.hint_outcomes),
        shared_credit_tokens=partition.shared_credit_tokens,
        kv_source_outcomes=dict(partition.kv_source_outcomes),
    )


def _loads_by_slot(partition: Partition) -> npt.NDArray[np.int64]:
    """Return int64[n_slots, fields of Load]."""
    totals, blocks = partition.load.totals, partition.load.compute_active_blocks()
    columns = partition.table.columns.first_rows(len(blocks))
    has_size = np.isfinite(columns.kv_blocks)
    kv_blocks = np.where(has_size, columns.kv_blocks, 0.0)
    has_usage = has_size & ~np.isnan(columns.kv_usage)
    active = np.where(has_usage, np.rint(columns.kv_usage * kv_blocks), blocks)
    prefill, requests = totals[:, layout.PREFILL_TOKENS], totals[:, layout.REQUESTS]
    return np.column_stack((prefill, blocks, requests, active, kv_blocks)).astype(np.int64)
