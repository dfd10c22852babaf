"""A line through samples: least squares with intercept, and one that a stall does not bend."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from select_service.planner.core.perf.samples import Sample

HUBER_K = 1.345
"""95 % of the efficiency of least squares under normal noise."""
ROBUST_ROUNDS = 5
HALF_LIFE_S = 1800.0
MAD_TO_DEVIATION = 1.4826
FLOOR_S = 1e-9
"""Residuals below this are rounding."""

Floats = NDArray[np.float64]


class Line(NamedTuple):
    """coefficients: seconds per unit of each axis"""

    coefficients: tuple[float, ...]
    intercept: float


def fit(samples: Sequence[Sample]) -> Line:
    """Every sample counts the same."""
    x, y = _columns(samples)
    return _solve(x, y, np.ones(len(y)))


def fit_robust(samples: Sequence[Sample], now_s: float) -> Line:
    """Old samples fade with a half-life; those far off the line weigh less (Huber).

    Source: Huber, Robust Estimation of a Location Parameter (1964); scale by the median deviation.
    """
    x, y = _columns(samples)
    ages = np.array([max(0.0, now_s - sample.at_s) for sample in samples])
    # relative to the youngest: an outage of a day must not make every weight 0
    fading = np.exp2(-(ages - ages.min()) / HALF_LIFE_S)
    line = _solve(x, y, fading)
    for _ in range(ROBUST_ROUNDS):
        residuals = np.abs(y - line.intercept - x @ np.array(line.coefficients))
        allowed = HUBER_K * max(MAD_TO_DEVIATION * float(np.median(residuals)), FLOOR_S)
        line = _solve(x, y, fading * np.minimum(1.0, allowed / np.maximum(residuals, FLOOR_S)))
    return line


def _columns(samples: Sequence[Sample]) -> tuple[Floats, Floats]:
    """float64 [n, axes] and float64 [n]."""
    return np.array([sample.x for sample in samples], float), np.array([s.y for s in samples])


def _solve(x: Floats, y: Floats, weights: Floats) -> Line:
    """Centred first: an axis that never moved gets the coefficient 0."""
    x_mean = np.average(x, axis=0, weights=weights)
    y_mean = float(np.average(y, weights=weights))
    roots = np.sqrt(weights)
    found = np.linalg.lstsq((x - x_mean) * roots[:, None], (y - y_mean) * roots, rcond=None)[0]
    return Line(tuple(found.tolist()), y_mean - float(x_mean @ found))
