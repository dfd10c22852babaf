"""Credit of a slot for the tokens of a prompt that a shared cache holds.

    credit = floor(value * max(0, tokens - B * E))

E are the blocks that the slot holds itself in any tier, B is the block size.  `value` is 1 - k,
where k is the price of fetching a token, in tokens of prefill of the rank.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import compiled


@compiled(error_model="numpy", forceinline=True)
def shared_credit(shared, slot, held_tokens):
    """Return the credit of a slot, in tokens.

    shared: float64[2 * n_slots] of plan_layout, or a part of it, or empty
    """
    at = 2 * slot
    if at >= shared.shape[0]:
        return 0.0
    return np.floor(shared[at + 1] * max(0.0, shared[at] - held_tokens))
