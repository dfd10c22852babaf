"""Statistics of the report.  Pure."""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of all values do not exceed (nearest rank).

    NaN for no values.
    """
    assert 0.0 < percent <= 100.0
    if not values:
        return math.nan
    # Nearest rank: the result is always a measured value.
    return sorted(values)[math.ceil(len(values) * percent / 100.0) - 1]


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; NaN for no values."""
    return sum(values) / len(values) if values else math.nan


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Return the coefficient of variation: standard deviation over mean; 0 means perfectly even."""
    middle = mean(values)
    if not middle:
        return 0.0
    return math.sqrt(mean([(value - middle) ** 2 for value in values])) / middle
