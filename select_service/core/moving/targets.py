"""The ranks of a partition, as a plan sees them."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.fleet.partition import Partition
from select_service.core.health.migration import Target
from select_service.core.health.move_cost import KvLayout, Place, link_between
from select_service.core.identity import PartitionKey, Rank
from select_service.core.load import load_layout as layout
from select_service.core.workers.catalog import Catalog, Worker

RateOf = Callable[[Rank], float]
"""Prefill tokens/s, as learnt, or what is usual."""


class Targets(NamedTuple):
    """Where a rank's reservations may go.

    slots: int64[n], of the targets, in the order of these
    at:    which of them a rank is
    """

    targets: Sequence[Target]
    slots: npt.NDArray[np.intp]
    at: Mapping[Rank, int]


def targets_of(partition: Partition, source: Rank, rate_of: RateOf) -> Targets:
    """All that serve, but the source.  O(ranks)"""
    table, load = partition.table, partition.load
    columns, here = table.columns, table.find(source)
    active = load.active_blocks().tolist()
    waiting = load.totals[:, layout.PREFILL_TOKENS].tolist()
    leaves = Place() if here is None else place_of(table.row(here).worker)
    targets, slots = [], []
    for rank, slot in sorted(table.slots()):
        weight, total = float(columns.weight[slot]), columns.kv_blocks[slot]
        if slot == here or not columns.open[slot] or weight <= 0.0:
            continue
        link = link_between(leaves, place_of(table.row(slot).worker))
        blocks = int(total) if np.isfinite(total) else None
        rate = rate_of(rank)
        targets.append(Target(rank, weight, blocks, active[slot], waiting[slot], link, rate))
        slots.append(slot)
    at = {target.rank: number for number, target in enumerate(targets)}
    return Targets(targets, np.array(slots, np.intp), at)


class Layouts:
    """Of the caches of workers, as they say it, else as it is known of their model."""

    def __init__(self, catalog: Catalog, of_model: Callable[[str], KvLayout | None] | None = None):
        self._catalog = catalog
        self._of_model = of_model

    def of(self, key: PartitionKey, worker_id: int) -> KvLayout | None:
        """None: unknown."""
        worker = self._catalog.find(worker_id)
        said = None if worker is None else worker.given.kv_layout
        if said is not None and worker is not None:
            heads = said.layers, said.kv_heads, said.head_dim, said.dtype_bytes, said.tp
            return KvLayout(worker.given.block_size or 0, *heads)
        return None if self._of_model is None else self._of_model(key.model_name)


def place_of(worker: Worker) -> Place:
    """Where it says that it stands."""
    given = worker.given
    of = given.topology_domains.get
    return Place(given.kv_transfer_domain, of("rack"), of("fabric"), of("host"))
