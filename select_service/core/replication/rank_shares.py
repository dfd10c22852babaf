"""Shares of ranks: preferred ranks of each replica, so that replicas rarely choose the same rank.

Bookings of a peer in the last moments are unknown here. Each rank therefore belongs to one live
replica, computed equally everywhere by rendezvous hashing: the replica with the highest hash of
rank and replica owns the rank. Policies may add a cost to ranks of other replicas. When a replica
joins or leaves, only the ranks of that replica change owner.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from select_service.core.array_types import Mask
from select_service.core.identity import PartitionKey, Rank
from select_service.core.registry.fleet.partition import Partition
from select_service.core.replication.replica_liveness import ReplicaLiveness
from select_service.core.split_mix import finish_words, mix_words
from select_service.core.workers.rank_table import RankTable

SHARERS_MAX = 64
"""Maximum number of replicas with shares, by lowest id."""
TURN_SLOTS_MAX = 1024
"""Slots computed per turn, about one millisecond with SHARERS_MAX replicas."""


def find_outside(ranks: Iterable[Rank], own: int, peers: Iterable[int]) -> Mask:
    """Return bool[n]: True for ranks in the share of a peer. own, peers: router ids"""
    numbers = np.array([tuple(rank) for rank in ranks], np.uint64).reshape(-1, 2)
    names = finish_words(mix_words(numbers[:, 0]) + numbers[:, 1])
    mine = finish_words(names ^ np.uint64(own))
    found = np.zeros(len(names), np.bool_)
    for peer in peers:
        # Strictly greater: the own replica keeps a rank at equal hashes, which are improbable.
        found |= finish_words(names ^ np.uint64(peer)) > mine
    return found


@dataclass(slots=True)
class _TableUpdate:
    """Progress of updating one rank table to a set of replicas and a table version."""

    table: RankTable
    peers: tuple[int, ...] = ()
    version: int = -1
    first: int = 0

    def is_due(self, peers: tuple[int, ...]) -> bool:
        # Any change restarts the pass: half-updated shares are only suboptimal, never wrong.
        if self.peers != peers or self.version != self.table.version:
            self.peers, self.version, self.first = peers, self.table.version, 0
        return self.first < self.table.n_slots

    def update_some(self, own: int) -> None:
        """Update TURN_SLOTS_MAX more slots."""
        end = min(self.first + TURN_SLOTS_MAX, self.table.n_slots)
        slots = [slot for slot in range(self.first, end) if self.table.is_taken(slot)]
        self.first = end
        if slots:
            ranks = (self.table.row_at(slot).rank for slot in slots)
            self.table.set_outside(slots, find_outside(ranks, own, self.peers))


class RankShares:
    """Updater of the rank tables, some slots per turn."""

    def __init__(
        self, partitions: Mapping[PartitionKey, Partition], origins: ReplicaLiveness, own: int
    ) -> None:
        """Create the updater; own is the router id of this process."""
        self._partitions, self._origins, self._own = partitions, origins, own
        self._passes: dict[PartitionKey, _TableUpdate] = {}

    def run_turn(self, now: float) -> bool:
        """Work for one turn, at least once a second. Return whether more is left."""
        peers = self._origins.live_replicas(now)[: SHARERS_MAX - 1]
        if not peers and not self._passes:
            return False  # never had a peer
        tables = {key: partition.table for key, partition in self._partitions.items()}
        self._passes = {key: self._pass_of(key, table) for key, table in tables.items()}
        for pass_ in self._passes.values():
            if pass_.is_due(peers):
                pass_.update_some(self._own)
                return True
        return False

    def _pass_of(self, key: PartitionKey, table: RankTable) -> _TableUpdate:
        old = self._passes.get(key)
        return old if old is not None and old.table is table else _TableUpdate(table)
