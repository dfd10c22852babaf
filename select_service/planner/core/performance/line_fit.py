"""Line through samples: least squares with intercept.

A stall does not bend the robust fit.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from select_service.planner.core.performance.bucketed_samples import LoadSample

HUBER_K = 1.345
"""Tuning constant with 95 % of the efficiency of least squares under normal noise."""
ROBUST_ROUNDS = 5
HALF_LIFE_S = 1800.0
MAD_TO_DEVIATION = 1.4826
COLLINEARITY_MIN = 1e-4
"""Distance of the squared correlation of two axes from 1, below which the closed form is
unstable.
"""
FLOOR_S = 1e-9
"""Limit below which residuals are rounding errors, seconds."""

Floats = NDArray[np.float64]


class FittedLine(NamedTuple):
    """Linear model. coefficients: seconds per unit of each axis"""

    coefficients: tuple[float, ...]
    intercept: float


def fit_line(samples: Sequence[LoadSample]) -> FittedLine:
    """Fit a line with equal weights."""
    x, y = _sample_columns(samples)
    return _solve_weighted(x, y, np.ones(len(y)))


def fit_robust_line(samples: Sequence[LoadSample], now_s: float) -> FittedLine:
    """Fit a line in which old samples fade with a half-life and outliers weigh less (Huber).

    Source: Huber, Robust Estimation of a Location Parameter (1964); scale by the median deviation.
    """
    x, y = _sample_columns(samples)
    ages = np.array([max(0.0, now_s - sample.at_s) for sample in samples])
    # Ages are relative to the youngest sample: an outage of a day must not make every weight 0.
    fading = np.exp2(-(ages - ages.min()) / HALF_LIFE_S)
    line = _solve_weighted(x, y, fading)
    for _ in range(ROBUST_ROUNDS):
        residuals = np.abs(y - line.intercept - x @ np.array(line.coefficients))
        # The floor avoids a division by zero when all samples lie exactly on the line.
        allowed = HUBER_K * max(MAD_TO_DEVIATION * _fast_median(residuals), FLOOR_S)
        line = _solve_weighted(
            x, y, fading * np.minimum(1.0, allowed / np.maximum(residuals, FLOOR_S))
        )
    return line


def _fast_median(values: Floats) -> float:
    """Return the median of few values, in a fifth of the time of numpy's function."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    return float((ordered[middle] + ordered[-1 - middle]) / 2.0)


def _sample_columns(samples: Sequence[LoadSample]) -> tuple[Floats, Floats]:
    """Return the samples as float64 [n, axes] and float64 [n]."""
    return np.array([sample.x for sample in samples], float), np.array([s.y for s in samples])


def _solve_weighted(x: Floats, y: Floats, weights: Floats) -> FittedLine:
    """Solve weighted least squares.

    Axes are centred first, so that an axis that never moved gets the coefficient 0.
    """
    total = weights.sum()
    # Centring makes the intercept separate, and the small system well conditioned.
    x_mean = weights @ x / total
    y_mean = float(weights @ y) / float(total)
    weighted = (x - x_mean) * weights[:, None]
    gram, moment = weighted.T @ (x - x_mean), weighted.T @ (y - y_mean)
    found = _solve_closed_form(gram.tolist(), moment.tolist())
    if found is None:
        roots = np.sqrt(weights)
        sides = (x - x_mean) * roots[:, None], (y - y_mean) * roots
        found = tuple(np.linalg.lstsq(*sides, rcond=None)[0].tolist())
    return FittedLine(found, y_mean - float(x_mean @ np.array(found)))


def _solve_closed_form(gram: list[list[float]], moment: list[float]) -> tuple[float, ...] | None:
    """Solve one or two axes in closed form, at a tenth of the cost.

    None if the axes are too similar.
    """
    if len(moment) == 1:
        return (moment[0] / gram[0][0] if gram[0][0] > 0.0 else 0.0,)
    (a, b), (_, d) = gram
    p, q = moment
    determinant = a * d - b * b
    # Nearly collinear axes make the closed form lose all digits; the caller then uses lstsq.
    if determinant > COLLINEARITY_MIN * a * d:
        return (p * d - q * b) / determinant, (q * a - p * b) / determinant
    if a == 0.0 or d == 0.0:
        return (p / a if a > 0.0 else 0.0, q / d if d > 0.0 else 0.0)
    return None
