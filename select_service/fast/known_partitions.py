"""The partitions that were asked for, as compiled code finds them by their names."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import name_array
from select_service.core.fleet.fleet import PARTITIONS_MAX, Fleet
from select_service.core.fleet.partition import Partition
from select_service.core.identity import PartitionKey
from select_service.core.load.reservations import Reservations
from select_service.fast import serve_layout as layout
from select_service.fast.answers import Answers
from select_service.fast.request_layout import NONE

assert layout.N_PLACES > 2 * PARTITIONS_MAX


class Known(NamedTuple):
    """A partition with what belongs to its row.  names: kept for the row"""

    partition: Partition
    answers: Answers
    names: npt.NDArray[np.uint8]


class KnownPartitions:
    """Learned one by one; forgotten together when one of the fleet goes or is replaced."""

    def __init__(
        self,
        fleet: Fleet,
        held: Reservations,
        state: npt.NDArray[np.int64],
        reader: int = 0,
        tenants: frozenset[str] | None = None,
    ) -> None:
        """reader: whose plan of each partition is used, see `Placing.plan_for`

        tenants: no partitions of others are known; None: of all
        """
        self._tenants = tenants
        self._fleet = fleet
        self._held = held
        self._state = state
        self._reader = reader
        self._known: list[Known] = []
        self._rows = np.zeros((PARTITIONS_MAX, layout.ROW_LENGTH), np.int64)
        self._places = np.empty(layout.N_PLACES, np.int64)
        name_array(state, layout.ROWS, self._rows)
        name_array(state, layout.PLACES, self._places)
        name_array(state, layout.CHANGES, fleet.changes)
        self._forget()

    def at(self, row: int) -> Known:
        return self._known[row]

    def look(self) -> bool:
        """Keep nothing alive that the fleet has no more.  Was everything forgotten?"""
        is_old = bool(self._state[layout.SEEN] != self._fleet.changes[0])
        if is_old:
            self._forget()
        return is_old

    def _forget(self) -> None:
        self._known.clear()
        self._places[:] = NONE
        self._state[layout.SEEN] = self._fleet.changes[0]
        self._state[layout.AT_ROW] = NONE

    def learn(self, key: PartitionKey) -> bool:
        """Let AT_ROW be a row of the partition, whose names have NAMES_HASH; False: none for us.

        To be called when it was not found.
        """
        partition = self._fleet.partitions.get(key)
        if partition is None or (self._tenants is not None and key.tenant_id not in self._tenants):
            return False
        number = len(self._known)
        row = self._rows[number]
        model, tenant = key.model_name.encode(), key.tenant_id.encode()
        names = np.frombuffer(model + tenant, np.uint8)
        name_array(row, layout.NAMES, names)
        name_array(row, layout.PLAN, partition.placing.plan_for(self._reader))
        name_array(row, layout.LIMITS, partition.limits)
        row[layout.MODEL_BYTES] = len(model)
        row[layout.IS_EAGLE] = partition.is_eagle
        row[layout.MUTEX] = partition.index.lock.address
        row[layout.SUM] = NONE
        self._known.append(Known(partition, Answers(partition, row), names))
        self._place(number)
        return True

    def booked(self, number: int) -> None:
        """The ledger knows the partition of that row: kernels may book there from now on."""
        key = self._known[number].partition.key
        self._rows[number, layout.SUM] = self._held.sums.number_of(key, None)

    def _place(self, number: int) -> None:
        at = int(self._state[layout.NAMES_HASH]) % layout.N_PLACES
        while self._places[at] != NONE:
            at = (at + 1) % layout.N_PLACES
        self._places[at] = number
        self._state[layout.AT_ROW] = number
