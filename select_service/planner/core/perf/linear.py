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
TOGETHER = 1e-4
"""Axes whose squared correlation is nearer to 1 are not told apart by hand."""
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
        allowed = HUBER_K * max(MAD_TO_DEVIATION * _median(residuals), FLOOR_S)
        line = _solve(x, y, fading * np.minimum(1.0, allowed / np.maximum(residuals, FLOOR_S)))
    return line


def _median(values: Floats) -> float:
    """Of few values, in a fifth of the time of numpy's own."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    return float((ordered[middle] + ordered[-1 - middle]) / 2.0)


def _columns(samples: Sequence[Sample]) -> tuple[Floats, Floats]:
    """float64 [n, axes] and float64 [n]."""
    return np.array([sample.x for sample in samples], float), np.array([s.y for s in samples])


def _solve(x: Floats, y: Floats, weights: Floats) -> Line:
    """Centred first: an axis that never moved gets the coefficient 0."""
    total = weights.sum()
    x_mean = weights @ x / total
    y_mean = float(weights @ y) / float(total)
    weighted = (x - x_mean) * weights[:, None]
    gram, moment = weighted.T @ (x - x_mean), weighted.T @ (y - y_mean)
    found = _solved(gram.tolist(), moment.tolist())
    if found is None:
        roots = np.sqrt(weights)
        sides = (x - x_mean) * roots[:, None], (y - y_mean) * roots
        found = tuple(np.linalg.lstsq(*sides, rcond=None)[0].tolist())
    return Line(found, y_mean - float(x_mean @ np.array(found)))


def _solved(gram: list[list[float]], moment: list[float]) -> tuple[float, ...] | None:
    """One or two axes by hand, which costs a tenth. None: too near to each other for that."""
    if len(moment) == 1:
        return (moment[0] / gram[0][0] if gram[0][0] > 0.0 else 0.0,)
    (a, b), (_, d) = gram
    p, q = moment
    determinant = a * d - b * b
    if determinant > TOGETHER * a * d:
        return (p * d - q * b) / determinant, (q * a - p * b) / determinant
    if a == 0.0 or d == 0.0:
        return (p / a if a > 0.0 else 0.0, q / d if d > 0.0 else 0.0)
    return None
