"""Names of taints as bits, so that who has which is a mask over slots.

The first names of a partition get a bit each, and a bit is free again when the last worker with its
name has gone.  A name beyond those keeps the set of its slots instead: slower, but just as right.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from select_service.core.arrays import Mask

TAINT_BITS = 64

Bits = npt.NDArray[np.uint64]


class TaintNames:
    """The names in use in one partition.  The column of bits belongs to the rank table."""

    def __init__(self, n_bits: int = TAINT_BITS) -> None:
        self._bit_of: dict[str, int] = {}
        self._uses = [0] * n_bits
        self._beyond: dict[str, set[int]] = {}

    def put(self, slot: int, names: Iterable[str]) -> int:
        """Note that a slot has these taints, each name once.  Returns its bits."""
        bits = 0
        for name in names:
            bit = self._given_bit(name)
            if bit is None:
                self._beyond.setdefault(name, set()).add(slot)
            else:
                self._uses[bit] += 1
                bits |= 1 << bit
        return bits

    def drop(self, slot: int, names: Iterable[str]) -> None:
        """Undo a `put` of the same slot and names."""
        for name in names:
            bit = self._bit_of.get(name)
            if bit is None:
                self._beyond[name].discard(slot)
                if not self._beyond[name]:
                    del self._beyond[name]
                continue
            self._uses[bit] -= 1
            if not self._uses[bit]:
                del self._bit_of[name]

    def having_all(self, names: Iterable[str], column: Bits) -> Mask:
        """bool[n_slots]: the slots that have every one of the names.

        column: uint64[n_slots], the bits of each slot
        """
        wanted, beyond = 0, []
        for name in names:
            if name in self._bit_of:
                wanted |= 1 << self._bit_of[name]
            else:
                beyond.append(name)
        bits = np.uint64(wanted)
        mask: Mask = (column & bits) == bits
        for name in beyond:
            mask &= self._mask_beyond(name, len(column))
        return mask

    def having(self, name: str, column: Bits) -> Mask:
        """bool[n_slots]: the slots that have this taint."""
        return self.having_all((name,), column)

    def _given_bit(self, name: str) -> int | None:
        """The bit of a name, a new one if there is any; None: it is kept as a set of slots."""
        bit = self._bit_of.get(name)
        if bit is not None or name in self._beyond or len(self._bit_of) == len(self._uses):
            return bit
        bit = self._uses.index(0)
        self._bit_of[name] = bit
        return bit

    def _mask_beyond(self, name: str, n_slots: int) -> Mask:
        mask = np.zeros(n_slots, np.bool_)
        mask[list(self._beyond.get(name, ()))] = True
        return mask

    def check_invariants(self) -> None:
        """For tests."""
        bits = sorted(self._bit_of.values())
        assert bits == [bit for bit, uses in enumerate(self._uses) if uses]
        assert not self._bit_of.keys() & self._beyond.keys()
        assert all(self._beyond.values())
