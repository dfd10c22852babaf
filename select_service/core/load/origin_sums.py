"""Sums over reservations by partition and by the replica that admitted them.

Two replicas compare these few numbers instead of their reservations.  The sum of marks is
independent of order, and equal sums mean, but for a chance of 2**-64, equal sets of ids and ranks.

Of what this replica has admitted it is also counted what becomes of it (observed_layout).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from indexer.hashing.seeds import U64_MASK
from select_service.core.identity import PartitionKey
from select_service.core.load import observed_layout
from select_service.core.load.ledger_layout import OBSERVED, SUM_BLOCKS, SUM_NUMBERS, SUMS
from select_service.core.load.ledger_memory import LedgerMemory

_ROWS_AT_FIRST = 16
Observed = npt.NDArray[np.int64]
_LOOKS_PER_NEW = 2
"""Old sums that are looked at, whether they may go, for every new one."""


class Sum(NamedTuple):
    """`marks` is the sum of the reservations' marks, modulo 2**64.

    prefilling: those whose prefill is not over; with all of a prompt cached, one has no tokens
    """

    requests: int = 0
    prefill_tokens: int = 0
    marks: int = 0
    prefilling: int = 0


NOTHING = Sum()


class Place(NamedTuple):
    """What a sum is about; origin None is this replica."""

    key: PartitionKey
    origin: int | None


class OriginSums:
    """(partition, origin) -> Sum.  Kernels change the numbers; here is what they are about."""

    def __init__(
        self, memory: LedgerMemory, block_size_of: Callable[[PartitionKey], int | None]
    ) -> None:
        """block_size_of: of a partition in which a reservation may still be booked; else None"""
        self._memory = memory
        self._block_size_of = block_size_of
        self._rows = np.zeros((_ROWS_AT_FIRST, SUM_NUMBERS), np.int64)
        memory.name(SUMS, self._rows)
        self._places: list[Place | None] = []
        self._numbers: dict[int | None, dict[PartitionKey, int]] = {}
        self._free: list[int] = []
        self._looked_at = 0
        self._observed: dict[PartitionKey, Observed] = {}
        self.changes = np.zeros(1, np.int64)
        """How often a number has come to stand for another place."""

    def number_of(self, key: PartitionKey, origin: int | None) -> int:
        """Its row, made when there was none."""
        mine = self._numbers.get(origin)
        found = None if mine is None else mine.get(key)
        return self._new(Place(key, origin)) if found is None else found

    def within(self, tenants: frozenset[str]) -> npt.NDArray[np.bool_]:
        """By number: is it of one of these tenants?  As long as `changes` stays.  O(sums)"""
        places = self._places
        return np.array([p is not None and p.key.tenant_id in tenants for p in places], np.bool_)

    def counted(self, numbers: npt.NDArray[np.bool_]) -> tuple[int, int]:
        """Return the reservations and the prompt blocks of these sums together.  O(sums)"""
        rows = self._rows[: len(numbers)][numbers]
        return int(rows[:, 0].sum()), int(rows[:, SUM_BLOCKS].sum())

    def place(self, number: int) -> Place:
        """What a row that counts something is about."""
        place = self._places[number]
        assert place is not None
        return place

    def __len__(self) -> int:
        """Sums of something, over all origins."""
        return int(np.count_nonzero(self._rows[:, 0]))

    def origins(self) -> Iterator[int]:
        """Those of whose reservations there are any, without this replica.  O(sums)"""
        found = dict.fromkeys(self.place(number).origin for number in self._live())
        return (origin for origin in found if origin is not None)

    def of(self, origin: int | None) -> Mapping[PartitionKey, Sum]:
        """What there is of one origin, by partition."""
        numbers = self._numbers.get(origin, {})
        sums = {key: self._sum(number) for key, number in numbers.items()}
        return {key: held for key, held in sums.items() if held.requests}

    def items(self) -> Iterator[tuple[Place, Sum]]:
        """All of them.  O(sums)"""
        for number in self._live():
            yield self.place(number), self._sum(number)

    def _live(self) -> list[int]:
        live: list[int] = np.flatnonzero(self._rows[:, 0]).tolist()
        return live

    def _sum(self, number: int) -> Sum:
        requests, tokens, marks, prefilling, *_ = self._rows[number].tolist()
        return Sum(requests, tokens, marks & U64_MASK, prefilling)

    def _new(self, place: Place) -> int:
        for _ in range(min(_LOOKS_PER_NEW, len(self._places))):
            self._looked_at = (self._looked_at + 1) % len(self._places)
            self._forget_if_idle(self._looked_at)
        if not self._free:
            self._free.append(len(self._places))
            self._places.append(None)
            self._make_room()
        number = self._free.pop()
        self._places[number] = place
        self.changes += 1
        self._numbers.setdefault(place.origin, {})[place.key] = number
        if place.origin is None:
            self._observe(place.key, number)
        return number

    def observed(self, key: PartitionKey) -> Observed | None:
        """What is counted of our own reservations of a partition; None before the first."""
        return self._observed.get(key)

    def sized(self, key: PartitionKey, block_size: int) -> None:
        """Blocks of the partition are of so many tokens from now on."""
        if key in self._observed:
            self._observed[key][observed_layout.BLOCK_SIZE] = block_size

    def _observe(self, key: PartitionKey, number: int) -> None:
        """Let it be counted from now on what becomes of those that are booked under the number."""
        observed = np.zeros(observed_layout.OBSERVED_LENGTH, np.int64)
        observed[observed_layout.BLOCK_SIZE] = self._block_size_of(key) or 1
        for samples in (observed_layout.PREFILLS, observed_layout.DECODES):
            observed[samples + observed_layout.STRIDE] = 1
        self._observed[key] = observed
        self._rows[number, OBSERVED : OBSERVED + 2] = observed.ctypes.data, observed.size

    def _forget_if_idle(self, number: int) -> None:
        place = self._places[number]
        if place is None or self._rows[number, 0]:
            return
        if place.origin is None and self._block_size_of(place.key) is not None:
            return  # its number may be known to those who book
        mine = self._numbers[place.origin]
        del mine[place.key]
        if not mine:
            del self._numbers[place.origin]
        self._places[number] = None
        if place.origin is None:
            del self._observed[place.key]
            self._rows[number, OBSERVED : OBSERVED + 2] = 0
        self._free.append(number)

    def _make_room(self) -> None:
        if len(self._places) > len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._memory.name(SUMS, self._rows)
