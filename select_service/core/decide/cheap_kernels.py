"""Which candidates cost least, without sorting them: looks at many costs at once.

costs: float64[n_slots] or more, no NaN;  eligible: bool[n_slots]
"""

# mypy: ignore-errors
# The decorator erases the signature, so that checking types here would prove nothing.

import numpy as np

from indexer.compiled import compiled
from indexer.index.state_kernels import I, U
from select_service.core.decide.decision_layout import CANDIDATES_ENOUGH, CANDIDATES_MIN, LANES

LARGEST_COST = np.finfo(np.float64).max
HALVINGS = 16
"""Looks for a cost up to which enough, but not too many candidates are."""
SAME = 1e-12
"""Costs that differ by so much of them are the same; much more than what sums of them lose."""


@compiled(error_model="numpy")
def cost_bits(costs, first, n_slots, above, cost):
    """A bit for each of the 64 slots from `first` on, below `n_slots`, that costs more than `above`
    and at most `cost`."""
    end = min(first + 64, n_slots)
    own, bits = costs[first:end], U(0)
    for k in range(end - first):
        bits |= U((above < own[k]) & (own[k] <= cost)) << U(k)
    return bits


@compiled(error_model="numpy")
def fill_minima(minima, costs, eligible):
    """minima[k] = the lowest cost of a candidate among every LANES-th slot from k on, or inf."""
    minima[:] = np.inf
    for first in range(0, eligible.shape[0], LANES):
        n = min(LANES, eligible.shape[0] - first)
        own, may = costs[first : first + n], eligible[first : first + n]
        for lane in range(n):
            cost = own[lane] if may[lane] else np.inf
            minima[lane] = cost if cost < minima[lane] else minima[lane]


@compiled(fastmath={"reassoc", "nnan", "nsz"})
def _sum_to(costs, eligible, cost):
    """(number, sum of the costs) of the candidates that cost so much at most."""
    n, total = I(0), 0.0
    for slot in range(eligible.shape[0]):
        inside = eligible[slot] & (costs[slot] <= cost)
        n += I(inside)
        total += costs[slot] if inside else 0.0
    return n, total


@compiled(error_model="numpy")
def cost_bounds(costs, eligible):
    """(low, high): fewer than CANDIDATES_MIN cost at most `low`, and with those that cost at most
    `high`, all of them the same, they are more than CANDIDATES_ENOUGH.  Or low = high, which so
    many cost at most as are wanted, or there are.

    The mean of those between parts them again and again; each time about half are left.
    """
    low, n_low, total_low = -np.inf, I(0), 0.0
    high = LARGEST_COST
    n_high, total_high = _sum_to(costs, eligible, high)
    if n_high <= CANDIDATES_ENOUGH:
        return high, high
    for _ in range(HALVINGS):
        mean = (total_high - total_low) / (n_high - n_low) * (1.0 + SAME)
        n, total = _sum_to(costs, eligible, mean)
        if n < CANDIDATES_MIN:
            low, n_low, total_low = mean, n, total
        elif n <= CANDIDATES_ENOUGH:
            return mean, mean
        elif n == n_high:
            return low, mean
        else:
            high, n_high, total_high = mean, n, total
    return low, high
