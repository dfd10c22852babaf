"""What arrays over the slots of a partition are called."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.bool_]
"""bool[n_slots]: which of the slots."""
Floats: TypeAlias = npt.NDArray[np.float64]
"""float64[n_slots]"""


def name_array(header: npt.NDArray[np.int64], pair: int, array: npt.NDArray[Any]) -> None:
    """Let kernels find an array by its address and length at `pair`; the caller keeps it alive."""
    header[pair], header[pair + 1] = array.ctypes.data, array.size
