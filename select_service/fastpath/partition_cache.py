"""Cache of partitions that compiled code finds by model and tenant."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import store_pointer
from select_service.core.identity import PartitionKey
from select_service.core.load.reservations import Reservations
from select_service.core.registry.fleet.fleet import WorkerFleet
from select_service.core.registry.fleet.partition import Partition
from select_service.core.registry.fleet.registration_rules import PARTITIONS_MAX
from select_service.core.sessions.session_router import SessionRouter
from select_service.fastpath import serve_layout as layout
from select_service.fastpath.pair_scenes import PairScene
from select_service.fastpath.parsing.request_layout import NONE
from select_service.fastpath.response_templates import ResponseTemplates

assert layout.N_PLACES > 2 * PARTITIONS_MAX


class CachedPartition(NamedTuple):
    """Cached partition with its row's data.  names: array kept alive for the row"""

    partition: Partition
    templates: ResponseTemplates
    names: npt.NDArray[np.uint8]


class PartitionCache:
    """Cache of partitions, filled on demand; cleared when a partition of the fleet goes or is
    replaced.
    """

    def __init__(
        self,
        fleet: WorkerFleet,
        held: Reservations,
        state: npt.NDArray[np.int64],
        sessions: SessionRouter,
        tenants: frozenset[str] | None = None,
    ) -> None:
        """Create an empty cache.

        tenants: owners of the partitions that may be cached; None means all tenants
        """
        self._tenants = tenants
        self._fleet = fleet
        self._held = held
        self._sessions = sessions
        self._state = state
        self._cached: list[CachedPartition] = []
        self.pair_scenes: dict[int, PairScene] = {}
        """Scenes of the rows with pairs; the owner replaces outdated scenes."""
        self._rows = np.zeros((PARTITIONS_MAX, layout.ROW_LENGTH), np.int64)
        self._places = np.empty(layout.N_PLACES, np.int64)
        store_pointer(state, layout.ROWS, self._rows)
        store_pointer(state, layout.PLACES, self._places)
        store_pointer(state, layout.CHANGES, fleet.partition_changes)
        self._clear_cache()

    def partition_at(self, row: int) -> CachedPartition:
        """Return the partition in a row."""
        return self._cached[row]

    def refresh_cache(self) -> None:
        """Clear an outdated cache, so that removed partitions are not kept alive."""
        # Rows contain raw addresses of the partition's arrays: one change invalidates all rows.
        if self._state[layout.CHANGES_SEEN] != self._fleet.partition_changes[0]:
            self._clear_cache()

    def _clear_cache(self) -> None:
        self._cached.clear()
        self.pair_scenes.clear()
        self._places[:] = NONE
        self._state[layout.CHANGES_SEEN] = self._fleet.partition_changes[0]
        self._state[layout.AT_ROW] = NONE

    def add_partition(self, key: PartitionKey) -> bool:
        """Add a partition that was not found, and point AT_ROW to its row.

        NAMES_HASH must have the hash of its names.  Returns False if there is no such partition for
        us.
        """
        partition = self._fleet.partitions.get(key)
        if partition is None or (self._tenants is not None and key.tenant_id not in self._tenants):
            return False
        if partition.hint_slots:  # answers about bookings have hints
            return False
        if self._fleet.needs_full_path(key.model_name):
            return False
        number = len(self._cached)
        row = self._rows[number]
        model, tenant = key.model_name.encode(), key.tenant_id.encode()
        names = np.frombuffer(model + tenant, np.uint8)
        store_pointer(row, layout.NAMES, names)
        store_pointer(row, layout.PLAN, partition.placer.plan)
        row[layout.MODEL_BYTES] = len(model)
        row[layout.IS_EAGLE] = partition.is_eagle
        row[layout.MUTEX] = partition.index.lock.address
        row[layout.SUM] = NONE
        table = self._sessions.directory.find_table(key)
        row[layout.SESSIONS] = 0 if table is None else table.address
        templates = ResponseTemplates(partition, row, self._sessions)
        self._cached.append(CachedPartition(partition, templates, names))
        self._insert_row(number)
        return True

    def has_sessions(self, number: int) -> bool:
        """Return whether a partition has a table of sessions."""
        return bool(self._rows[number, layout.SESSIONS])

    def add_sessions(self, number: int, now: float) -> bool:
        """Make the table of sessions of a partition; False if there are too many scopes."""
        partition = self._cached[number].partition
        directory = self._sessions.directory
        table = directory.make_table(partition.key, partition.block_size, now)
        self._rows[number, layout.SESSIONS] = 0 if table is None else table.address
        return table is not None

    def allow_booking(self, number: int) -> None:
        """Allow kernels to book in the partition of a row, which the ledger now knows."""
        key = self._cached[number].partition.key
        self._rows[number, layout.SUM] = self._held.sums.number_of(key, None)

    def ensure_booking(self, number: int) -> bool:
        """Return whether kernels may book in the partition of a row, as soon as the ledger knows
        it.
        """
        if self._rows[number, layout.SUM] == NONE:
            if self._cached[number].partition.account.registrar is not self._held.rows:
                return False
            self.allow_booking(number)
        return True

    def _insert_row(self, number: int) -> None:
        at = int(self._state[layout.NAMES_HASH]) % layout.N_PLACES
        # Open addressing with linear probing, as in partition_kernels.find_row.
        while self._places[at] != NONE:
            at = (at + 1) % layout.N_PLACES
        self._places[at] = number
        self._state[layout.AT_ROW] = number
