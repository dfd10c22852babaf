"""Ranks of a partition as targets of a migration plan."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Floats
from select_service.core.health.migration.move_cost import (
    CacheLayout,
    TopologyPosition,
    WorkerLink,
    find_link_between,
)
from select_service.core.health.migration.plan_targets import FILLABLE_SHARE, PlanTargets
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load.compiled import load_layout as layout
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.rank_table import RankTable
from select_service.core.workers.worker_catalog import RegisteredWorker, WorkerCatalog

RANKS_PER_STEP = 512
"""Ranks examined per step, about 2 us each."""
SPEEDS_PER_STEP = 2048
"""Speeds looked up per step, about 0.4 us each."""


class RankSnapshot(NamedTuple):
    """Snapshot of ranks and their links to a worker; valid while the table has this version.

    slots: int64[n]
    workers: see `PlanTargets`
    links: float64[n, 2], setup time in ms and bandwidth in bytes/s of the link to each rank
    """

    table: RankTable
    version: int
    worker_id: int
    ranks: list[Rank]
    slots: npt.NDArray[np.intp]
    workers: npt.NDArray[np.intp]
    links: npt.NDArray[np.float64]

    def is_current(self, table: RankTable, source: Rank) -> bool:
        """Return whether the snapshot is still current."""
        is_same = self.table is table and self.version == table.version
        return is_same and self.worker_id == source.worker_id


def take_rank_snapshot(
    table: RankTable, source: Rank, link_table: Mapping[str, WorkerLink]
) -> Generator[None, None, RankSnapshot]:
    """Take a snapshot, in steps. O(ranks)

    link_table: links by name, as in `move_cost.LINKS`
    Ranks that join or leave meanwhile are missing, and the snapshot is then outdated.
    """
    version, here = table.version, table.find_slot(source)
    leaves = TopologyPosition() if here is None else topology_position_of(table.row_at(here).worker)
    ranks: list[Rank] = []
    slots: list[int] = []
    links: list[WorkerLink] = []
    begins: list[int] = []
    left = RANKS_PER_STEP
    for worker_id in table.worker_ids():
        own = table.slots_of(worker_id)
        if own:
            begins.append(len(slots))
            links.append(
                find_link_between(
                    leaves, topology_position_of(table.row_at(own[0]).worker), link_table
                )
            )
            ranks += [table.row_at(slot).rank for slot in own]
            slots += own
        left -= 1 + len(own)
        if left <= 0:
            yield
            left = RANKS_PER_STEP
    at, workers = np.array(slots, np.intp), np.array(begins, np.intp)
    far = np.array([(link.setup_ms, link.bandwidth) for link in links]).reshape(-1, 2)
    by_rank = far.repeat(np.diff(workers, append=len(slots)), axis=0)
    return RankSnapshot(table, version, source.worker_id, ranks, at, workers, by_rank)


def look_up_speeds(
    ranks: Sequence[Rank], rate_of: Callable[[Rank], float]
) -> Generator[None, None, Floats]:
    """Return float64[n], the prefill rate of each rank in tokens/s, in steps. O(ranks)"""
    found = np.empty(len(ranks))
    for begin in range(0, len(ranks), SPEEDS_PER_STEP):
        if begin:
            yield
        end = begin + SPEEDS_PER_STEP
        found[begin:end] = [rate_of(rank) for rank in ranks[begin:end]]
    return found


def make_plan_targets(
    partition: Partition,
    snapshot: RankSnapshot,
    source: Rank,
    speeds: Floats,
    suspicious: Iterable[Rank],
) -> PlanTargets:
    """Return plan targets with current bookings; the source, ranks out of rotation and suspicious
    ranks get no room.

    speeds: rates of the ranks of the snapshot
    suspicious: serving ranks with failing checks
    O(ranks), about 20 ns each
    """
    table, load, at = partition.table, partition.load, snapshot.slots
    active = load.compute_active_blocks()[at].astype(np.float64)
    weights = table.columns.weight[at]
    # Infinite for unknown cache sizes, which therefore never limit a plan.
    free = np.floor(FILLABLE_SHARE * table.columns.kv_blocks[at]) - active
    serves = table.open_slots[at] & (weights > 0.0) & (at != table.find_slot(source))
    # A rank with failing checks is often the emptiest, because no answers come from there.
    failing = [slot for rank in suspicious if (slot := table.find_slot(rank)) is not None]
    serves &= ~np.isin(at, np.array(failing, np.intp))
    # Kept as rows without room instead of being removed: indices equal those of the snapshot.
    free[~serves] = -inf
    waiting = load.totals[at, layout.PREFILL_TOKENS]
    divisors = np.where(serves, weights, 1.0)
    rows = np.column_stack((free, waiting, speeds, snapshot.links, divisors))
    return PlanTargets(snapshot.ranks, rows, active, snapshot.workers)


class CacheLayouts:
    """KV cache layouts: declared by workers, else known for their model."""

    def __init__(
        self, catalog: WorkerCatalog, of_model: Callable[[str], CacheLayout | None] | None = None
    ):
        self._catalog = catalog
        self._of_model = of_model

    def layout_of(self, key: PartitionKey, worker_id: int) -> CacheLayout | None:
        """Return the layout in blocks of the worker's size; None means unknown."""
        worker = self._catalog.find_worker(worker_id)
        model_layout = None if self._of_model is None else self._of_model(key.model_name)
        if worker is None:
            return model_layout
        size, own = worker.registration.block_size or 0, worker.registration.kv_layout
        if own is not None:
            heads = (
                own.layers,
                own.kv_heads,
                own.head_dim,
                own.dtype_bytes,
                own.tp,
            )
            return CacheLayout(size, *heads)
        return None if model_layout is None else model_layout._replace(block_size=size)


def topology_position_of(worker: RegisteredWorker) -> TopologyPosition:
    """Return the declared topology position of a worker."""
    given = worker.registration
    of = given.topology_domains.get
    return TopologyPosition(given.kv_transfer_domain, of("rack"), of("fabric"), of("host"))
