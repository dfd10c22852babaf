"""Types of arrays over the slots of a partition, and their registration in headers."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.bool_]
"""bool[n_slots], a selection of slots."""
Floats: TypeAlias = npt.NDArray[np.float64]
"""float64[n_slots]"""


def store_pointer(header: npt.NDArray[np.int64], pair: int, array: npt.NDArray[Any]) -> None:
    """Store address and length of an array at `pair` of a header; the caller keeps the array
    alive.
    """
    header[pair], header[pair + 1] = array.ctypes.data, array.size
