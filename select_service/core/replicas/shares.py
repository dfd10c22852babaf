"""Which ranks are this replica's share, so that replicas seldom meet on one.

What a peer has booked in the last moments is not known here.  So each rank belongs to one of the
replicas that are alive, the same in the eyes of all (rendezvous hashing): of a rank and each
replica a hash is made, and the highest one has it.  Policies may make the ranks of others dearer.
When a replica comes or goes, only the ranks change hands that it has or had.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import Mask
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey, Rank
from select_service.core.replicas.origins import Origins
from select_service.core.workers.rank_table import RankTable

SHARERS_MAX = 64
"""Replicas that shares are made for; of more the ones with the lowest ids."""
TURN_SLOTS_MAX = 1024
"""Slots that one turn decides on, with SHARERS_MAX replicas about a millisecond."""

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mixed(words: Words) -> Words:
    """The finaliser of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))


def outside(ranks: Iterable[Rank], own: int, peers: Iterable[int]) -> Mask:
    """bool[n]: is the rank of a peer's share?  own, peers: router ids"""
    numbers = np.array([tuple(rank) for rank in ranks], np.uint64).reshape(-1, 2)
    names = _mixed(_mixed(numbers[:, 0] + _GOLDEN) + numbers[:, 1])
    mine = _mixed(names ^ np.uint64(own))
    found = np.zeros(len(names), np.bool_)
    for peer in peers:
        found |= _mixed(names ^ np.uint64(peer)) > mine
    return found


@dataclass(slots=True)
class _Pass:
    """How far the slots of a table are up to date with the replicas and its version then."""

    table: RankTable
    peers: tuple[int, ...] = ()
    version: int = -1
    first: int = 0

    def is_due(self, peers: tuple[int, ...]) -> bool:
        if self.peers != peers or self.version != self.table.version:
            self.peers, self.version, self.first = peers, self.table.version, 0
        return self.first < self.table.n_slots

    def go_on(self, own: int) -> None:
        """TURN_SLOTS_MAX more."""
        end = min(self.first + TURN_SLOTS_MAX, self.table.n_slots)
        slots = [slot for slot in range(self.first, end) if self.table.is_taken(slot)]
        self.first = end
        if slots:
            ranks = (self.table.row(slot).rank for slot in slots)
            self.table.set_outside(slots, outside(ranks, own, self.peers))


class Shares:
    """Keeps the rank tables up to date with who is alive, some slots a turn."""

    def __init__(
        self, partitions: Mapping[PartitionKey, Partition], origins: Origins, own: int
    ) -> None:
        """own: our router id"""
        self._partitions, self._origins, self._own = partitions, origins, own
        self._passes: dict[PartitionKey, _Pass] = {}

    def tick(self, now: float) -> bool:
        """One turn, at least once a second.  Returns whether there is more to do."""
        peers = self._origins.alive(now)[: SHARERS_MAX - 1]
        if not peers and not self._passes:
            return False  # a replica that was always alone
        tables = {key: partition.table for key, partition in self._partitions.items()}
        self._passes = {key: self._pass_of(key, table) for key, table in tables.items()}
        for pass_ in self._passes.values():
            if pass_.is_due(peers):
                pass_.go_on(self._own)
                return True
        return False

    def _pass_of(self, key: PartitionKey, table: RankTable) -> _Pass:
        old = self._passes.get(key)
        return old if old is not None and old.table is table else _Pass(table)
