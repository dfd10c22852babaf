"""The ranks of a partition, as a plan sees them."""

from collections.abc import Callable, Generator, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import Floats
from select_service.core.fleet.partition import Partition
from select_service.core.health.move_cost import (
    KvLayout,
    Link,
    Place,
    link_between,
)
from select_service.core.health.plan_targets import ROOM_SHARE, PlanTargets
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import load_layout as layout
from select_service.core.workers.catalog import Catalog, Worker
from select_service.core.workers.rank_table import RankTable

RANKS_PER_STEP = 512
"""Ranks that are looked at, some 2 us each, before others get their turn."""
SPEEDS_PER_STEP = 2048
"""Ranks whose speed is looked up, some 0.4 us each, before others get their turn."""


class Standing(NamedTuple):
    """Who stands where in a table, by rank, and how far from one worker; as long as the table has
    this version.

    slots: int64[n];  workers: see `PlanTargets`
    links: float64[n, 2], milliseconds and bytes/s of the link to each
    """

    table: RankTable
    version: int
    worker_id: int
    ranks: list[Rank]
    slots: npt.NDArray[np.intp]
    workers: npt.NDArray[np.intp]
    links: npt.NDArray[np.float64]

    def holds(self, table: RankTable, source: Rank) -> bool:
        """Is it what would be found now?"""
        is_same = self.table is table and self.version == table.version
        return is_same and self.worker_id == source.worker_id


def standing(table: RankTable, source: Rank) -> Generator[None, None, Standing]:
    """In steps.  Who comes or goes meanwhile is missing, and then it does not hold.  O(ranks)"""
    version, here = table.version, table.find(source)
    leaves = Place() if here is None else place_of(table.row(here).worker)
    ranks: list[Rank] = []
    slots: list[int] = []
    links: list[Link] = []
    begins: list[int] = []
    left = RANKS_PER_STEP
    for worker_id in table.workers():
        own = table.slots_of(worker_id)
        if own:
            begins.append(len(slots))
            links.append(link_between(leaves, place_of(table.row(own[0]).worker)))
            ranks += [table.row(slot).rank for slot in own]
            slots += own
        left -= 1 + len(own)
        if left <= 0:
            yield
            left = RANKS_PER_STEP
    at, workers = np.array(slots, np.intp), np.array(begins, np.intp)
    far = np.array([(link.setup_ms, link.bandwidth) for link in links]).reshape(-1, 2)
    by_rank = far.repeat(np.diff(workers, append=len(slots)), axis=0)
    return Standing(table, version, source.worker_id, ranks, at, workers, by_rank)


def speeds_of(
    ranks: Sequence[Rank], rate_of: Callable[[Rank], float]
) -> Generator[None, None, Floats]:
    """float64[n], prefill tokens/s of each.  In steps.  O(ranks)"""
    found = np.empty(len(ranks))
    for begin in range(0, len(ranks), SPEEDS_PER_STEP):
        if begin:
            yield
        end = begin + SPEEDS_PER_STEP
        found[begin:end] = [rate_of(rank) for rank in ranks[begin:end]]
    return found


def targets_of(partition: Partition, known: Standing, source: Rank, speeds: Floats) -> PlanTargets:
    """With what is booked now; the source takes nobody, nor does who does not serve.

    speeds: of the known ranks.  O(ranks), some 20 ns each
    """
    table, load, at = partition.table, partition.load, known.slots
    active = load.active_blocks()[at].astype(np.float64)
    weights = table.columns.weight[at]
    room = np.floor(ROOM_SHARE * table.columns.kv_blocks[at]) - active
    serves = table.open[at] & (weights > 0.0) & (at != table.find(source))
    room[~serves] = -inf
    waiting = load.totals[at, layout.PREFILL_TOKENS]
    divisors = np.where(serves, weights, 1.0)
    rows = np.column_stack((room, waiting, speeds, known.links, divisors))
    return PlanTargets(known.ranks, rows, active, known.workers)


class Layouts:
    """Of the caches of workers, as they say it, else as it is known of their model."""

    def __init__(self, catalog: Catalog, of_model: Callable[[str], KvLayout | None] | None = None):
        self._catalog = catalog
        self._of_model = of_model

    def of(self, key: PartitionKey, worker_id: int) -> KvLayout | None:
        """In blocks as plans count them, those of the worker.  None: unknown."""
        worker = self._catalog.find(worker_id)
        known = None if self._of_model is None else self._of_model(key.model_name)
        if worker is None:
            return known
        size, said = worker.given.block_size or 0, worker.given.kv_layout
        if said is not None:
            heads = said.layers, said.kv_heads, said.head_dim, said.dtype_bytes, said.tp
            return KvLayout(size, *heads)
        return None if known is None else known._replace(block_size=size)


def place_of(worker: Worker) -> Place:
    """Where it says that it stands."""
    given = worker.given
    of = given.topology_domains.get
    return Place(given.kv_transfer_domain, of("rack"), of("fabric"), of("host"))
