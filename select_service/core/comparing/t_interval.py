"""The interval in which a mean of few differences probably lies.

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
"""By degrees of freedom, from 1."""


class Interval(NamedTuple):
    """With a confidence of 95 % the true mean lies from `low` to `high`."""

    mean: float
    low: float
    high: float


def t_interval(differences: Sequence[float]) -> Interval | None:
    """None: two differences are needed at least."""
    n = len(differences)
    if n < 2:
        return None
    mean = fmean(differences)
    variance = fsum((each - mean) ** 2 for each in differences) / (n - 1)
    half = t_quantile(n - 1) * sqrt(variance / n)
    return Interval(mean, mean - half, mean + half)


def t_quantile(degrees: int) -> float:
    """The 0.975-quantile, to three digits behind the point.

    Beyond the table by its expansion around the normal one.  Source: Abramowitz and Stegun,
    Handbook of Mathematical Functions, 26.7.5.
    """
    assert degrees > 0
    if degrees <= len(_TABLE):
        return _TABLE[degrees - 1]
    z = NormalDist().inv_cdf((1.0 + CONFIDENCE) / 2.0)
    first = (z**3 + z) / (4 * degrees)
    return z + first + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
