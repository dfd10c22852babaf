"""Effect of a rank's weight on its cost, common to all policies."""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import compiled


@compiled(error_model="numpy", forceinline=True)
def apply_weight(cost, weight, unit):
    """Return (cost + unit) / weight - unit, never NaN.

    The result is infinite for weight 0 and equals the cost to the last bit for weight 1.

    unit: cost of a block, so that the weight has an effect on a cost of 0
    """
    inverse = 1.0 / weight
    found = cost * inverse + unit * (inverse - 1.0)
    # inf * 0 gives NaN, and the comparison maps NaN to infinity as well.
    return found if found < np.inf else np.inf
