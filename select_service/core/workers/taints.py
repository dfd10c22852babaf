"""Names of taints as bits, so that who has which is a mask over slots.

The first names of a partition get a bit each, and a bit is free again when the last worker with its
name has gone.  A name beyond those keeps the set of its workers instead: slower, but just as right.
A taint is the worker's, so both are kept per worker and cost nothing per rank.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import Mask

TAINT_BITS = 64

Bits = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


class TaintNames:
    """The names in use in one partition.

    The columns belong to the rank table: the bits of each slot, and the number of its worker.
    """

    def __init__(self, n_bits: int = TAINT_BITS) -> None:
        self._bit_of: dict[str, int] = {}
        self._uses = [0] * n_bits
        self._beyond: dict[str, int] = {}
        """Numbers of the workers with a name that has no bit, each as a bit of an integer."""
        self._names_of: dict[int, frozenset[str]] = {}

    def put(self, number: int, names: Iterable[str]) -> None:
        """Note that a worker has these taints and no others.

        Raises MemoryError, and has changed nothing.
        """
        old, new = self._names_of.get(number, frozenset()), frozenset(names)
        added: list[str] = []
        try:
            for name in new - old:
                self._add(name, number)
                added.append(name)
            self._names_of[number] = new
        except MemoryError:
            for name in added:
                self._discard(name, number)
            raise
        for name in old - new:
            self._discard(name, number)

    def drop(self, number: int) -> None:
        """The worker is not there any more."""
        for name in self._names_of.pop(number):
            self._discard(name, number)

    def bits(self, number: int) -> int:
        """What stands in the column of the slots of a worker.  O(its names)"""
        bits = 0
        for name in self._names_of[number]:
            bit = self._bit_of.get(name)
            bits |= 0 if bit is None else 1 << bit
        return bits

    def having_all(self, names: Iterable[str], column: Bits, numbers: Numbers) -> Mask:
        """bool[n_slots]: the slots that have every one of the names; any value for no rank.

        column:  uint64[n_slots], the bits of each slot
        numbers: int64[n_slots], the number of its worker
        """
        wanted, workers = 0, -1
        for name in names:
            if name in self._bit_of:
                wanted |= 1 << self._bit_of[name]
            else:
                workers &= self._beyond.get(name, 0)
        bits = np.uint64(wanted)
        mask: Mask = (column & bits) == bits
        if workers >= 0:
            mask &= _mask_of(workers, numbers)
        return mask

    def _add(self, name: str, number: int) -> None:
        """A new name gets a bit if there is any."""
        if name in self._bit_of:
            self._uses[self._bit_of[name]] += 1
        elif name in self._beyond or len(self._bit_of) == len(self._uses):
            self._beyond[name] = self._beyond.get(name, 0) | 1 << number
        else:
            bit = self._bit_of[name] = self._uses.index(0)
            self._uses[bit] = 1

    def _discard(self, name: str, number: int) -> None:
        bit = self._bit_of.get(name)
        if bit is None:
            self._beyond[name] &= ~(1 << number)
            if not self._beyond[name]:
                del self._beyond[name]
            return
        self._uses[bit] -= 1
        if not self._uses[bit]:
            del self._bit_of[name]

    def check_invariants(self) -> None:
        """For tests."""
        bits = sorted(self._bit_of.values())
        assert bits == [bit for bit, uses in enumerate(self._uses) if uses]
        assert not self._bit_of.keys() & self._beyond.keys()
        for name, bit in self._bit_of.items():
            assert self._uses[bit] == sum(name in names for names in self._names_of.values())
        for name, workers in self._beyond.items():
            having = {number for number, names in self._names_of.items() if name in names}
            assert workers == sum(1 << number for number in having) > 0
        known = set().union(*self._names_of.values())
        assert known == self._bit_of.keys() | self._beyond.keys()


def _mask_of(workers: int, numbers: Numbers) -> Mask:
    """bool[n_slots]: the slots of the workers whose numbers are the set bits of an integer."""
    n_bits = max(workers.bit_length(), int(numbers.max(initial=0)) + 1)
    packed = np.frombuffer(workers.to_bytes((n_bits + 7) // 8, "little"), np.uint8)
    has: Mask = np.unpackbits(packed, bitorder="little").view(np.bool_)
    mask: Mask = has[numbers]
    return mask
