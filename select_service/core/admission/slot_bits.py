"""Sets of slots as bits in arrays of words."""

import numpy as np
from numpy.typing import NDArray

from select_service.core.array_types import Mask

SlotBits = NDArray[np.int64]
"""int64[n_words]: bit s % 64 of word s // 64 for slot s."""

NO_SLOTS: SlotBits = np.zeros(0, np.int64)


def pack_mask(mask: Mask) -> SlotBits:
    """Return a mask as bits."""
    packed = np.packbits(mask, bitorder="little")
    words = np.zeros(-(-len(packed) // 8), np.int64)
    words.view(np.uint8)[: len(packed)] = packed
    return words


def unpack_mask(bits: SlotBits, n_slots: int) -> Mask:
    """Return a mask of the first `n_slots` slots."""
    mask = np.zeros(n_slots, np.bool_)
    found = np.unpackbits(bits.view(np.uint8), bitorder="little")[:n_slots]
    mask[: len(found)] = found
    return mask


def count_slots(bits: SlotBits) -> int:
    return int(np.bitwise_count(bits.view(np.uint64)).sum())
