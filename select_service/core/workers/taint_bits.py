"""Taint names as bits, so that the ranks with a taint are a mask over slots.

The first names of a partition get a bit each; a bit is freed when the last worker with its name
leaves. Further names store the set of their workers instead: slower but equally correct. Taints
belong to workers, so both forms are kept per worker and cost nothing per rank.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from select_service.core.array_types import Mask

TAINT_BITS = 64

Bits = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]


class TaintBits:
    """Taint names of a partition.

    The rank table owns the columns: the bits of each slot, and the number of its worker.
    """

    def __init__(self, n_bits: int = TAINT_BITS) -> None:
        self._bit_of: dict[str, int] = {}
        self._uses = [0] * n_bits
        self._beyond: dict[str, int] = {}
        """Workers with a name without a bit; each worker number is a bit of an integer."""
        self._names_of: dict[int, frozenset[str]] = {}

    def set_taints(self, number: int, names: Iterable[str]) -> None:
        """Set the complete taints of a worker. Raises MemoryError without changes."""
        old, new = self._names_of.get(number, frozenset()), frozenset(names)
        added: list[str] = []
        try:
            for name in new - old:
                self._add_name(name, number)
                added.append(name)
            self._names_of[number] = new
        except MemoryError:
            # Undo, so that a failed registration leaves no trace.
            for name in added:
                self._remove_name(name, number)
            raise
        for name in old - new:
            self._remove_name(name, number)

    def remove_worker(self, number: int) -> None:
        """Remove a worker."""
        for name in self._names_of.pop(number):
            self._remove_name(name, number)

    def bits_of(self, number: int) -> int:
        """Return the column value for the slots of a worker. O(its names)"""
        bits = 0
        for name in self._names_of[number]:
            bit = self._bit_of.get(name)
            bits |= 0 if bit is None else 1 << bit
        return bits

    def slots_with_taints(self, names: Iterable[str], column: Bits, numbers: Numbers) -> Mask:
        """Return bool[n_slots]: slots with all names; empty rows have arbitrary values.

        column: uint64[n_slots], bits of each slot
        numbers: int64[n_slots], worker number of each slot
        """
        required_bits, workers = 0, -1
        for name in names:
            if name in self._bit_of:
                required_bits |= 1 << self._bit_of[name]
            else:
                workers &= self._beyond.get(name, 0)
        bits = np.uint64(required_bits)
        mask: Mask = (column & bits) == bits
        if workers >= 0:
            mask &= _mask_of(workers, numbers)
        return mask

    def _add_name(self, name: str, number: int) -> None:
        """Add a name to a worker; a new name gets a bit if one is free."""
        if name in self._bit_of:
            self._uses[self._bit_of[name]] += 1
        # While in use, a name without a bit never gets one: its users' columns would have to be
        # rewritten.
        elif name in self._beyond or len(self._bit_of) == len(self._uses):
            self._beyond[name] = self._beyond.get(name, 0) | 1 << number
        else:
            bit = self._bit_of[name] = self._uses.index(0)
            self._uses[bit] = 1

    def _remove_name(self, name: str, number: int) -> None:
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
        """Assert internal consistency; used by tests."""
        bits = sorted(self._bit_of.values())
        assert bits == [bit for bit, uses in enumerate(self._uses) if uses]
        assert not self._bit_of.keys() & self._beyond.keys()
        for name, bit in self._bit_of.items():
            assert self._uses[bit] == sum(name in names for names in self._names_of.values())
        for name, workers in self._beyond.items():
            having = {number for number, names in self._names_of.items() if name in names}
            assert workers == sum(1 << number for number in having) > 0
        all_names = set().union(*self._names_of.values())
        assert all_names == self._bit_of.keys() | self._beyond.keys()


def _mask_of(workers: int, numbers: Numbers) -> Mask:
    """Return bool[n_slots]: slots of the workers with their number among the set bits of an
    integer.
    """
    n_bits = max(workers.bit_length(), int(numbers.max(initial=0)) + 1)
    packed = np.frombuffer(workers.to_bytes((n_bits + 7) // 8, "little"), np.uint8)
    has: Mask = np.unpackbits(packed, bitorder="little").view(np.bool_)
    mask: Mask = has[numbers]
    return mask
