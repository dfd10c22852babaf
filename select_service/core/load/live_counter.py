"""Counter of live reservations and their prompt blocks.

The kernel ending a reservation decrements the counter.  The memory stays in place, kept alive by
the memory of the ledger.
"""

import numpy as np


class LiveCounter:
    """Counter with a fixed address.

    numbers: int64[2], reservations and their prompt blocks
    address: address of the numbers
    """

    __slots__ = ("_array", "address", "numbers")

    def __init__(self) -> None:
        self._array = np.zeros(2, np.int64)
        self.numbers = self._array.data
        self.address = self._array.ctypes.data
