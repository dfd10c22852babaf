"""How many reservations of somebody live, and their prompt blocks: numbers that the kernel counts
down that ends them.  They stay where they are, and the memory of the ledger keeps them there."""

import numpy as np


class LiveCount:
    """numbers: int64[2]: reservations, and their prompt blocks;  address: of the numbers"""

    __slots__ = ("_array", "address", "numbers")

    def __init__(self) -> None:
        self._array = np.zeros(2, np.int64)
        self.numbers = self._array.data
        self.address = self._array.ctypes.data
