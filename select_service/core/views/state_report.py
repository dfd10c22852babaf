"""Workers, partitions and reservations as plain numbers, for metrics and whoever else watches.

Taking a report changes nothing.  It costs O(partitions + workers + ranks asked for).
"""

from collections import Counter
from collections.abc import Generator, Mapping
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from indexer.index.prefix_index import IndexStats
from select_service.bodies.workers import Lifecycle
from select_service.core.decide.placing import Tally
from select_service.core.fleet.fleet import Fleet
from select_service.core.fleet.partition import Partition
from select_service.core.load import load_layout as layout
from select_service.core.load.ledger import Ledger
from select_service.core.workers.catalog import Worker


class Load(NamedTuple):
    """Load of one rank, or the sum of several.

    kv_blocks_active: blocks of the KV cache in use as admission judges them: in the words of the
    engine where it is heard and the size of the cache is known, else `active_blocks`.
    kv_blocks_max: blocks of the KV cache; 0 when not known.
    """

    prefill_tokens: int
    active_blocks: int
    active_requests: int
    kv_blocks_active: int
    kv_blocks_max: int


class RankReport(NamedTuple):
    worker_id: int
    dp_rank: int
    load: Load


class PartitionReport(NamedTuple):
    """One partition.  `load` sums all its `n_ranks` ranks, `ranks` may hold fewer of them.

    reported_share: of the last prefills that ended, those whose end callers reported
    """

    model_name: str
    tenant_id: str
    block_size: int
    policy: str
    reported_share: float
    prefix_index: IndexStats
    tally: Tally
    n_ranks: int
    load: Load
    ranks: tuple[RankReport, ...]


class Report(NamedTuple):
    """Partitions are in the order of their creation, ranks by worker and rank.

    expired and dropped_with_rank are totals since the start: reservations that nobody renewed in
    time, and reservations that ended because their rank left.
    """

    partitions: tuple[PartitionReport, ...]
    workers: Mapping[Lifecycle, int]
    reservations_prefill: int
    reservations_decode: int
    reserved_blocks: int
    expired: int
    dropped_with_rank: int

    @property
    def n_ranks(self) -> int:
        return sum(partition.n_ranks for partition in self.partitions)


def report(fleet: Fleet, ledger: Ledger, ranks_max: int) -> Generator[None, None, Report]:
    """The numbers of now, with at most `ranks_max` single ranks over all partitions.

    In steps, one for each partition; partitions that leave meanwhile are left out.
    """
    partitions = []
    room = ranks_max
    for key, partition in list(fleet.partitions.items()):
        if fleet.partitions.get(key) is partition:
            partitions.append(_partition(partition, room))
            room -= len(partitions[-1].ranks)
            yield
    held = ledger.held
    return Report(
        partitions=tuple(partitions),
        workers=_by_lifecycle(list(fleet.catalog)),
        reservations_prefill=held.prefilling,
        reservations_decode=len(held) - held.prefilling,
        reserved_blocks=held.blocks,
        expired=ledger.expired,
        dropped_with_rank=ledger.dropped_with_rank,
    )


def _by_lifecycle(workers: list[Worker]) -> dict[Lifecycle, int]:
    """Every lifecycle has a number, also when it is 0."""
    counted = Counter(worker.lifecycle for worker in workers)
    return {lifecycle: counted[lifecycle] for lifecycle in get_args(Lifecycle)}


def _partition(partition: Partition, ranks_max: int) -> PartitionReport:
    loads = _loads(partition)
    by_rank = sorted(partition.table.slots()) if ranks_max else []
    return PartitionReport(
        model_name=partition.key.model_name,
        tenant_id=partition.key.tenant_id,
        block_size=partition.block_size,
        policy=partition.placing.choice.policy,
        reported_share=partition.load.reported_share,
        prefix_index=partition.index.stats(),
        tally=partition.placing.tally,
        n_ranks=len(partition.table),
        load=Load(*loads.sum(axis=0).tolist()),
        ranks=tuple(
            RankReport(*rank, Load(*loads[slot].tolist())) for rank, slot in by_rank[:ranks_max]
        ),
    )


def _loads(partition: Partition) -> npt.NDArray[np.int64]:
    """int64[n_slots, fields of Load]"""
    totals, blocks = partition.load.totals, partition.load.active_blocks()
    columns = partition.table.columns.first(len(blocks))
    known = np.isfinite(columns.kv_blocks)
    kv_blocks = np.where(known, columns.kv_blocks, 0.0)
    told = known & ~np.isnan(columns.kv_usage)
    active = np.where(told, np.rint(columns.kv_usage * kv_blocks), blocks)
    prefill, requests = totals[:, layout.PREFILL_TOKENS], totals[:, layout.REQUESTS]
    return np.column_stack((prefill, blocks, requests, active, kv_blocks)).astype(np.int64)
