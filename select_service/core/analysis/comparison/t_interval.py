"""Confidence interval of the mean of few differences.

    mean +- t * s / sqrt(n)      s: standard deviation of the differences, n - 1 in its denominator
                                 t: 0.975-quantile of Student's distribution, n - 1 degrees

Source: NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.2 (confidence limits for the mean),
of differences of pairs, and 1.3.6.7.2 (the table).
"""

from collections.abc import Sequence
from math import fsum, sqrt
from statistics import NormalDist, fmean
from typing import NamedTuple

CONFIDENCE = 0.95
_TABLE = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Quantiles by degrees of freedom, from 1."""


class ConfidenceInterval(NamedTuple):
    """95 % confidence interval of the true mean."""

    mean: float
    low: float
    high: float


def compute_t_interval(differences: Sequence[float]) -> ConfidenceInterval | None:
    """Return the interval; None for fewer than two differences."""
    n = len(differences)
    if n < 2:
        return None
    mean = fmean(differences)
    # fsum: differences of nearly equal means would lose digits in a plain sum.
    variance = fsum((each - mean) ** 2 for each in differences) / (n - 1)
    half = t_quantile(n - 1) * sqrt(variance / n)
    return ConfidenceInterval(mean, mean - half, mean + half)


def t_quantile(degrees: int) -> float:
    """Return the 0.975-quantile to three decimals.

    Beyond the table an expansion around the normal quantile is used. Source: Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.5.
    """
    assert degrees > 0
    if degrees <= len(_TABLE):
        return _TABLE[degrees - 1]
    z = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)
    first = (z**3 + z) / (4 * degrees)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
