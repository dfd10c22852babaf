"""What the weight of a rank makes of its cost, under every policy."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled


@compiled(error_model="numpy", forceinline=True)
def weighed(cost, weight, unit):
    """(cost + unit) / weight - unit: never NaN, infinite where the weight is 0, and the cost itself
    to the last bit where it is 1.

    unit: cost of one block, so that a weight counts where the cost is 0
    """
    inverse = 1.0 / weight
    found = cost * inverse + unit * (inverse - 1.0)
    return found if found < np.inf else np.inf
