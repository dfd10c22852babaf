"""Sums over reservations by partition and by the replica that admitted them.

Two replicas compare these few numbers instead of their reservations.  The sum of marks is
independent of order, and equal sums mean, but for a chance of 2**-64, equal sets of ids and ranks.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from indexer.hashing.hashes import U64_MASK
from select_service.core.identity import PartitionKey, Rank


class Sum(NamedTuple):
    """`marks` is the sum of the reservations' marks, modulo 2**64."""

    requests: int = 0
    prefill_tokens: int = 0
    marks: int = 0


NOTHING = Sum()
_NO_SUMS: Mapping[PartitionKey, Sum] = MappingProxyType({})


def mark_of(reservation_id: str, rank: Rank) -> int:
    """64-bit hash of an id and the rank it is booked on; the same in every replica."""
    return xxh3_64_intdigest(f"{reservation_id}\0{rank[0]}\0{rank[1]}".encode())


class OriginSums:
    """(partition, origin) -> Sum, where there is anything; origin None is this replica."""

    def __init__(self) -> None:
        self._of: dict[int | None, dict[PartitionKey, Sum]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Sums, over all origins."""
        return self._count

    def origins(self) -> Iterator[int]:
        """Those of whose reservations there are any, without this replica."""
        return (origin for origin in self._of if origin is not None)

    def of(self, origin: int | None) -> Mapping[PartitionKey, Sum]:
        """What there is of one origin, by partition."""
        return self._of.get(origin, _NO_SUMS)

    def items(self) -> Iterator[tuple[tuple[PartitionKey, int | None], Sum]]:
        """All of them.  O(sums)"""
        for origin, sums in self._of.items():
            for key, held in sums.items():
                yield (key, origin), held

    def add(self, key: PartitionKey, origin: int | None, prefill_tokens: int, mark: int) -> None:
        """One reservation more."""
        self._change(key, origin, Sum(1, prefill_tokens, mark))

    def remove(self, key: PartitionKey, origin: int | None, prefill_tokens: int, mark: int) -> None:
        """One reservation less, with the prefill tokens it still has."""
        self._change(key, origin, Sum(-1, -prefill_tokens, -mark))

    def complete_prefill(self, key: PartitionKey, origin: int | None, prefill_tokens: int) -> None:
        """A reservation gave prefill tokens back."""
        self._change(key, origin, Sum(0, -prefill_tokens, 0))

    def _change(self, key: PartitionKey, origin: int | None, by: Sum) -> None:
        mine = self._of.setdefault(origin, {})
        requests, tokens, marks = mine.get(key, NOTHING)
        self._count -= key in mine
        requests += by[0]
        if requests:
            marks = (marks + by[2]) & U64_MASK
            mine[key] = Sum(requests, tokens + by[1], marks)
            self._count += 1
            return
        mine.pop(key, None)
        if not mine:
            del self._of[origin]
