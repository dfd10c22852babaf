"""Highest rate of requests at which a run meets an objective."""

from collections.abc import Callable

STEP = 1.02
"""Precision of the rate."""
RATE_RANGE = 32.0
"""Largest factor between the rate found and the first rate, in both directions."""


def find_highest_rate(meets: Callable[[float], bool], first: float, step: float = STEP) -> float:
    """Return the highest rate with `meets`, which falls with the rate; 0 if there is none.

    first: rate where the search begins;  step: factor between neighbouring rates
    A search that leaves RATE_RANGE ends at its bound.
    """
    low, high, factor = first, first, 2.0
    if meets(first):
        while high < first * RATE_RANGE:
            high *= factor
            if not meets(high):
                break
            low = high
        else:
            return low
    else:
        while low > first / RATE_RANGE:
            low /= factor
            if meets(low):
                break
            high = low
        else:
            return 0.0
    while high > step * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if meets(middle) else (low, middle)
    return low
