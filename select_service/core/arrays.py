"""What arrays over the slots of a partition are called."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Mask: TypeAlias = npt.NDArray[np.bool_]
"""bool[n_slots]: which of the slots."""
Floats: TypeAlias = npt.NDArray[np.float64]
"""float64[n_slots]"""
