"""Selection of the cheapest candidates without sorting, many costs at a time.

costs: float64[n_slots] or longer, no NaN
eligible: bool[n_slots]
"""

# mypy: ignore-errors
# mypy is off: the decorator erases the signature, so checking types here would prove nothing.

import numpy as np

from indexer.index.header_kernels import I, U
from indexer.jit.decorators import compiled
from select_service.core.placement.decision_ring_layout import (
    CANDIDATES_ENOUGH,
    CANDIDATES_MIN,
    LANES,
)

LARGEST_COST = np.finfo(np.float64).max
BOUND_STEPS_MAX = 16
"""Maximum number of steps when searching for a cost bound."""
COST_TOLERANCE = 1e-12
"""Relative difference below which costs count as equal, well above the rounding error of sums."""


@compiled(error_model="numpy")
def costs_between_mask(costs, first, n_slots, above, cost):
    """Return a bit mask of the slots with `above` < cost <= `cost`.

    Bit k is slot first + k; the mask covers 64 slots and ends at `n_slots`.
    """
    end = min(first + 64, n_slots)
    own, bits = costs[first:end], U(0)
    for k in range(end - first):
        # No branch in the loop, so the compiler can vectorize the comparison.
        bits |= U((above < own[k]) & (own[k] <= cost)) << U(k)
    return bits


@compiled(error_model="numpy")
def fill_lane_minima(minima, costs, eligible):
    """Set minima[k] to the lowest candidate cost among every LANES-th slot from k on, or inf."""
    minima[:] = np.inf
    for first in range(0, eligible.shape[0], LANES):
        n = min(LANES, eligible.shape[0] - first)
        own, may = costs[first : first + n], eligible[first : first + n]
        for lane in range(n):
            cost = own[lane] if may[lane] else np.inf
            minima[lane] = cost if cost < minima[lane] else minima[lane]


# Reordering additions allows vector sums.  The lost bits are far below COST_TOLERANCE.
@compiled(fastmath={"reassoc", "nnan", "nsz"})
def _sum_costs_up_to(costs, eligible, cost):
    """Return (number, sum of costs) of the candidates costing at most `cost`."""
    n, total = I(0), 0.0
    for slot in range(eligible.shape[0]):
        inside = eligible[slot] & (costs[slot] <= cost)
        n += I(inside)
        total += costs[slot] if inside else 0.0
    return n, total


@compiled(error_model="numpy")
def cost_bounds(costs, eligible):
    """Return (low, high), two cost bounds around the wanted number of candidates.

    If low == high, the wanted number of candidates (or all of them) cost at most this much.
    Otherwise fewer than CANDIDATES_MIN cost at most `low`, more than CANDIDATES_ENOUGH cost at most
    `high`, and all candidates in between cost the same.

    Method: the mean cost of the remaining interval splits the interval; each step halves it
    roughly.
    """
    low, n_low, total_low = -np.inf, I(0), 0.0
    high = LARGEST_COST
    n_high, total_high = _sum_costs_up_to(costs, eligible, high)
    if n_high <= CANDIDATES_ENOUGH:
        return high, high
    for _ in range(BOUND_STEPS_MAX):
        # The factor keeps rounding from excluding candidates that all cost exactly the mean.
        mean = (total_high - total_low) / (n_high - n_low) * (1.0 + COST_TOLERANCE)
        n, total = _sum_costs_up_to(costs, eligible, mean)
        if n < CANDIDATES_MIN:
            low, n_low, total_low = mean, n, total
        elif n <= CANDIDATES_ENOUGH:
            return mean, mean
        # All costs between the bounds are equal: no bound can separate the candidates any further.
        elif n == n_high:
            return low, mean
        else:
            high, n_high, total_high = mean, n, total
    return low, high
