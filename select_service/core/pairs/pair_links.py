"""Links and roles of the ranks of each partition, kept until ranks or facts change."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from select_service.core.array_types import Mask
from select_service.core.identity import PartitionKey
from select_service.core.pairs.pair_placer import PairMasks, PairPlacer
from select_service.core.pairs.pair_traffic import PairTraffic
from select_service.core.registry.fleet.partition import Partition
from select_service.core.workers.rank_table import RankTable
from select_service.core.workers.transfer_prices import LinkPosition, link_position_of
from select_service.schemas.pairs import SelectPairAndReserveRequest, SelectPairRequest
from select_service.schemas.workers import WorkerRegistration

PairRequest: TypeAlias = SelectPairRequest | SelectPairAndReserveRequest


class RankLink(NamedTuple):
    """Registration of a rank's worker, and its position for transfers."""

    registration: WorkerRegistration
    position: LinkPosition


class LinkState(NamedTuple):
    """Pair placer of a partition, with the version of the rank table that the links are of.

    ranks: by slot
    prefills, decodes: bool[n_slots], ranks with this part in their role
    """

    placer: PairPlacer
    traffic: PairTraffic
    version: int
    ranks: Mapping[int, RankLink]
    prefills: Mask
    decodes: Mask


class PairLinks:
    """Links of all partitions in which pairs were chosen."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Partition, LinkState] = WeakKeyDictionary()

    def links_of(self, partition: Partition) -> LinkState:
        """Return the pair placer of a partition, with the links of its present ranks.

        O(1) unless ranks or facts have changed.
        """
        table, state = partition.table, self._of.get(partition)
        if state is None or state.version != table.version:
            placer = PairPlacer(partition.placer) if state is None else state.placer
            traffic = PairTraffic(placer) if state is None else state.traffic
            ranks = _find_rank_links(table, {} if state is None else state.ranks)
            positions = {slot: rank.position for slot, rank in ranks.items()}
            placer.update_links(positions, table.n_slots, table.median_speed or None)
            masks = (_ranks_without_role(ranks, table, role) for role in ("decode", "prefill"))
            self._of[partition] = state = LinkState(placer, traffic, table.version, ranks, *masks)
        return state

    def find_current_traffic(self, partition: Partition) -> PairTraffic | None:
        """Return the counters of a partition, with the links of its present ranks; None if no
        pair was chosen there.
        """
        return self.links_of(partition).traffic if partition in self._of else None

    def find_traffic(self, partition: Partition) -> PairTraffic | None:
        """Return the counters of a partition; None if no pair was chosen there."""
        state = self._of.get(partition)
        return None if state is None else state.traffic

    def iterate_links(self) -> Iterator[tuple[PartitionKey, LinkState]]:
        """Iterate over the links of all partitions in which pairs were chosen."""
        for partition, state in list(self._of.items()):
            yield partition.key, state


def _find_rank_links(table: RankTable, known: Mapping[int, RankLink]) -> dict[int, RankLink]:
    """Return the link of each slot; known: links that are kept while the registration is."""
    found = {}
    for _, slot in table.iterate_slots():
        worker, kept = table.row_at(slot).worker, known.get(slot)
        if kept is None or kept.registration is not worker.registration:
            kept = RankLink(worker.registration, link_position_of(worker))
        found[slot] = kept
    return found


def _ranks_without_role(ranks: Mapping[int, RankLink], table: RankTable, role: str) -> Mask:
    mask = np.zeros(table.n_slots, np.bool_)
    mask[list(ranks)] = [rank.registration.role != role for rank in ranks.values()]
    return mask


def pair_masks(
    table: RankTable, links: LinkState, request: PairRequest, eligible: Mask
) -> PairMasks:
    """Return the ranks for each leg and for both, by roles and constraints.

    A rank of the role `decode` may prefill the requests decoded there, because engines of both
    roles can; a rank of the role `prefill` never decodes.
    """
    masks = PairMasks(np.empty((3, len(eligible)), np.bool_))
    prefill, decode = masks.prefill, masks.decode
    np.logical_and(eligible, links.prefills, out=prefill)
    np.logical_and(eligible, links.decodes, out=decode)
    for mask, constraints in (prefill, request.prefill), (decode, request.decode):
        if constraints is not None and constraints.allowed_worker_ids is not None:
            allowed = np.zeros(len(mask), np.bool_)
            allowed[table.slots_of_any(constraints.allowed_worker_ids)] = True
            mask &= allowed
    masks.both[:] = decode if request.local != "never" else False
    if request.local == "always":
        prefill[:] = False
    return masks
