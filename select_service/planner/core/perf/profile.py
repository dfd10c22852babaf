"""Measured profiles: how long a prompt takes alone, and an iteration by KV usage and context.

Between the points of the measurement they are interpolated, not fitted: a curve that bends stays
one. Format: the sweeps of the reference's profiler (arrays of the two `raw_data` files).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RATE_TOLERANCE = 0.01
"""Of the rate that a bisection looks for."""
POINTS_MIN = 2


class ProfileFault(ValueError):
    """Arrays that are no profile; one line says why."""


class PrefillCurve:
    """Seconds of a prompt by its tokens; monotone between the points.

    Source: F. N. Fritsch and R. E. Carlson, Monotone Piecewise Cubic Interpolation, 1980, with the
    slopes of F. N. Fritsch and J. Butland, 1984 (weighted harmonic mean).
    """

    def __init__(self, isl: Sequence[float], ttft_ms: Sequence[float]) -> None:
        """Raises ProfileFault."""
        x, y = _columns("prefill_isl, prefill_ttft", isl, ttft_ms)
        order = np.argsort(x, kind="stable")
        self._x, self._y = x[order], y[order] / 1000.0
        if x.size < POINTS_MIN or np.any(np.diff(self._x) <= 0.0):
            raise ProfileFault("prefill_isl: expected two or more different lengths")
        self._slopes = _monotone_slopes(self._x, self._y)
        self.points = tuple(zip(x.tolist(), (y / 1000.0).tolist(), strict=True))
        """(tokens, seconds), in the order of the file."""

    def seconds(self, tokens: float) -> float:
        """Outside of the points along the slope of the end, and never below its value there."""
        x, y = self._x, self._y
        if tokens <= x[0]:
            return float(y[0])
        if tokens >= x[-1]:
            return float(y[-1] + max(0.0, self._slopes[-1]) * (tokens - x[-1]))
        at = int(np.searchsorted(x, tokens, side="right")) - 1
        width = x[at + 1] - x[at]
        t = (tokens - x[at]) / width
        start = (1.0 + 2.0 * t) * (1.0 - t) ** 2 * y[at] + t**2 * (3.0 - 2.0 * t) * y[at + 1]
        left, right = self._slopes[at], self._slopes[at + 1]
        bend = t * (1.0 - t) ** 2 * left - t**2 * (1.0 - t) * right
        return float(start + width * bend)


class DecodeSample(NamedTuple):
    """requests and KV tokens of an iteration that takes so many seconds"""

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
        """Points of a grid in any order. Raises ProfileFault."""
        names = "x_kv_usage, y_context_length, z_itl"
        x, y, z = _columns(names, usage, context, itl_ms)
        if not max_kv_tokens > 0 or not x.size or np.any(y <= 0.0) or np.any(x < 0.0):
            raise ProfileFault("max_kv_tokens and y_context_length: expected more than 0")
        self.max_kv_tokens = float(max_kv_tokens)
        self._points = tuple(zip(x.tolist(), y.tolist(), (z / 1000.0).tolist(), strict=True))
        self._usages, self._contexts = np.unique(x), np.unique(y)
        self._grid = self._filled(x, y, z / 1000.0)

    def samples(self) -> Iterator[DecodeSample]:
        """As iterations that were seen; halves are rounded to the even neighbour."""
        for usage, context, seconds in self._points:
            kv = round(usage * self.max_kv_tokens)
            yield DecodeSample(max(1, round(kv / context)), kv, seconds)

    def seconds(self, usage: float, context: float) -> float:
        """Bilinear between the points, the nearest of them outside."""
        i, s = _place(self._usages, usage)
        j, t = _place(self._contexts, context)
        grid = self._grid
        low = grid[i, j] * (1.0 - t) + grid[i, j + (t > 0.0)] * t
        k = i + (s > 0.0)
        high = grid[k, j] * (1.0 - t) + grid[k, j + (t > 0.0)] * t
        return float(low * (1.0 - s) + high * s)

    def seconds_at_rate(self, tokens_s: float, context: float) -> float:
        """Seconds of an iteration of an engine that generates so many tokens a second.

        By bisection of its usage, to 1 % of the rate; at a rate that it never reaches, those at
        the fullest point that was measured.
        """
        low, high = float(self._usages[0]), float(self._usages[-1])
        if self._rate(high, context) <= tokens_s:
            return self.seconds(high, context)
        if self._rate(low, context) >= tokens_s:
            return self.seconds(low, context)
        while True:
            middle = (low + high) / 2.0
            rate = self._rate(middle, context)
            if abs(rate - tokens_s) <= RATE_TOLERANCE * tokens_s or high - low < 1e-9:
                return self.seconds(middle, context)
            low, high = (middle, high) if rate < tokens_s else (low, middle)

    def _rate(self, usage: float, context: float) -> float:
        requests = usage * self.max_kv_tokens / context
        return requests / self.seconds(usage, context)

    def _filled(self, x: Array, y: Array, z: Array) -> Array:
        """Of cells without a point that of the nearest one, in units of the grid."""
        i, j = np.searchsorted(self._usages, x), np.searchsorted(self._contexts, y)
        grid = np.empty((self._usages.size, self._contexts.size))
        for row in range(grid.shape[0]):
            for column in range(grid.shape[1]):
                distance = np.abs(i - row) + np.abs(j - column)
                grid[row, column] = z[int(np.argmin(distance))]
        return grid


class Profile(NamedTuple):
    """None: that half was not measured."""

    prefill: PrefillCurve | None = None
    decode: DecodeSurface | None = None


def _columns(names: str, *columns: Sequence[float]) -> tuple[Array, ...]:
    arrays = tuple(np.asarray(column, dtype=np.float64).ravel() for column in columns)
    if len({array.size for array in arrays}) != 1:
        raise ProfileFault(f"{names}: expected arrays of the same length")
    if not all(np.all(np.isfinite(array)) for array in arrays):
        raise ProfileFault(f"{names}: expected finite numbers")
    return arrays


def _monotone_slopes(x: Array, y: Array) -> Array:
    """At each point: 0 where the curve turns, so that it never overshoots."""
    width, rise = np.diff(x), np.diff(y) / np.diff(x)
    slopes = np.zeros_like(x)
    if x.size == POINTS_MIN:
        slopes[:] = rise[0]
        return slopes
    for at in range(1, x.size - 1):
        before, after = rise[at - 1], rise[at]
        if before * after > 0.0:
            a = 2.0 * width[at] + width[at - 1]
            b = width[at] + 2.0 * width[at - 1]
            slopes[at] = (a + b) / (a / before + b / after)
    slopes[0] = _end_slope(width[0], width[1], rise[0], rise[1])
    slopes[-1] = _end_slope(width[-1], width[-2], rise[-1], rise[-2])
    return slopes


def _end_slope(width: float, next_width: float, rise: float, next_rise: float) -> float:
    """Of the parabola through three points, held back where that would overshoot."""
    slope = ((2.0 * width + next_width) * rise - width * next_rise) / (width + next_width)
    if slope * rise <= 0.0:
        return 0.0
    if rise * next_rise < 0.0 and abs(slope) > 3.0 * abs(rise):
        return 3.0 * rise
    return slope


def _place(axis: Array, value: float) -> tuple[int, float]:
    """Index of the point before, and how far it is to the next one, 0 to 1."""
    clamped = min(max(value, float(axis[0])), float(axis[-1]))
    at = min(int(np.searchsorted(axis, clamped, side="right")) - 1, axis.size - 1)
    if at == axis.size - 1:
        return at, 0.0
    return at, float((clamped - axis[at]) / (axis[at + 1] - axis[at]))
