"""Credit of slots for the tokens of a prompt that a shared cache holds.

    missing = max(0, tokens - reusable)
    credit  = floor(value * missing)

`reusable` are the tokens of the prompt that the slot holds itself: whole blocks in any tier, and
the tokens behind them where ranks have several cache groups.  `value` is 1 - k, where k is the
price of fetching a token, in tokens of prefill of the rank.
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import (
    INSIDE,
    LAYOUT_OF,
    LAYOUTS,
    N_TIERS,
    I,
    f64_view,
    i64_view,
    tiers_view,
)
from indexer.index.reuse_kernels import replayed_tokens
from indexer.jit.decorators import compiled
from select_service.core.placement.plan_layout import (
    BLOCK_SIZE,
    INDEX,
    MATCHED,
    SHARED,
)
from select_service.core.shared_caches.shared_layout import (
    SHARED_CREDIT,
    SHARED_FIELDS,
    SHARED_MISSING,
    SHARED_TOKENS,
    SHARED_VALUE,
)


@compiled()
def _reusable_tokens(index, matched, slot, block_size):
    """Return the tokens of the last match that a slot holds itself, as in its overlap."""
    tokens = I(matched[slot, N_TIERS - 1]) * block_size
    if index[LAYOUTS] == 0:
        return tokens
    inside, layout_of = i64_view(index, INSIDE), i64_view(index, LAYOUT_OF)
    if slot >= layout_of.shape[0] or layout_of[slot] == 0:
        return tokens
    tokens += inside[slot]
    # The rank holds what the engine computes again, so that no cache can save it.
    if I(matched[slot, 0]) * block_size + inside[slot] > 0:
        tokens += replayed_tokens(index, slot)
    return tokens


@compiled(error_model="numpy")
def fill_credits(plan):
    """Fill the missing tokens and the credits of all slots, after a match."""
    index, shared = i64_view(plan, INDEX), f64_view(plan, SHARED)
    matched = tiers_view(plan, MATCHED)
    for slot in range(shared.shape[0] // SHARED_FIELDS):
        at = slot * SHARED_FIELDS
        reusable = float(_reusable_tokens(index, matched, slot, plan[BLOCK_SIZE]))
        missing = max(0.0, shared[at + SHARED_TOKENS] - reusable)
        shared[at + SHARED_MISSING] = missing
        shared[at + SHARED_CREDIT] = np.floor(shared[at + SHARED_VALUE] * missing)


@compiled(forceinline=True)
def shared_credit(shared, slot):
    """Return the credit of a slot, in tokens.

    shared: float64[SHARED_FIELDS * n_slots] of shared_layout, or a part of it, or empty
    """
    at = SHARED_FIELDS * slot + SHARED_CREDIT
    return shared[at] if at < shared.shape[0] else 0.0
