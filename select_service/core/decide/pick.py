"""One slot out of the costs."""

import numpy as np
import numpy.typing as npt

from select_service.core.load import kernels


def pick(
    costs: npt.NDArray[np.float64],
    eligible: npt.NDArray[np.bool_],
    temperature: float,
    draw: float,
) -> int:
    """An eligible slot, or -1 when there is none.

    Temperature 0: the cheapest, exact ties uniform at random.  Above: probability proportional to
    exp(-(cost - min) / ((max - min) * temperature)), uniform when all costs are equal.

    costs: float64[n_slots], eligible: bool[n_slots], draw: uniform in [0, 1)
    """
    assert 0.0 <= draw < 1.0
    if temperature > 0.0:
        return int(kernels.pick_softmax(costs, eligible, temperature, draw))
    return int(kernels.pick_cheapest(costs, eligible, draw))
