"""One slot out of the costs."""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled

I64 = np.int64


@compiled()
def _cheapest(costs, eligible, draw):
    best = np.inf
    ties = I64(0)
    first = I64(-1)
    for slot in range(costs.shape[0]):
        if eligible[slot]:
            if costs[slot] < best or ties == 0:
                best = costs[slot]
                ties = 1
                first = I64(slot)
            elif costs[slot] == best:
                ties += 1
    wanted = I64(draw * ties)
    slot = first
    while wanted > 0:
        slot += 1
        if eligible[slot] and costs[slot] == best:
            wanted -= 1
    return slot


@compiled(error_model="numpy")
def _chance(cost, low, high, temperature):
    """exp(-(cost - low) / ((high - low) * temperature)), also where that product has no number."""
    if cost == np.inf:
        return 0.0
    if low == high:
        return 1.0
    scale = (high - low) * temperature
    if 0.0 < scale < np.inf:
        return np.exp(-(cost - low) / scale)
    part = (0.5 * cost - 0.5 * low) / (0.5 * high - 0.5 * low)
    return np.exp(-part / temperature)


@compiled()
def _softmax(costs, eligible, temperature, draw):
    low, high = np.inf, -np.inf
    for slot in range(costs.shape[0]):
        if eligible[slot] and costs[slot] < np.inf:
            low = min(low, costs[slot])
            high = max(high, costs[slot])
    if low == np.inf:
        return _cheapest(costs, eligible, draw)  # all are equally bad
    total = 0.0
    for slot in range(costs.shape[0]):
        if eligible[slot]:
            total += _chance(costs[slot], low, high, temperature)
    left = draw * total
    last = I64(-1)
    for slot in range(costs.shape[0]):
        if eligible[slot] and costs[slot] < np.inf:
            last = I64(slot)
            left -= _chance(costs[slot], low, high, temperature)
            if left < 0.0:
                break
    return last


@compiled(error_model="numpy")
def pick(costs, eligible, temperature, draw):
    """An eligible slot, or -1 when there is none.

    Temperature 0: the cheapest, exact ties uniform at random.  Above: probability proportional to
    exp(-(cost - min) / ((max - min) * temperature)), uniform when all costs are equal.  An infinite
    cost is taken only when there is no other.

    costs: float64[n_slots], no NaN;  eligible: bool[n_slots];  draw: uniform in [0, 1)
    """
    if temperature > 0.0:
        return _softmax(costs, eligible, temperature, draw)
    return _cheapest(costs, eligible, draw)
