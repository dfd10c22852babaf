"""Sums over reservations by partition and by admitting replica.

Two replicas compare these few numbers instead of their reservations.  The sum of marks does not
depend on the order, and equal sums mean equal sets of ids and ranks, except with a chance of
2**-64.

The course of reservations admitted by this replica is counted as well (observed_layout).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.hashing.seeds import U64_MASK
from select_service.core.identity import PartitionKey
from select_service.core.load.compiled import observation_layout
from select_service.core.load.compiled.ledger_layout import (
    OBSERVED_PAIR,
    SUM_BLOCKS,
    SUM_NUMBERS,
    SUMS,
)
from select_service.core.load.ledger_memory import LedgerMemory

_INITIAL_ROWS = 16
ObservedCounters = npt.NDArray[np.int64]
_CHECKS_PER_NEW_SUM = 2
"""Old sums checked for removal with every new sum."""


class OriginSum(NamedTuple):
    """Sum over reservations.

    marks: sum of the reservations' marks, modulo 2**64
    prefilling: number of unfinished prefills; a fully cached prompt has no tokens but counts here
    """

    requests: int = 0
    prefill_tokens: int = 0
    marks: int = 0
    prefilling: int = 0


EMPTY_SUM = OriginSum()


class PartitionOrigin(NamedTuple):
    """Subject of a sum; origin None is this replica."""

    key: PartitionKey
    origin: int | None


class OriginSums:
    """Sums by (partition, origin).  Kernels change the numbers; this class maps numbers to
    subjects.
    """

    def __init__(
        self, memory: LedgerMemory, block_size_of: Callable[[PartitionKey], int | None]
    ) -> None:
        """Build an empty table of sums.

        block_size_of: returns the block size of a partition still open for bookings, else None
        """
        self._memory = memory
        self._block_size_of = block_size_of
        self._rows = np.zeros((_INITIAL_ROWS, SUM_NUMBERS), np.int64)
        memory.set_array(SUMS, self._rows)
        self._subjects: list[PartitionOrigin | None] = []
        self._numbers: dict[int | None, dict[PartitionKey, int]] = {}
        self._free: list[int] = []
        self._looked_at = 0
        self._observed: dict[PartitionKey, ObservedCounters] = {}
        self.changes = np.zeros(1, np.int64)
        """Number of times a row has changed its subject."""

    def number_of(self, key: PartitionKey, origin: int | None) -> int:
        """Return the row of a sum, created if missing."""
        mine = self._numbers.get(origin)
        found = None if mine is None else mine.get(key)
        return self._add_subject(PartitionOrigin(key, origin)) if found is None else found

    def tenants_mask(self, tenants: frozenset[str]) -> npt.NDArray[np.bool_]:
        """Return a mask of the sums of these tenants, valid while `changes` stays.  O(sums)"""
        places = self._subjects
        return np.array([p is not None and p.key.tenant_id in tenants for p in places], np.bool_)

    def count_reservations(self, numbers: npt.NDArray[np.bool_]) -> tuple[int, int]:
        """Return the reservations and the prompt blocks of these sums together.  O(sums)"""
        rows = self._rows[: len(numbers)][numbers]
        return int(rows[:, 0].sum()), int(rows[:, SUM_BLOCKS].sum())

    def subject_of(self, number: int) -> PartitionOrigin:
        """Return the subject of a used row."""
        place = self._subjects[number]
        assert place is not None
        return place

    def __len__(self) -> int:
        """Return the number of nonempty sums, over all origins."""
        return int(np.count_nonzero(self._rows[:, 0]))

    def peer_origins(self) -> Iterator[int]:
        """Iterate over the other replicas with reservations here.  O(sums)"""
        found = dict.fromkeys(self.subject_of(number).origin for number in self._nonempty_rows())
        return (origin for origin in found if origin is not None)

    def sums_of_origin(self, origin: int | None) -> Mapping[PartitionKey, OriginSum]:
        """Return the nonempty sums of an origin, by partition."""
        numbers = self._numbers.get(origin, {})
        sums = {key: self._read_sum(number) for key, number in numbers.items()}
        return {key: held for key, held in sums.items() if held.requests}

    def iterate_sums(self) -> Iterator[tuple[PartitionOrigin, OriginSum]]:
        """Iterate over all nonempty sums.  O(sums)"""
        for number in self._nonempty_rows():
            yield self.subject_of(number), self._read_sum(number)

    def _nonempty_rows(self) -> list[int]:
        live: list[int] = np.flatnonzero(self._rows[:, 0]).tolist()
        return live

    def _read_sum(self, number: int) -> OriginSum:
        requests, tokens, marks, prefilling, *_ = self._rows[number].tolist()
        return OriginSum(requests, tokens, marks & U64_MASK, prefilling)

    def _add_subject(self, place: PartitionOrigin) -> int:
        for _ in range(min(_CHECKS_PER_NEW_SUM, len(self._subjects))):
            # Two checks per new sum keep the table proportional to its use without a scan.
            self._looked_at = (self._looked_at + 1) % len(self._subjects)
            self._forget_if_idle(self._looked_at)
        if not self._free:
            self._free.append(len(self._subjects))
            self._subjects.append(None)
            self._make_room()
        number = self._free.pop()
        self._subjects[number] = place
        self.changes += 1
        self._numbers.setdefault(place.origin, {})[place.key] = number
        if place.origin is None:
            self._start_observing(place.key, number)
        return number

    def find_observed(self, key: PartitionKey) -> ObservedCounters | None:
        """Return the counters of this replica's reservations of a partition.  None before the
        first.
        """
        return self._observed.get(key)

    def set_block_size(self, key: PartitionKey, block_size: int) -> None:
        """Set the block size of a partition, in tokens."""
        if key in self._observed:
            self._observed[key][observation_layout.BLOCK_SIZE] = block_size

    def _start_observing(self, key: PartitionKey, number: int) -> None:
        """Start counting the course of reservations booked under the row."""
        observed = np.zeros(observation_layout.OBSERVED_LENGTH, np.int64)
        observed[observation_layout.BLOCK_SIZE] = self._block_size_of(key) or 1
        for samples in (observation_layout.PREFILLS, observation_layout.DECODES):
            observed[samples + observation_layout.STRIDE] = 1
        self._observed[key] = observed
        self._rows[number, OBSERVED_PAIR : OBSERVED_PAIR + 2] = observed.ctypes.data, observed.size

    def _forget_if_idle(self, number: int) -> None:
        place = self._subjects[number]
        if place is None or self._rows[number, 0]:
            return
        if place.origin is None and self._block_size_of(place.key) is not None:
            return  # bookings in progress may still use the row
        mine = self._numbers[place.origin]
        del mine[place.key]
        if not mine:
            del self._numbers[place.origin]
        self._subjects[number] = None
        if place.origin is None:
            del self._observed[place.key]
            self._rows[number, OBSERVED_PAIR : OBSERVED_PAIR + 2] = 0
        self._free.append(number)

    def _make_room(self) -> None:
        if len(self._subjects) > len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._memory.set_array(SUMS, self._rows)
