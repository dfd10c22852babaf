"""How many reservations of somebody live: a number that the kernel counts down that ends them.  It
stays where it is, and the memory of the ledger keeps it there."""

import numpy as np


class LiveCount:
    """numbers: int64[1]; address: of it"""

    __slots__ = ("_array", "address", "numbers")

    def __init__(self) -> None:
        self._array = np.zeros(1, np.int64)
        self.numbers = self._array.data
        self.address = self._array.ctypes.data
