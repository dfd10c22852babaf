"""The ranks of a partition, as a plan sees them."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.fleet.partition import Partition
from select_service.core.health.migration import Target
from select_service.core.health.move_cost import Place, link_between
from select_service.core.identity import Rank
from select_service.core.load import load_layout as layout
from select_service.core.workers.catalog import Worker

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


def place_of(worker: Worker) -> Place:
    """Where it says that it stands."""
    given = worker.given
    of = given.topology_domains.get
    return Place(given.kv_transfer_domain, of("rack"), of("fabric"), of("host"))
