"""Measured profiles: time of a prompt alone, and of an iteration by KV usage and context.

Values between measured points are interpolated, not fitted, so that a bent curve stays bent.
Format: the sweeps of Dynamo's profiler (arrays of the two `raw_data` files).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

POINTS_MIN = 2


class ProfileArraysError(ValueError):
    """Error of arrays that are no profile, with a message of one line."""


class PrefillCurve:
    """Seconds of a prompt by its tokens; monotone between the points.

    Source: F. N. Fritsch and R. E. Carlson, Monotone Piecewise Cubic Interpolation, 1980, with the
    slopes of F. N. Fritsch and J. Butland, 1984 (weighted harmonic mean).
    """

    def __init__(self, isl: Sequence[float], ttft_ms: Sequence[float]) -> None:
        """Build the curve. Raises ProfileArraysError."""
        x, y = _finite_columns("prefill_isl, prefill_ttft", isl, ttft_ms)
        order = np.argsort(x, kind="stable")
        self._x, self._y = x[order], y[order] / 1000.0
        if x.size < POINTS_MIN or np.any(np.diff(self._x) <= 0.0):
            raise ProfileArraysError("prefill_isl: expected two or more different lengths")
        self._slopes = _monotone_slopes(self._x, self._y)
        self.points = tuple(zip(x.tolist(), (y / 1000.0).tolist(), strict=True))
        """Pairs (tokens, seconds), in the order of the file."""

    def seconds(self, tokens: float) -> float:
        """Return the seconds of a prompt.

        Outside of the points along the end slope, never below the end.
        """
        x, y = self._x, self._y
        if tokens <= x[0]:
            return float(y[0])
        if tokens >= x[-1]:
            # A falling end is noise of the measurement: longer prompts never take less time.
            return float(y[-1] + max(0.0, self._slopes[-1]) * (tokens - x[-1]))
        at = int(np.searchsorted(x, tokens, side="right")) - 1
        width = x[at + 1] - x[at]
        t = (tokens - x[at]) / width
        start = (1.0 + 2.0 * t) * (1.0 - t) ** 2 * y[at] + t**2 * (3.0 - 2.0 * t) * y[at + 1]
        left, right = self._slopes[at], self._slopes[at + 1]
        bend = t * (1.0 - t) ** 2 * left - t**2 * (1.0 - t) * right
        return float(start + width * bend)


class MeasuredDecode(NamedTuple):
    """Iteration with so many requests and KV tokens, and its seconds."""

    requests: int
    kv_tokens: int
    seconds: float


class DecodeSurface:
    """Seconds of an iteration by the used part of the KV cache and the mean context."""

    def __init__(
        self,
        usage: Sequence[float],
        context: Sequence[float],
        itl_ms: Sequence[float],
        max_kv_tokens: float,
    ) -> None:
        """Build the surface from points of a grid in any order. Raises ProfileArraysError."""
        names = "x_kv_usage, y_context_length, z_itl"
        x, y, z = _finite_columns(names, usage, context, itl_ms)
        if not max_kv_tokens > 0 or not x.size or np.any(y <= 0.0) or np.any(x < 0.0):
            raise ProfileArraysError("max_kv_tokens and y_context_length: expected more than 0")
        self.max_kv_tokens = float(max_kv_tokens)
        self._points = tuple(zip(x.tolist(), y.tolist(), (z / 1000.0).tolist(), strict=True))
        self._usages, self._contexts = np.unique(x), np.unique(y)
        self._grid = self._fill_grid(x, y, z / 1000.0)

    def to_samples(self) -> Iterator[MeasuredDecode]:
        """Yield the points as iterations; halves are rounded to the even neighbour."""
        for usage, context, seconds in self._points:
            kv = round(usage * self.max_kv_tokens)
            yield MeasuredDecode(max(1, round(kv / context)), kv, seconds)

    def seconds(self, usage: float, context: float) -> float:
        """Return the seconds, bilinear between the points and constant outside."""
        i, s = _grid_position(self._usages, usage)
        j, t = _grid_position(self._contexts, context)
        grid = self._grid
        low = grid[i, j] * (1.0 - t) + grid[i, j + (t > 0.0)] * t
        k = i + (s > 0.0)
        high = grid[k, j] * (1.0 - t) + grid[k, j + (t > 0.0)] * t
        return float(low * (1.0 - s) + high * s)

    def _fill_grid(self, x: Array, y: Array, z: Array) -> Array:
        """Return the grid, with empty cells set to the nearest point in units of the grid."""
        i, j = np.searchsorted(self._usages, x), np.searchsorted(self._contexts, y)
        grid = np.empty((self._usages.size, self._contexts.size))
        for row in range(grid.shape[0]):
            for column in range(grid.shape[1]):
                distance = np.abs(i - row) + np.abs(j - column)
                # Sweeps may lack points, and interpolation needs a complete grid.
                grid[row, column] = z[int(np.argmin(distance))]
        return grid


class MeasuredProfile(NamedTuple):
    """Measured profile. None means that half was not measured."""

    prefill: PrefillCurve | None = None
    decode: DecodeSurface | None = None


def _finite_columns(names: str, *columns: Sequence[float]) -> tuple[Array, ...]:
    """Return the arrays as finite float64 of equal length. Raises ProfileArraysError."""
    arrays = tuple(np.asarray(column, dtype=np.float64).ravel() for column in columns)
    if len({array.size for array in arrays}) != 1:
        raise ProfileArraysError(f"{names}: expected arrays of the same length")
    if not all(np.all(np.isfinite(array)) for array in arrays):
        raise ProfileArraysError(f"{names}: expected finite numbers")
    return arrays


def _monotone_slopes(x: Array, y: Array) -> Array:
    """Return the slope at each point.

    The slope is 0 at a turn of the curve, so that the curve never overshoots.
    """
    width, rise = np.diff(x), np.diff(y) / np.diff(x)
    slopes = np.zeros_like(x)
    if x.size == POINTS_MIN:
        slopes[:] = rise[0]
        return slopes
    for at in range(1, x.size - 1):
        before, after = rise[at - 1], rise[at]
        # Different signs mean a turn of the curve; a slope other than 0 would overshoot there.
        if before * after > 0.0:
            a = 2.0 * width[at] + width[at - 1]
            b = width[at] + 2.0 * width[at - 1]
            slopes[at] = (a + b) / (a / before + b / after)
    slopes[0] = _end_slope(width[0], width[1], rise[0], rise[1])
    slopes[-1] = _end_slope(width[-1], width[-2], rise[-1], rise[-2])
    return slopes


def _end_slope(width: float, next_width: float, rise: float, next_rise: float) -> float:
    """Return the end slope of the parabola through three points, limited against overshoot."""
    slope = ((2.0 * width + next_width) * rise - width * next_rise) / (width + next_width)
    if slope * rise <= 0.0:
        return 0.0
    if rise * next_rise < 0.0 and abs(slope) > 3.0 * abs(rise):
        return 3.0 * rise
    return slope


def _grid_position(axis: Array, value: float) -> tuple[int, float]:
    """Return the index of the point before a value, and the part of the way to the next, 0 to 1."""
    clamped = min(max(value, float(axis[0])), float(axis[-1]))
    at = min(int(np.searchsorted(axis, clamped, side="right")) - 1, axis.size - 1)
    if at == axis.size - 1:
        return at, 0.0
    return at, float((clamped - axis[at]) / (axis[at + 1] - axis[at]))
