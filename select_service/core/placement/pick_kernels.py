"""Choice of a slot by cost: the cheapest, or a softmax draw."""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

import numpy as np

from indexer.jit.decorators import compiled

I64 = np.int64


@compiled()
def _pick_cheapest(costs, eligible, draw):
    best = np.inf
    ties = I64(0)
    first = I64(-1)
    for slot in range(costs.shape[0]):
        if eligible[slot]:
            # The second condition accepts a first slot of infinite cost.
            if costs[slot] < best or ties == 0:
                best = costs[slot]
                ties = 1
                first = I64(slot)
            elif costs[slot] == best:
                ties += 1
    ties_before = I64(draw * ties)
    slot = first
    while ties_before > 0:
        slot += 1
        if eligible[slot] and costs[slot] == best:
            ties_before -= 1
    return slot


@compiled(error_model="numpy")
def _softmax_weight(cost, low, high, temperature):
    """Return exp(-(cost - low) / ((high - low) * temperature)), also where the product
    overflows.
    """
    if cost == np.inf:
        return 0.0
    if low == high:
        return 1.0
    scale = (high - low) * temperature
    if 0.0 < scale < np.inf:
        return np.exp(-(cost - low) / scale)
    # Halved operands cannot overflow where the difference of large costs would.
    part = (0.5 * cost - 0.5 * low) / (0.5 * high - 0.5 * low)
    return np.exp(-part / temperature)


@compiled()
def _pick_softmax(costs, eligible, temperature, draw):
    low, high = np.inf, -np.inf
    for slot in range(costs.shape[0]):
        if eligible[slot] and costs[slot] < np.inf:
            low = min(low, costs[slot])
            high = max(high, costs[slot])
    if low == np.inf:
        return _pick_cheapest(costs, eligible, draw)  # all costs are infinite: draw among all
    total = 0.0
    for slot in range(costs.shape[0]):
        if eligible[slot]:
            total += _softmax_weight(costs[slot], low, high, temperature)
    left = draw * total
    last = I64(-1)
    for slot in range(costs.shape[0]):
        if eligible[slot] and costs[slot] < np.inf:
            last = I64(slot)
            left -= _softmax_weight(costs[slot], low, high, temperature)
            if left < 0.0:
                break
    return last


@compiled(error_model="numpy")
def pick_slot(costs, eligible, temperature, draw):
    """Return an eligible slot, or -1 when no slot is eligible.

    Temperature 0 takes the cheapest slot, with exact ties drawn uniformly.  Above 0 the probability
    is proportional to exp(-(cost - min) / ((max - min) * temperature)), and uniform for equal
    costs.  An infinite cost is chosen only when all costs are infinite.

    costs: float64[n_slots], no NaN
    eligible: bool[n_slots]
    draw: uniform in [0, 1)
    """
    if temperature > 0.0:
        return _pick_softmax(costs, eligible, temperature, draw)
    return _pick_cheapest(costs, eligible, draw)
